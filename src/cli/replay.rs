//! `tollgate replay`: shows the effect of a file on the requests of a log.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::TimeZone;

use tollgate_limit::{Kind, Mode};
use tollgate_policy::{Policy, Rule};
use tollgate_replay::log::{Fields, Options, Pattern};
use tollgate_replay::suggest::{Ask, Suggestion, suggest};
use tollgate_replay::{Condition, Traffic, report};
use tollgate_store::clock::Clock;

use super::args::{LogOptions, Replay};
use super::{BAD, load, print_out, replace_file};
use super::{Ended, Stop};

pub(super) fn replay(args: &Replay) -> Ended {
    let options = options(&args.log.reading).map_err(Stop::Misuse)?;
    let conditions = Condition::parse_all(&args.fail_if).map_err(Stop::Misuse)?;
    let config = load::load_file(&args.config)?;
    let against = args.against.as_deref().map(load::load_file).transpose()?;
    let mut policies = vec![&*config.policy];
    policies.extend(against.as_ref().map(|config| &*config.policy));
    let mut traffic = traffic(&args.log.logs, &options, &policies)?;
    let outcome = traffic.replay();
    if args.format != report::Format::Json {
        for warning in &outcome.warnings {
            tell!("warning: {warning}");
        }
    }
    let mut code = print_out(&report::replay(&traffic.survey, &outcome, args.format));
    let mut fails = |why: &str| {
        tell!("tollgate replay: {why}");
        code = BAD;
    };
    if let Some(path) = &args.html {
        let limit = (!outcome.limits.is_empty())
            .then(|| pictured(&mut traffic, &config.policy))
            .flatten();
        let limit = limit
            .as_ref()
            .map(|(name, suggestion)| (name.as_str(), suggestion));
        let page = tollgate_replay::html::replay(&traffic.survey, &outcome, limit);
        if let Err(why) = replace_file(path, &page) {
            fails(&why);
        }
    }
    if traffic.survey.requests == 0 {
        fails("no request could be read");
    }
    let failed = |condition: &Condition| condition.fails(&traffic.survey, &outcome);
    conditions
        .iter()
        .filter_map(failed)
        .for_each(|why| fails(&why));
    Ok(code)
}

/// The requests of these logs; the progress of reading is shown on a terminal.
pub(super) fn traffic<'p>(
    logs: &[PathBuf],
    options: &Options,
    policies: &[&'p Policy],
) -> Result<Traffic<'p>, String> {
    let is_terminal = std::io::stderr().is_terminal();
    let mut shown = None;
    let read = Traffic::read(logs, options, policies, |bytes| {
        let mebibytes = bytes >> 20;
        if is_terminal && shown.replace(mebibytes) != Some(mebibytes) {
            let _ = write!(std::io::stderr(), "\rreading {mebibytes} MiB");
        }
    });
    if shown.is_some() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    read.map_err(|error| error.to_string())
}

/// The data of the file's first limit with a rate, for the report's charts.
fn pictured(traffic: &mut Traffic<'_>, policy: &Policy) -> Option<(String, Suggestion)> {
    let is_rate = |rule: &Rule| {
        rule.live.mode != Mode::Off && rule.live.algorithm.kind() == Kind::TokenBucket
    };
    let rule = policy.rules.iter().position(is_rate)?;
    let today = super::suggest::today(traffic, policy, rule);
    let ask = Ask {
        rates: Vec::new(),
        refuse: 1_000,
        rule,
        today: Some(today),
    };
    let suggestion = suggest(traffic, "", ask).ok()?;
    Some((policy.rules[rule].name.to_string(), suggestion))
}

pub(super) fn options(args: &LogOptions) -> Result<Options, String> {
    let zone = match &args.zone {
        None => TimeZone::UTC,
        Some(name) => DateTimeParser::new().parse_time_zone(name).map_err(|_| {
            format!("--zone: `{name}` is no time zone: Europe/Berlin, UTC or +01:00")
        })?,
    };
    let longest = match &args.longest {
        None => 0,
        Some(text) => {
            tollgate_config::duration(text)
                .map_err(|what| format!("--longest: {what}"))?
                .0
        }
    };
    Ok(Options {
        stamps: args.stamps,
        zone,
        pattern: args
            .log_format
            .as_deref()
            .map(Pattern::new)
            .transpose()
            .map_err(|what| format!("--log-format: {what}"))?,
        fields: args
            .fields
            .as_deref()
            .map(Fields::parse)
            .transpose()
            .map_err(|what| format!("--fields: {what}"))?,
        longest,
        show_keys: args.show_keys,
        now: Clock::system().now().as_micros(),
    })
}
