//! How many lines of a combined log are read in a second of CPU time, alone, with the frontier, and
//! judged.
//!
//! `cargo bench -p tollgate-replay`

use std::fmt::Write;

use rustix::time::{ClockId, clock_gettime};
use tollgate_limit::Timestamp;
use tollgate_replay::Traffic;
use tollgate_replay::log::{Options, read_text};
use tollgate_replay::suggest::{Ask, suggest};

fn main() {
    let mut text = String::new();
    for number in 0..LINES {
        let second = number / 50;
        let _ = writeln!(
            text,
            "10.{}.{}.{} - - [{:02}/May/2015:{:02}:{:02}:{:02} +0000] \"GET /presentations/{number}/images/kibana-search.png HTTP/1.1\" 200 {} \"http://semicomplete.com/presentations/\" \"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko)\"",
            number % 3,
            number * 7 % 251,
            number * 13 % 199,
            17 + second / 86_400,
            second / 3_600 % 24,
            second / 60 % 60,
            second % 60,
            number % 9_999
        );
    }
    let options = Options::default();
    measure("read", || {
        let survey = read_text(text.as_bytes(), &options, |_, _| {});
        assert_eq!(survey.requests, LINES);
    });
    let quick = tollgate_config::quick("builtin:echo", "1/second", "address");
    let config =
        tollgate_config::parse(&quick, "bench", &|_| None, Timestamp::default()).expect("a policy");
    measure("read and frontier", || {
        let traffic = Traffic::read_text(text.as_bytes(), &options, &[&config.policy]);
        let ask = Ask {
            rates: Vec::new(),
            refuse: 1_000,
            rule: 0,
            today: None,
        };
        let suggestion = suggest(&traffic, "address", ask).expect("a frontier");
        assert_eq!(suggestion.requests, LINES);
    });
    measure("read and replay", || {
        let mut traffic = Traffic::read_text(text.as_bytes(), &options, &[&config.policy]);
        let outcome = traffic.replay();
        assert_eq!(outcome.admitted + outcome.refused, LINES);
    });
}

fn measure(what: &str, run: impl Fn()) {
    run();
    let before = cpu();
    run();
    let took = cpu() - before;
    println!("{what}: {} lines a second", LINES * 1_000_000 / took.max(1));
}

/// CPU time of this process, microseconds: other work on the machine does not count.
fn cpu() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000
}

const LINES: u64 = 1_000_000;
