//! `tollgate diff`: shows the differences of two files in meaning, and in their effect on a log.

use serde_json::json;

use tollgate_config::Config;
use tollgate_policy::Rule;
use tollgate_replay::{Condition, Traffic, report};

use super::args::{Diff, Format, LogOptions};
use super::replay::options;
use super::{BAD, load, print_out};
use super::{Ended, Stop};
use crate::app::changes;

pub(super) fn diff(args: &Diff) -> Ended {
    if args.logs.is_empty() && (args.reading != LogOptions::default() || !args.fail_if.is_empty()) {
        let what = "options for reading a log, and --fail-if, need --log".to_owned();
        return Err(Stop::Misuse(what));
    }
    let conditions = Condition::parse_all(&args.fail_if).map_err(Stop::Misuse)?;
    let options = options(&args.reading).map_err(Stop::Misuse)?;
    // The mistakes of both are told.
    let read =
        |path| load::load_file(path).map_err(|error| Stop::from(error).exit_code("tollgate diff"));
    let (Ok(old), Ok(new)) = (read(&args.old), read(&args.new)) else {
        return Ok(BAD);
    };
    let changes = changes::between(&old, &new);
    let new_buckets = new_buckets(&old, &new);
    let mut judged_otherwise = false;
    let mut on_log = None;
    if !args.logs.is_empty() {
        let policies = [&*new.policy, &*old.policy];
        let read = Traffic::read(&args.logs, &options, &policies, |_| {});
        let mut traffic = read.map_err(|error| error.to_string())?;
        if traffic.survey.requests == 0 {
            return Err("no request could be read".to_owned().into());
        }
        let outcome = traffic.replay();
        judged_otherwise = outcome.against.as_ref().is_some_and(|against| {
            against.newly_refused.requests + against.newly_admitted.requests > 0
        });
        on_log = Some((traffic.survey, outcome));
    }
    let printed = match args.format {
        Format::Human => {
            let mut text = String::new();
            for change in &changes {
                text.push_str(&format!("{change}\n"));
            }
            if changes.is_empty() {
                text.push_str("`check` says the same of both.\n");
            }
            if !new_buckets.is_empty() {
                let names = new_buckets.join(", ");
                text.push_str(&format!(
                    "Another algorithm or period begins new buckets: {names}\n"
                ));
            }
            if let Some((_, outcome)) = &on_log {
                for warning in &outcome.warnings {
                    tell!("warning: {warning}");
                }
                text.push_str(&report::against(outcome));
            }
            print_out(&text)
        }
        Format::Json => {
            let side = |wanted: char| -> Vec<&str> {
                let of = changes.iter().filter(|change| change.mark == wanted);
                of.map(|change| change.line.trim()).collect()
            };
            let mut document = json!({
                "same": changes.is_empty(),
                "removed": side('-'),
                "added": side('+'),
                "new_buckets": new_buckets,
            });
            if let Some((survey, outcome)) = &on_log {
                document["log"] = report::document(survey, outcome);
            }
            print_out(&format!("{document:#}"))
        }
    };
    if conditions.is_empty() {
        let is_same = changes.is_empty() && !judged_otherwise;
        return Ok(if is_same { printed } else { BAD });
    }
    // A pipeline that deploys a changed file asks for its effect alone.
    let failed: Vec<String> = on_log
        .iter()
        .flat_map(|(survey, outcome)| {
            conditions
                .iter()
                .filter_map(|one| one.fails(survey, outcome))
        })
        .collect();
    for why in &failed {
        tell!("tollgate diff: {why}");
    }
    Ok(if failed.is_empty() { printed } else { BAD })
}

/// The limits whose callers begin with new buckets, because they have another algorithm or period.
fn new_buckets(old: &Config, new: &Config) -> Vec<String> {
    let is_other = |rule: &&Rule| {
        let before = old.policy.rules.iter().find(|one| one.name == rule.name);
        let algorithm = &rule.live.algorithm;
        before.is_some_and(|before| !before.live.algorithm.has_buckets_of(algorithm))
    };
    let others = new.policy.rules.iter().filter(is_other);
    others.map(|rule| rule.name.to_string()).collect()
}
