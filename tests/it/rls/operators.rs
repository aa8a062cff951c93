//! Operators and the descriptors of Envoy's rate limit service: what is shown of them, and that they are reset, raised and
//! blocked as every other caller.

use std::time::Duration;

use serde_json::{Value, json};

use super::stores::{Shared, StoreKind};
use super::{Client, is_ok};
use crate::harness::{Gateway, eventually};
use crate::operator_words::program;

/// The token is `test`.
const CONFIG: &str = r#"
[server]
workers = 2

[admin]
listen = "127.0.0.1:0"
operators = [{ name = "ann", token = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" }]

[decide]
listen = "grpc://127.0.0.1:0"

[limits.login]
rate = "2/hour"
per = "descriptor"

[limits.other]
rate = "2/hour"
per = "descriptor"

[limits.total]
rate = "100/hour"
per = "everyone"

[limits.pair]
rate = "100/hour"
per = ["descriptor", "address"]

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "remote_address" }, { key = "path", value = "/login*", share_threshold = true }]
limits = ["login", "total", "pair"]

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "user" }]
limits = ["other"]
"#;

/// The descriptor as Envoy sends it.
const ASKED: &str = "remote_address=192.0.2.7 path=/login?1";

/// The same as an operator gives it; all paths that the pattern matches share one bucket.
const GIVEN: [&str; 4] = [
    "descriptor",
    "edge",
    "remote_address=192.0.2.7",
    "path=/login",
];

/// Runs `tollgate key VERB CALLER ARGS`; returns its output if it says that all was done.
fn key(gateway: &Gateway, verb: &str, caller: &[&str], args: &[&str]) -> Result<String, String> {
    let admin = gateway.admin().to_string();
    let environment = [("TOLLGATE_ADMIN", &*admin), ("TOLLGATE_TOKEN", "test")];
    let args = [&["key", verb], caller, args].concat();
    let (code, out, err) = program(&args, &environment);
    match code {
        Some(0) => Ok(out),
        _ => Err(err),
    }
}

/// How many requests of `most` are admitted.
fn admitted(client: &mut Client, asked: &str, most: usize) -> usize {
    (0..most).filter(|_| is_ok(&client.ask(&[asked]))).count()
}

/// The only key that is refused under a limit, or near it.
fn only_key(gateway: &Gateway, limit: &str, counted: &str) -> Value {
    let told = gateway.admin_get(&format!("/api/v1/limits/{limit}/keys?{counted}"));
    let told = told.json();
    assert_eq!(told["keys"].as_array().map(Vec::len), Some(1), "{told}");
    told["keys"][0].clone()
}

#[test]
fn rls_descriptor_that_is_refused_is_told_by_limits_decisions_top_and_near() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    assert_eq!(admitted(&mut client, ASKED, 2), 2);
    let near = only_key(&gateway, "login", "near");
    assert_eq!(
        near["key"],
        "domain edge + remote_address a key + path a key"
    );
    let refused = client.ask(&[ASKED]);
    assert!(!is_ok(&refused), "{refused}");
    let known = only_key(&gateway, "login", "refused");
    assert_eq!(
        (&known["name"], &known["count"]),
        (&near["name"], &json!(1))
    );
    let name = known["name"].as_str().expect("a name");

    let body = refused["rawBody"].as_str().expect("text");
    let body: Value = serde_json::from_str(body).expect("JSON");
    let id = body["decision_id"].as_str().expect("an id");
    let admin = gateway.admin().to_string();
    let ask = |args: &[&str]| program(args, &[("TOLLGATE_ADMIN", &admin)]);
    let (code, out, err) = ask(&["why", id]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(name) && out.contains("login"), "{out}");
    let (code, out, err) = ask(&["top", "--once"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(name), "{out}");
}

#[test]
fn rls_descriptor_is_shown_reset_raised_and_blocked_as_every_caller() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    assert_eq!(admitted(&mut client, ASKED, 3), 2);
    let shown = key(&gateway, "show", &GIVEN, &[]).expect("it is shown");
    let words = " (domain edge + remote_address a key + path a key)";
    assert!(shown.contains(words), "{shown}");
    assert!(shown.contains("limit      login (local)\n"), "{shown}");
    // Another rule's limit has no bucket of it.
    assert!(!shown.contains("limit      other"), "{shown}");
    for other in ["limit `total`: ", "limit `pair`: "] {
        assert!(shown.contains(&format!("note       {other}")), "{shown}");
    }

    let reason = ["--reason", "ticket 4711"];
    let tried = key(
        &gateway,
        "reset",
        &GIVEN,
        &[&reason[..], &["--dry-run"]].concat(),
    );
    assert!(tried.expect("a dry run").contains("would be filled"));
    assert_eq!(admitted(&mut client, ASKED, 1), 0);
    key(&gateway, "reset", &GIVEN, &reason).expect("it is filled");
    assert_eq!(admitted(&mut client, ASKED, 3), 2);

    let for_a_minute = [&reason[..], &["--for", "1m"]].concat();
    let raise = [&for_a_minute[..], &["--unlimited"]].concat();
    key(&gateway, "raise", &GIVEN, &raise).expect("it is raised");
    assert_eq!(admitted(&mut client, ASKED, 10), 10);
    let others = "remote_address=192.0.2.8 path=/login";
    assert_eq!(admitted(&mut client, others, 3), 2, "another caller");
    gateway.advance(Duration::from_secs(60));
    assert_eq!(admitted(&mut client, ASKED, 1), 0, "its end fills nothing");

    key(&gateway, "reset", &GIVEN, &reason).expect("it is filled");
    key(&gateway, "block", &GIVEN, &for_a_minute).expect("it is blocked");
    assert_eq!(admitted(&mut client, ASKED, 1), 0);
    key(&gateway, "lift", &GIVEN, &reason).expect("it is lifted");
    assert_eq!(admitted(&mut client, ASKED, 3), 2);
    let audit = gateway.admin_get("/api/v1/audit").json();
    let entries = audit["entries"].as_array().expect("a list");
    assert!(
        entries.iter().all(|entry| entry["limit"] == "login"),
        "{audit}"
    );
    // The end of the raise is a line that no operator made.
    let made = entries.iter().filter(|entry| entry["action"] != "end");
    assert_eq!(made.count(), 5, "{audit}");
}

#[test]
fn rls_descriptor_that_no_rule_matches_is_refused_with_the_reason() {
    let gateway = Gateway::start(CONFIG);
    for (caller, reason) in [
        (
            &["descriptor"][..],
            "no rule for descriptors has the domain ``",
        ),
        (&["descriptor", "moon", "user=a"], "the domain `moon`"),
        (
            &["descriptor", "edge", "user"],
            "`user` is no entry of a descriptor",
        ),
        (
            &["descriptor", "edge", "path=/login"],
            "no rule of domain `edge` matches",
        ),
        (&["descriptor", "edge"], "no rule of domain `edge` matches"),
    ] {
        let error = key(&gateway, "show", caller, &[]).expect_err("there is none");
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn rls_descriptor_changed_on_one_gateway_of_a_redis_is_changed_on_the_other() {
    let Some(shared) = StoreKind::Redis.start().map(Shared::new) else {
        return;
    };
    let config = format!("{CONFIG}{}", shared.table);
    let gateways = [(); 2].map(|()| Gateway::start_in_real_time(&config));
    let [one, two] = &gateways;
    let (Some(mut first), Some(mut other)) = (Client::of(one), Client::of(two)) else {
        return;
    };
    assert_eq!(admitted(&mut first, ASKED, 2), 2);
    assert_eq!(admitted(&mut other, ASKED, 1), 0, "they share the bucket");
    let name = only_key(two, "login", "refused")["name"].clone();
    let name = name.as_str().expect("a name");

    // Both gateways name it so.
    let shown = key(one, "show", &GIVEN, &[]).expect("it is shown");
    assert!(shown.contains(&format!("key        {name} (")), "{shown}");
    let reason = ["--reason", "ticket 4711", "--limit", "login"];
    key(two, "reset", &[name], &reason).expect("it is filled");
    eventually("it is admitted", || is_ok(&first.ask(&[ASKED])));

    let raise = [&reason[..], &["--for", "1h", "--unlimited"]].concat();
    key(one, "raise", &GIVEN, &raise).expect("it is raised");
    eventually("it is raised on the other", || {
        admitted(&mut other, ASKED, 5) == 5
    });
    let block = [&reason[..], &["--for", "1h"]].concat();
    key(two, "block", &[name], &block).expect("it is blocked");
    eventually("it is blocked on the other", || {
        !is_ok(&first.ask(&[ASKED]))
    });
    let shown = key(one, "show", &GIVEN, &[]).expect("it is shown");
    assert!(shown.contains("refused: blocked until "), "{shown}");
}
