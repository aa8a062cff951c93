//! `tollgate check`: says a configuration back in words, warns, runs its tests.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{Check, Format};
use super::trial::{self, Verdict};
use super::{BAD, GOOD, load, print_out};
use crate::app;
use tollgate_config::Config;
use tollgate_limit::{Mode, Placement};
use tollgate_policy::{Policy, Rule, Scope};
use tollgate_store::clock::Clock;
use tollgate_store::local;

pub(super) fn check(args: &Check) -> ExitCode {
    let now = Clock::system().now();
    match tollgate_config::load(&args.config.config, &load::environment, now) {
        Ok(mut config) => {
            let notes = match app::preflight(&mut config, &load::environment) {
                Ok(notes) => notes,
                Err(error) => return bad(args, &error),
            };
            let verdicts: Vec<Verdict> = config
                .tests
                .iter()
                .map(|test| trial::run(&config.policy, test))
                .collect();
            good(args, &config, &notes, &verdicts)
        }
        Err(error) => {
            match args.format {
                Format::Human => eprintln!("{}", error.render(super::colour())),
                Format::Json => {
                    print_out(&format!(
                        "{:#}",
                        json!({ "good": false, "errors": error.lines() })
                    ));
                }
            }
            BAD
        }
    }
}

/// The file is good, but nothing would start on it.
fn bad(args: &Check, error: &str) -> ExitCode {
    match args.format {
        Format::Human => eprintln!("error: {error}"),
        Format::Json => {
            print_out(&format!(
                "{:#}",
                json!({ "good": false, "errors": [error] })
            ));
        }
    }
    BAD
}

fn good(args: &Check, config: &Config, notes: &[String], verdicts: &[Verdict]) -> ExitCode {
    let failed = verdicts
        .iter()
        .filter(|verdict| !verdict.wrong.is_empty())
        .count();
    let strict = args.strict && !config.warnings.is_empty();
    match args.format {
        Format::Human => {
            for warning in &config.warnings {
                eprintln!("{warning}\n");
            }
            for note in notes {
                eprintln!("note: {note}\n");
            }
            print_out(&tollgate_config::report(config));
            print_out(&rooms(&config.policy));
            print_out(&tests(verdicts));
            if strict {
                eprintln!(
                    "tollgate check: {} warnings, and --strict",
                    config.warnings.len()
                );
            }
        }
        Format::Json => {
            print_out(&format!(
                "{:#}",
                document(config, notes, verdicts, failed == 0 && !strict)
            ));
        }
    }
    if failed > 0 || strict { BAD } else { GOOD }
}

/// How many callers each limit of the process remembers at once.
fn rooms(policy: &Policy) -> String {
    let mut text = String::new();
    for rule in policy
        .rules
        .iter()
        .filter(|rule| rule.scope != Scope::Everyone && rule.live.mode != Mode::Off)
    {
        if let Some(room) = room(rule, policy) {
            let memory = rule.live.memory >> 10;
            text.push_str(&format!(
                "  {}: room for {room} callers at once in {memory} KiB\n",
                rule.name
            ));
        }
    }
    if text.is_empty() {
        return text;
    }
    let total = app::memory::of_tables(&policy.limits) >> 20;
    text.push_str(&format!(
        "  all tables together, when they are full: {total} MiB; an empty table takes next to nothing\n"
    ));
    format!("\nMemory, beyond which a newcomer takes the place and the debt of another\n{text}\n")
}

fn room(rule: &Rule, policy: &Policy) -> Option<u64> {
    (rule.live.placement == Placement::Local).then(|| local::room(&rule.live, &policy.limits))
}

/// How the tests came out, for people.
fn tests(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let word = if verdict.wrong.is_empty() {
            "passed"
        } else {
            "FAILED"
        };
        text.push_str(&format!(
            "test {word}   {} (line {})\n",
            verdict.name, verdict.line
        ));
        for wrong in &verdict.wrong {
            text.push_str(&format!("              {wrong}\n"));
        }
    }
    let failed = verdicts
        .iter()
        .filter(|verdict| !verdict.wrong.is_empty())
        .count();
    if !verdicts.is_empty() {
        text.push_str(&format!(
            "{} tests passed, {failed} failed\n",
            verdicts.len() - failed
        ));
    }
    text
}

/// The whole report for programs.
fn document(config: &Config, notes: &[String], verdicts: &[Verdict], good: bool) -> Value {
    let limit = |rule: &Rule| {
        json!({
            "limit": &*rule.name,
            "words": rule.live.algorithm.words(),
            "tiers": rule.tiers.iter().map(|(tier, limit)| json!({ "tier": &**tier, "words": limit.algorithm.words() })).collect::<Vec<_>>(),
            "candidate": rule.candidate.as_ref().map(|limit| limit.algorithm.words()),
            "room": room(rule, &config.policy),
        })
    };
    let test = |verdict: &Verdict| json!({ "test": verdict.name, "line": verdict.line, "passed": verdict.wrong.is_empty(), "wrong": verdict.wrong });
    let policy = &config.policy;
    json!({
        "good": good,
        "warnings": config.warnings,
        "notes": notes,
        "memory_bytes": app::memory::of_tables(&config.policy.limits),
        "limits": policy.rules.iter().map(limit).collect::<Vec<_>>(),
        "routes": policy.routes.iter().map(|route| json!({
            "route": &*route.name,
            "limits": route.limits.iter().map(|limit| &*policy.rules[limit.rule].name).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "tests": verdicts.iter().map(test).collect::<Vec<_>>(),
    })
}
