//! Changes that the store does not confirm: what the command says of them, and later the audit.

use crate::servers::{self, Redis};
use serde_json::{Value, json};

use crate::harness::Gateway;
use crate::operator_words::program;

fn start(redis: &Redis, store: &str, limit: &str) -> Gateway {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that gateways share").expect("written");
    let gateway = Gateway::start_in_real_time(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         operators = [{{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }}]\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nwhen_down = \"allow\"\nkey_secret_file = '{}'\n{store}\
         [limits.api]\nrate = \"9/hour\"\nper = \"address\"\n{limit}\
         [[routes]]\nmatch = \"/\"\nupstream = \"builtin:echo\"\nlimits = [\"api\"]\n",
        redis.url(),
        secret.display(),
    ));
    servers::wait_until("the store keeps overrides", || {
        let made = tollgate(
            &gateway,
            &["key", "block", "address", "192.0.2.9", "--for", "1h"],
        );
        made.0 == Some(0)
    });
    gateway
}

/// The exit code and both outputs of a verb, with a reason where it changes something.
fn tollgate(gateway: &Gateway, args: &[&str]) -> (Option<i32>, String) {
    let admin = gateway.admin().to_string();
    let environment = [("TOLLGATE_ADMIN", &*admin), ("TOLLGATE_TOKEN", "test")];
    let reason: &[&str] = match args.first() {
        Some(&"key") => &["--reason", "r"],
        _ => &[],
    };
    let (code, out, err) = program(&[args, reason].concat(), &environment);
    (code, out + &err)
}

fn newest(gateway: &Gateway) -> Value {
    gateway.admin_get("/api/v1/audit").json()["entries"][0].clone()
}

/// The gateway says within the program's time limit that the change may have been made, and the audit does not show it
/// as one that was made. What was made before stays so.
fn is_unconfirmed(gateway: &Gateway) {
    let raise = [
        "key",
        "raise",
        "address",
        "192.0.2.7",
        "--rate",
        "80/hour",
        "--for",
        "1h",
    ];
    let (code, told) = tollgate(gateway, &raise);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("the change may have been made"), "{told}");
    assert!(!told.contains("os error"), "{told}");
    let entry = newest(gateway);
    assert_eq!(entry["outcome"], "unconfirmed", "{entry}");
    assert_eq!(entry["override_after"]["rate"], "80/hour", "{entry}");
    let (_, audit) = tollgate(gateway, &["audit"]);
    let words = "not confirmed by the store: it may or may not have been made";
    assert_eq!(audit.matches(words).count(), 1, "{audit}");
    let (code, told) = tollgate(gateway, &["key", "lift", "address", "192.0.2.7"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("is not known"), "{told}");
    assert!(!told.contains("no override and no penalty"), "{told}");
}

#[test]
fn change_with_a_store_that_hangs_is_told_and_audited_as_unconfirmed() {
    if !servers::available("redis-server") {
        return;
    }
    let redis = Redis::start();
    let gateway = start(&redis, "", "");
    assert_eq!(newest(&gateway)["outcome"], json!("made"));
    redis.process().signal("-STOP");
    is_unconfirmed(&gateway);
    redis.process().signal("-CONT");
}

#[test]
fn change_with_a_store_that_is_dead_is_told_and_audited_as_unconfirmed() {
    if !servers::available("redis-server") {
        return;
    }
    let mut redis = Redis::start();
    let gateway = start(&redis, "", "");
    redis.kill();
    is_unconfirmed(&gateway);
}

/// All steps of a change together may wait for the store longer than the program waits for the gateway.
#[test]
fn change_with_a_store_that_may_take_its_time_is_told_by_the_gateway_before_the_program_gives_up() {
    if !servers::available("redis-server") {
        return;
    }
    let redis = Redis::start();
    let penalty = "penalty = { after = \"20 refusals in 1m\", block = \"10m\" }\n";
    let gateway = start(&redis, "answer_within = \"1s\"\n", penalty);
    redis.process().signal("-STOP");
    for change in [
        &["key", "block", "address", "192.0.2.7", "--for", "1h"][..],
        &["key", "lift", "address", "192.0.2.9"],
        &["key", "reset", "address", "192.0.2.9"],
    ] {
        let (code, told) = tollgate(&gateway, change);
        assert_eq!(code, Some(1), "{told}");
        assert!(!told.contains("no response within"), "{told}");
        assert!(told.contains("limit `api`: "), "{told}");
    }
    redis.process().signal("-CONT");
}

/// The requests that wait for units get those of the reset, so that the bucket is never seen with more than before.
#[test]
fn reset_of_a_bucket_that_requests_wait_for_is_told_and_audited_as_unconfirmed() {
    let gateway = Gateway::start(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
         [limits.api]\nrate = \"4/hour\"\nburst = 1\nmax_wait = \"1h\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/\"\nupstream = \"builtin:echo\"\nlimits = [\"api\"]\n",
    );
    assert_eq!(gateway.get("/").status, 200);
    let waiting = [(); 2].map(|()| {
        let mut connection = gateway.connect();
        connection.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        connection
    });
    servers::wait_until("they wait", || {
        let metrics = gateway.admin_get("/metrics").text();
        metrics.contains("\ntollgate_requests_held 2.0\n")
    });
    let (code, told) = tollgate(&gateway, &["key", "reset", "address", "127.0.0.1"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("it may be filled later"), "{told}");
    let entry = newest(&gateway);
    assert_eq!(
        (&entry["action"], &entry["outcome"]),
        (&json!("reset"), &json!("unconfirmed")),
        "{entry}"
    );
    assert_eq!(entry["after"]["level"], Value::Null, "{entry}");
    drop(waiting);
}
