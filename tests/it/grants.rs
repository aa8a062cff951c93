//! More units for the window that runs: `tollgate key grant`.

use std::time::Duration;

use crate::harness::{Gateway, eventually};
use crate::operator_words::program;
use crate::rls::stores::each_server;

/// The token of the operator is `test`.
const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\noperators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

fn config(limit: &str) -> String {
    format!(
        "{ADMIN}[limits.day]\nrate = \"3/day\"\nper = \"address\"\n{limit}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"day\"]\n"
    )
}

const WINDOW: &str = "algorithm = \"fixed_window\"";

/// `tollgate key ARGS`; the exit code and what it printed.
fn key(gateway: &Gateway, args: &[&str]) -> (Option<i32>, String) {
    let admin = gateway.admin().to_string();
    let environment = [("TOLLGATE_ADMIN", &*admin), ("TOLLGATE_TOKEN", "test")];
    let (code, out, err) = program(&[&["key"], args].concat(), &environment);
    (code, out + &err)
}

fn grant(gateway: &Gateway, units: &str, more: &[&str]) -> (Option<i32>, String) {
    let grant = ["grant", "address", "127.0.0.1", units, "--in", "day"];
    key(gateway, &[&grant, more].concat())
}

fn admitted(gateway: &Gateway) -> usize {
    (0..9).filter(|_| gateway.get("/").status == 200).count()
}

#[test]
fn grant_adds_units_to_the_running_window_once_for_each_reason() {
    let gateway = Gateway::start(&config(WINDOW));
    assert_eq!(admitted(&gateway), 3);
    let (code, tried) = grant(&gateway, "2", &["--dry-run"]);
    assert_eq!(code, Some(0), "{tried}");
    assert_eq!(admitted(&gateway), 0, "a dry run adds nothing");
    let (code, done) = grant(&gateway, "2", &[]);
    assert_eq!(code, Some(0), "{done}");
    assert!(done.contains("2 units more, rate 5/day until"), "{done}");
    assert_eq!(admitted(&gateway), 2);
    let (code, again) = grant(&gateway, "2", &[]);
    assert_eq!(code, Some(0), "{again}");
    assert!(again.contains("nothing is added"), "{again}");
    assert_eq!(admitted(&gateway), 0);
    let (_, more) = grant(&gateway, "2", &["--reason", "their job ran twice"]);
    assert!(more.contains("rate 7/day"), "{more}");
    assert_eq!(admitted(&gateway), 2);
    let (_, first) = grant(&gateway, "2", &[]);
    assert!(first.contains("nothing is added"), "{first}");
    assert_eq!(admitted(&gateway), 0);
    let audit = gateway.admin_get("/api/v1/audit").json()["entries"].clone();
    assert_eq!(audit.as_array().map(Vec::len), Some(2), "{audit}");
    assert!(
        audit[1]["words"].to_string().contains("2 units more"),
        "{audit}"
    );
    // The window ends, and what was added with it.
    gateway.advance(Duration::from_secs(86_400));
    assert_eq!(admitted(&gateway), 3);
}

#[test]
fn grant_on_a_shared_store_is_for_every_gateway() {
    each_server(|shared| {
        let config = config(WINDOW) + &shared.table;
        let gateways = [Gateway::start(&config), Gateway::start(&config)];
        eventually("the store decides", || admitted(&gateways[1]) > 0);
        assert_eq!(gateways[0].get("/").status, 429);
        let (code, done) = grant(&gateways[0], "2", &[]);
        assert_eq!(code, Some(0), "{done}");
        eventually("the other gateway obeys", || {
            gateways[1].get("/").status == 200
        });
        assert_eq!(admitted(&gateways[0]), 1);
        // A request that arrives before the end may be counted in the next window; `answer_within` is 2 s.
        let overrides = gateways[0].admin_get("/api/v1/overrides").json();
        let until = overrides["overrides"][0]["until"].as_str().expect("an end");
        let until: jiff::Timestamp = until.parse().expect("a time");
        let of_minute = until.as_millisecond().rem_euclid(60_000);
        assert!((54_000..58_500).contains(&of_minute), "{until}");
    });
}

/// Each operator's grant is made whole when several come at once.
#[test]
fn grants_at_the_same_time_are_added_up() {
    let gateway = Gateway::start(&config(WINDOW));
    assert_eq!(admitted(&gateway), 3);
    std::thread::scope(|scope| {
        for reason in ["a", "b", "c", "d"] {
            let gateway = &gateway;
            scope.spawn(move || {
                let (code, done) = grant(gateway, "1", &["--reason", reason]);
                assert_eq!(code, Some(0), "{done}");
            });
        }
    });
    assert_eq!(admitted(&gateway), 4);
}

#[test]
fn grant_that_makes_no_sense_is_refused_with_the_reason() {
    let gateway = Gateway::start(&config(WINDOW));
    let refused = |gateway: &Gateway, units: &str, words: &str| {
        let (code, told) = grant(gateway, units, &[]);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains(words), "{words}: {told}");
    };
    refused(&gateway, "2", "no window runs");
    assert_eq!(admitted(&gateway), 3);
    refused(&gateway, "2 USD", "`units` is what to add, like 20");
    refused(&gateway, "0", "`units` is what to add, like 20");
    let raise = [
        "raise",
        "address",
        "127.0.0.1",
        "--rate",
        "9/day",
        "--for",
        "1h",
    ];
    let (code, raised) = key(&gateway, &[&raise[..], &["--reason", "r"]].concat());
    assert_eq!(code, Some(0), "{raised}");
    refused(&gateway, "2", "an override is in force");
    let bucket = Gateway::start(&config(""));
    refused(&bucket, "2", "has no window that ends");
}
