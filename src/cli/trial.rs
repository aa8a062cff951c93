//! Runs the `[[tests]]` of a file in virtual time with the production code: the policy matches,
//! identifies and prices, the limiter decides; only the clock is set by the test.
//!
//! Every test starts with fresh buckets, at a fixed time that does not depend on the current date.
//! A request ends at once, unless the test sets its duration with `for`: a concurrency limit then
//! counts overlapping requests. Limits of a shared store are decided here by the same arithmetic.
//! The upstream responds with the status that the test gives, and the production code settles the
//! charge accordingly; its responses have no headers and no body, so an estimate stays charged.

use tollgate_config::settings::TestCase;
use tollgate_limit::Micros;
use tollgate_policy::Policy;

use play::{Tally, play};

mod play;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) name: String,
    /// The line of the file on which it begins.
    pub(super) line: usize,
    /// The differences from the expected result; empty: it passed.
    pub(super) wrong: Vec<String>,
}

pub(super) fn run(policy: &Policy, test: &TestCase) -> Verdict {
    let wrong = match play(policy, test) {
        Ok(tally) => compared(test, tally),
        Err(what) => vec![what],
    };
    Verdict {
        name: test.name.clone(),
        line: test.line,
        wrong,
    }
}

/// How the results of a test differ from what it expects.
fn compared(test: &TestCase, tally: Tally) -> Vec<String> {
    let expect = &test.expect;
    let mut wrong = Vec::new();
    let mut compare = |what: &str, expected: Option<String>, got: Option<String>, besides: &str| {
        if let Some(expected) = expected
            && got.as_ref() != Some(&expected)
        {
            let got = got.unwrap_or_else(|| "none".to_owned());
            wrong.push(format!("{what}: expected {expected}, got {got}{besides}"));
        }
    };
    let number = |count: Option<u64>| count.map(|count| count.to_string());
    let turned_away: String = tally
        .turned_away
        .iter()
        .map(|(status, count)| format!(", and {count} with status {status}"))
        .collect();
    for (what, expected, got, besides) in [
        ("allowed", expect.allowed, tally.allowed, &*turned_away),
        ("refused", expect.refused, tally.refused, &*turned_away),
        (
            "admitted over the limit",
            expect.over_limit,
            tally.over_limit,
            "",
        ),
    ] {
        compare(what, number(expected), number(Some(got)), besides);
    }
    // The value that a caller receives: whole seconds, rounded up.
    let wait = |wait: Option<Micros>| wait.map(|wait| format!("{}s", wait.ceil_secs()));
    let (expected, got) = (wait(expect.retry_after), wait(tally.retry_after));
    compare("retry_after", expected, got, "");
    let expected = number(expect.status.map(u64::from));
    let got = number(tally.status.map(u64::from));
    compare("status of the last response", expected, got, "");
    let expected = expect.limit.clone();
    compare("limit that refused last", expected, tally.limit, "");
    wrong
}
