//! Replay against service: the same requests through a live gateway and through its log.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Gateway, eventually};

/// Every algorithm on a route of its own, several limits together, tiers, failures, prices.
const LIMITS: &str = r#"
    [address]
    trusted_proxies = ["127.0.0.0/8"]

    [identities.tenant]
    key = ["header:x-api-key"]
    when_missing = "use:address"
    when_unknown = "accept"

    [identities.tenant.callers]
    # sha256 of "test"
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" = { name = "acme", tier = "pro" }

    [tiers.pro]
    bucket = { rate = "60/minute", burst = 9 }

    [limits]
    bucket = { rate = "20/minute", burst = 3, per = "tenant" }
    steps = { rate = "4/10s", burst = 6, algorithm = "interval", per = "address" }
    hit = { rate = "5/10s", algorithm = "fixed_window", per = "address" }
    clock = { rate = "5/10s", algorithm = "fixed_window", window = { align = "clock" }, per = "address" }
    estimate = { rate = "6/10s", algorithm = "sliding_window", per = "address" }
    exact = { rate = "6/10s", algorithm = "sliding_log", per = "address" }
    places = { in_flight = 1, per = "everyone" }
    failures = { rate = "3/minute", per = "address", count = "failures" }
    priced = { rate = "20/10s", burst = 30, per = "tenant", cost = { header = "x-cost", default = 1, max = 9 } }
    all = { rate = "40/10s", burst = 25, per = "everyone" }
    watched = { rate = "1/minute", per = "address", mode = "shadow" }

    [[routes]]
    match = "/bucket"
    upstream = "builtin:echo"
    limits = ["bucket", "all"]
    [[routes]]
    match = "/steps"
    upstream = "builtin:echo"
    limits = ["steps", "watched"]
    [[routes]]
    match = "/windows"
    upstream = "builtin:echo"
    limits = ["hit", "clock", "estimate", "exact"]
    [[routes]]
    match = "/priced"
    upstream = "builtin:echo"
    limits = ["priced", "all"]
    [[routes]]
    match = "/flight"
    upstream = "builtin:echo"
    limits = ["places"]
    [[routes]]
    match = "/failing"
    respond = { status = 403, body = "no" }
    limits = ["failures"]
"#;

#[test]
fn replay_of_own_log_gives_every_verdict_of_the_live_gateway() {
    for keys in ["hashed", "plain"] {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("access.log");
        let gateway = Gateway::start(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
             [log]\naccess = '{}'\nkeys = \"{keys}\"\n{LIMITS}",
            log.display()
        ));
        let mut random = fastrand::Rng::with_seed(7);
        let mut connection = gateway.connect();
        let mut sent = 0;
        let mut refused = 0;
        for _ in 0..400 {
            gateway.advance(Duration::from_micros(random.u64(0..300_000)));
            let path = [
                "/bucket", "/steps", "/windows", "/priced", "/failing", "/none",
            ][random.usize(0..6)];
            let client = ["192.0.2.1", "192.0.2.2", "198.51.100.200"][random.usize(0..3)];
            let cost = random.u8(1..9).to_string();
            let mut headers = vec![("x-forwarded-for", client), ("x-cost", cost.as_str())];
            match random.usize(0..3) {
                0 => headers.push(("x-api-key", "test")),
                1 => headers.push(("x-api-key", "other")),
                _ => {}
            }
            let status = connection.request("GET", path, &headers).status;
            refused += u64::from(status == 429);
            sent += 1;
        }
        // Two at once on a single place, and one after it.
        let mut holder = gateway.connect();
        holder.send("POST /flight HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
        holder.until("200");
        gateway.advance(Duration::from_secs(1));
        assert_eq!(connection.request("GET", "/flight", &[]).status, 429);
        gateway.advance(Duration::from_secs(1));
        holder.send("cde");
        holder.until("cde");
        gateway.advance(Duration::from_secs(1));
        assert_eq!(connection.request("GET", "/flight", &[]).status, 200);
        sent += 3;
        refused += 1;
        eventually("the log is written", || {
            fs::read_to_string(&log).unwrap_or_default().lines().count() == sent
        });
        assert!(refused > 60, "{refused}");

        let file = folder.path().join("gateway.toml");
        fs::write(&file, LIMITS).expect("written");
        let report = json(folder.path(), &["replay", "access.log", "--format", "json"]);
        assert_eq!(report["lines"], sent);
        assert_eq!(report["unreadable"], 0);
        assert_eq!(report["recorded"]["differ"], 0, "{keys}: {report:#}");
        assert_eq!(report["recorded"]["refused"], refused);
        for limit in report["limits"].as_array().expect("limits") {
            let name = limit["name"].as_str().expect("a name");
            assert_eq!(
                limit["refused"],
                logged_refusals(&log, name),
                "{keys} {name}: {report:#}"
            );
        }
        // What is not the same file is not judged the same.
        fs::write(
            &file,
            LIMITS.replace("rate = \"20/minute\"", "rate = \"200/minute\""),
        )
        .expect("written");
        let report = json(folder.path(), &["replay", "access.log", "--format", "json"]);
        assert_ne!(report["recorded"]["differ"], 0);
    }
}

/// Requests that a limit could not pay, by the log.
fn logged_refusals(log: &Path, name: &str) -> usize {
    let text = fs::read_to_string(log).expect("the log");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines
        .filter(|line| {
            let limits = line["limits"].as_array().cloned().unwrap_or_default();
            let lost = |limit: &Value| {
                limit["name"] == name
                    && matches!(limit["outcome"].as_str(), Some("deny" | "shadow_deny"))
            };
            limits.iter().any(lost)
        })
        .count()
}

#[test]
fn replay_of_a_sampled_log_is_not_judged() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let limits = "[limits.one]\nrate = \"1/minute\"\nper = \"everyone\"\n\
                  [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n";
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\nsample = \"10% of requests\"\n[limits.one]\nrate = \"1000/minute\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n",
        log.display()
    ));
    let mut connection = gateway.connect();
    for _ in 0..300 {
        connection.request("GET", "/", &[]);
    }
    gateway.shutdown();
    fs::write(folder.path().join("gateway.toml"), limits).expect("written");
    let output = run(
        folder.path(),
        &[
            "replay",
            "access.log",
            "--format",
            "json",
            "--fail-if",
            "refused > 99%",
        ],
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        report["limits"][0]["not_judged"]
            .as_str()
            .is_some_and(|why| why.contains("not whole")),
        "{report:#}"
    );
    assert_eq!(
        output.status.code(),
        Some(1),
        "a condition never passes on what is not judged"
    );
}

#[test]
fn replay_exit_codes_and_words_for_logs_that_say_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = "[limits.one]\nrate = \"1/minute\"\nper = \"address\"\n\
                  [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n";
    let write =
        |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).expect("written");
    write("gateway.toml", limits.as_bytes());
    write("less.toml", limits.replace("1/minute", "1/hour").as_bytes());
    write("bad.toml", b"[limits");
    write("empty.log", b"");
    let two = ["05:03", "15:03"]
        .map(|at| format!("10.0.0.1 - - [17/May/2015:10:{at} +0000] \"GET / HTTP/1.1\" 200 1\n"));
    write("two.log", two.concat().as_bytes());
    write(
        "binary.log",
        &[0, 159, 146, 150, 10, 0, 7, 10, 255].repeat(1_000),
    );
    write(
        "good.log",
        b"10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n",
    );
    for (arguments, code) in [
        (&["replay", "empty.log"][..], 1),
        (&["replay", "binary.log"], 1),
        (&["replay", "missing.log"], 1),
        (&["suggest", "empty.log"], 1),
        (&["replay", "empty.log", "--fail-if", "refused > 100%"], 1),
        (&["replay", "good.log", "--fail-if", "refused > 0"], 0),
        (&["replay", "good.log", "--fail-if", "admitted > 0"], 2),
        (
            &["diff", "gateway.toml", "less.toml", "--log", "two.log"],
            1,
        ),
        (
            &[
                "diff",
                "gateway.toml",
                "less.toml",
                "--log",
                "two.log",
                "--fail-if",
                "keys_newly_refused > 0",
            ],
            1,
        ),
        (
            &[
                "diff",
                "gateway.toml",
                "less.toml",
                "--log",
                "two.log",
                "--fail-if",
                "keys_newly_refused > 1",
            ],
            0,
        ),
        (
            &[
                "diff",
                "less.toml",
                "gateway.toml",
                "--log",
                "two.log",
                "--fail-if",
                "newly_refused > 0",
            ],
            0,
        ),
        (
            &[
                "diff",
                "gateway.toml",
                "bad.toml",
                "--log",
                "two.log",
                "--fail-if",
                "refused > 100%",
            ],
            1,
        ),
        (
            &[
                "diff",
                "gateway.toml",
                "less.toml",
                "--log",
                "empty.log",
                "--fail-if",
                "refused > 100%",
            ],
            1,
        ),
        (
            &[
                "diff",
                "gateway.toml",
                "less.toml",
                "--fail-if",
                "newly_refused > 0",
            ],
            2,
        ),
        (
            &[
                "diff",
                "gateway.toml",
                "less.toml",
                "--log",
                "two.log",
                "--fail-if",
                "refused",
            ],
            2,
        ),
        (&["replay", "good.log", "--zone", "Mars/Base"], 2),
        (&["replay", "good.log", "--fields", "cost=x"], 2),
        (&["replay", "good.log", "--log-format", "$status"], 2),
        (&["replay"], 2),
        (&["suggest", "good.log", "--rates", "1/fortnight"], 2),
        (&["suggest", "good.log", "--per", "header:x-api-key"], 1),
    ] {
        let output = run(folder.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    let output = run(
        folder.path(),
        &["suggest", "good.log", "--per", "header:x-api-key"],
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("no line of the log has the header `x-api-key`"),
        "{said}"
    );
}

#[test]
fn diff_reads_a_log_by_the_same_options_as_replay() {
    let folder = tempfile::tempdir().expect("a folder");
    let write =
        |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    let file = |burst: u32| {
        format!(
            "[limits.one]\nrate = \"1/minute\"\nburst = {burst}\nper = \"address\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n"
        )
    };
    write("old.toml", &file(3));
    write("new.toml", &file(1));
    write(
        "odd.csv",
        "when,who\n2015-05-17 10:00:00,192.0.2.1\n2015-05-17 10:00:01,192.0.2.1\n2015-05-17 10:00:02,192.0.2.1\n",
    );
    let with = |more: &[&'static str]| {
        let arguments = ["diff", "old.toml", "new.toml", "--format", "json"];
        run(folder.path(), &[&arguments[..], more].concat())
    };
    let fields = ["--log", "odd.csv", "--fields", "time=when,client=who"];
    let output = with(&[&fields[..], &["--zone", "Europe/Berlin"]].concat());
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["log"]["newly_refused"]["requests"], 2, "{said:#}");
    assert_eq!(said["log"]["from"], "2015-05-17T08:00:00Z", "{said:#}");
    // Without the mapping nothing can be read, and without a log there is nothing to read by it.
    assert_eq!(with(&["--log", "odd.csv"]).status.code(), Some(1));
    let output = with(&["--zone", "UTC"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("need --log"));
    let output = with(&["--log", "odd.csv", "--longest", "soon"]);
    assert_eq!(output.status.code(), Some(2));
}

pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("TOLLGATE_CONFIG")
        .output()
        .expect("it runs")
}

#[track_caller]
pub(crate) fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = run(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}
