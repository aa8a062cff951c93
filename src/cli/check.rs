//! `tollgate check`: describes a configuration in words, warns, and runs its tests.

use std::process::ExitCode;

use super::Ended;
use super::args::{Check, Format};
use super::document;
use super::trial::{self, Verdict};
use super::{BAD, GOOD, load, print_out};
use crate::app;
use tollgate_config::{Config, Diagnostic, Unset};
use tollgate_limit::Mode;
use tollgate_policy::Scope;

pub(super) fn check(args: &Check) -> Ended {
    let unset = if args.without_env {
        Unset::Assumed
    } else {
        Unset::Refused
    };
    let mut config = match (load::read_and_open(&args.config, unset), args.format) {
        (Err(error), Format::Json) => {
            print_out(&document::wrong(&error.diagnostics()));
            return Ok(BAD);
        }
        (read, _) => read?,
    };
    let notes = match (app::preflight(&mut config, &load::environment), args.format) {
        // The file is valid, but a gateway would not start with it.
        (Err(error), Format::Json) => {
            print_out(&document::wrong(&[Diagnostic::error(&error)]));
            return Ok(BAD);
        }
        (Err(error), Format::Human) => {
            tell!("error: {error}");
            return Ok(BAD);
        }
        (Ok(notes), _) => notes,
    };
    let tests = config.tests.iter();
    let verdicts: Vec<Verdict> = tests.map(|test| trial::run(&config.policy, test)).collect();
    Ok(good(args, &config, &notes, &verdicts))
}

fn good(args: &Check, config: &Config, notes: &[String], verdicts: &[Verdict]) -> ExitCode {
    let failed = failed(verdicts);
    let strict = args.strict && !config.warnings.is_empty();
    match args.format {
        Format::Human => {
            for warning in &config.warnings {
                tell!("{warning}\n");
            }
            for name in &config.assumed {
                tell!("note: the environment variable `{name}` is not set: a start would refuse\n");
            }
            for note in notes {
                tell!("note: {note}\n");
            }
            print_out(&tollgate_config::report(config));
            print_out(&rooms(config));
            print_out(&tests(verdicts));
            if strict {
                let count = config.warnings.len();
                let warnings = if count == 1 { "warning" } else { "warnings" };
                tell!("tollgate check: {count} {warnings}, and --strict");
            }
        }
        Format::Json => {
            let good = failed == 0 && !strict;
            print_out(&document::checked(config, notes, verdicts, good));
        }
    }
    if failed > 0 || strict { BAD } else { GOOD }
}

/// How many callers each local limit can track at once.
fn rooms(config: &Config) -> String {
    let (policy, connections) = (&config.policy, config.server.bounds.connections);
    let mut text = String::new();
    let rules = policy.rules.iter();
    for rule in rules.filter(|rule| rule.scope != Scope::Everyone && rule.live.mode != Mode::Off) {
        if let Some(room) = app::memory::room(rule, policy) {
            let (name, memory) = (&rule.name, rule.live.memory >> 10);
            text += &format!("  {name}: room for {room} callers at once in {memory} KiB\n");
        }
    }
    if text.is_empty() {
        return text;
    }
    let total = app::memory::of_tables(&policy.limits) >> 20;
    text += &format!(
        "  all tables together, when they are full: {total} MiB; an empty table takes next to nothing\n"
    );
    let idle = app::memory::of_connections(connections) >> 20;
    text += &format!("  {connections} connections, when as many are open: {idle} MiB\n");
    if let Some(bytes) = app::memory::of_refusals(config) {
        let refusals = bytes >> 20;
        text += &format!(
            "  the last refusals and the busiest keys, which `tollgate why` and the admin API show: {refusals} MiB\n"
        );
    }
    format!("\nMemory, beyond which a newcomer takes the place and the debt of another\n{text}\n")
}

fn failed(verdicts: &[Verdict]) -> usize {
    let failed = verdicts.iter().filter(|verdict| !verdict.wrong.is_empty());
    failed.count()
}

fn tests(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for Verdict { name, line, wrong } in verdicts {
        let word = match wrong.is_empty() {
            true => "passed",
            false => "FAILED",
        };
        text += &format!("test {word}   {name} (line {line})\n");
        for wrong in wrong {
            text += &format!("              {wrong}\n");
        }
    }
    let failed = failed(verdicts);
    if !verdicts.is_empty() {
        let passed = verdicts.len() - failed;
        let tests = if passed == 1 { "test" } else { "tests" };
        text += &format!("{passed} {tests} passed, {failed} failed\n");
    }
    text
}
