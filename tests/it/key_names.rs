//! Callers that an operator gives by their names in logs: the gateway does not show the keys themselves.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Connection, Gateway};
use crate::operator_words::program;

/// The token is `test`, and so is the key of `bolt`.
const CONFIG: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n\
    operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
    [identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
    [identities.customer]\nkey = [\"header:x-customer\"]\nwhen_missing = \"skip\"\nwhen_unknown = \"refuse\"\n\
    [identities.customer.callers]\n\
    \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = { name = \"bolt\", tier = \"pro\" }\n\
    [tiers.pro]\nown = { rate = \"7/hour\" }\n\
    [limits.search]\nrate = \"2/hour\"\nper = \"tenant\"\n\
    [limits.daily]\nrate = \"100/hour\"\nper = \"tenant\"\n\
    [limits.pair]\nrate = \"1/hour\"\nper = [\"tenant\", \"address\"]\n\
    [limits.own]\nrate = \"5/hour\"\nper = \"customer\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\", \"own\"]\n\
    [[routes]]\nmatch = \"/pair\"\nupstream = \"builtin:echo\"\nlimits = [\"pair\"]\n";

fn ask(gateway: &Gateway, path: &str, key: &str) -> u16 {
    gateway.request("GET", path, &[("x-api-key", key)]).status
}

/// How many requests of `most` are admitted.
fn admitted(gateway: &Gateway, path: &str, key: &str, most: usize) -> usize {
    (0..most).filter(|_| ask(gateway, path, key) == 200).count()
}

fn tollgate(gateway: &Gateway, args: &[&str]) -> (Option<i32>, String, String) {
    let admin = gateway.admin().to_string();
    program(
        args,
        &[("TOLLGATE_ADMIN", &admin), ("TOLLGATE_TOKEN", "test")],
    )
}

/// The same with `--reason`; it must be done.
fn change(gateway: &Gateway, args: &[&str]) -> String {
    let (code, out, err) = tollgate(gateway, &[args, &["--reason", "ticket"]].concat());
    assert_eq!(code, Some(0), "{err}");
    out
}

/// The name of the only key that is refused under a limit.
fn refused(gateway: &Gateway, limit: &str) -> String {
    let told = gateway.admin_get(&format!("/api/v1/limits/{limit}/keys"));
    let told = told.json();
    assert_eq!(told["keys"].as_array().map(Vec::len), Some(1), "{told}");
    told["keys"][0]["name"].as_str().expect("a name").to_owned()
}

#[test]
fn key_name_of_a_refused_caller_is_shown_reset_raised_blocked_and_lifted() {
    let gateway = Gateway::start(CONFIG);
    assert_eq!(admitted(&gateway, "/", "secret", 3), 2);
    let name = refused(&gateway, "search");
    let (code, out, err) = tollgate(&gateway, &["key", "show", &name]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains(&format!("key        {name} (a key)\n")),
        "{out}"
    );
    assert!(!out.contains("secret"), "{out}");
    // Every limit by the same identity has a bucket of this key; the others have none.
    for (limit, is_shown) in [
        ("search", true),
        ("daily", true),
        ("pair", false),
        ("own", false),
    ] {
        assert_eq!(
            out.contains(&format!("limit      {limit} ")),
            is_shown,
            "{out}"
        );
    }
    let out = change(&gateway, &["key", "reset", &name, "--dry-run"]);
    assert!(out.contains("would be filled"), "{out}");
    assert_eq!(ask(&gateway, "/", "secret"), 429);
    change(&gateway, &["key", "reset", &name]);
    assert_eq!(admitted(&gateway, "/", "secret", 3), 2);
    let raise = [
        "key", "raise", &name, "--limit", "search", "--rate", "9/hour", "--burst", "9",
    ];
    change(&gateway, &[&raise[..], &["--for", "1h"]].concat());
    change(&gateway, &["key", "reset", &name, "--limit", "search"]);
    assert_eq!(admitted(&gateway, "/", "secret", 20), 9);
    change(&gateway, &["key", "block", &name, "--for", "1h"]);
    change(&gateway, &["key", "reset", &name]);
    assert_eq!(ask(&gateway, "/", "secret"), 429);
    change(&gateway, &["key", "lift", &name]);
    assert_eq!(admitted(&gateway, "/", "secret", 3), 2);
    let audit = gateway.admin_get("/api/v1/audit").json();
    let all = audit["entries"].as_array().expect("a list");
    assert!(
        all.iter().all(|entry| entry["name"] == name.as_str()),
        "{audit}"
    );
}

#[test]
fn key_name_of_a_key_of_several_parts_changes_that_bucket_alone() {
    let gateway = Gateway::start(CONFIG);
    assert_eq!(admitted(&gateway, "/pair", "secret", 2), 1);
    assert_eq!(admitted(&gateway, "/pair", "other", 1), 1);
    let name = refused(&gateway, "pair");
    let out = change(&gateway, &["key", "reset", &name]);
    assert!(out.contains("limit      pair (local): filled"), "{out}");
    assert_eq!(admitted(&gateway, "/pair", "secret", 2), 1);
    assert_eq!(ask(&gateway, "/pair", "other"), 429);
}

#[test]
fn key_name_of_a_listed_caller_is_known_before_it_is_refused() {
    let gateway = Gateway::start(CONFIG);
    let shown = gateway.admin_get("/api/v1/keys/customer/bolt").json();
    let name = shown["name"].as_str().expect("a name");
    let named = gateway.admin_get(&format!("/api/v1/keys/{name}")).json();
    assert_eq!(
        (&named["caller"], &named["tier"]),
        (&json!("bolt"), &json!("pro"))
    );
    assert_eq!(
        named["buckets"], shown["buckets"],
        "under the numbers of its tier"
    );
}

#[test]
fn key_name_that_no_caller_has_is_refused_with_the_reason() {
    let gateway = Gateway::start(CONFIG);
    let none = "0123456789abcdef";
    for args in [
        &["key", "show", none][..],
        &["key", "reset", none, "--reason", "r"],
        &["key", "block", none, "--for", "1h", "--reason", "r"],
        &[
            "key",
            "raise",
            none,
            "--unlimited",
            "--for",
            "1h",
            "--reason",
            "r",
        ],
        &["key", "lift", none, "--reason", "r"],
    ] {
        let (code, out, err) = tollgate(&gateway, args);
        assert_eq!((code, &*out), (Some(1), ""), "{args:?}");
        let words = format!("no caller that this gateway knows has the name `{none}` in logs");
        assert!(err.contains(&words), "{err}");
    }
    // A key may look like a name.
    let (code, out, err) = tollgate(&gateway, &["key", "show", "tenant", none]);
    assert_eq!(code, Some(0), "{err}");
    assert!(!out.contains("note"), "{out}");
    let (_, _, err) = tollgate(&gateway, &["key", "show", "0123456789ABCDEF"]);
    assert!(err.contains("no identity is called"), "{err}");
}

#[test]
fn key_name_of_a_refusal_is_known_as_long_as_it_can_be_explained() {
    let gateway = Gateway::start(CONFIG);
    assert_eq!(admitted(&gateway, "/", "secret", 3), 2);
    let name = refused(&gateway, "search");
    // The counts of refusals are forgotten by now, the last refusals are not.
    gateway.advance(Duration::from_secs(3_000));
    let counts = gateway.admin_get("/api/v1/limits/search/keys").json();
    assert_eq!(counts["found"], 0, "{counts}");
    let named = gateway.admin_get(&format!("/api/v1/keys/{name}")).json();
    assert_eq!(named["buckets"][0]["limit"], "search", "{named}");
}

/// An override outlasts what the gateway remembers of the key: the list of overrides has its name.
#[test]
fn key_name_of_an_override_lifts_it_when_the_key_is_forgotten() {
    let gateway = Gateway::start(CONFIG);
    let block = [
        "key", "block", "tenant", "secret", "--limit", "search", "--for", "1h",
    ];
    change(&gateway, &block);
    let listed = gateway.admin_get("/api/v1/overrides").json();
    let name = listed["overrides"][0]["name"].as_str().expect("a name");
    let (code, _, err) = tollgate(&gateway, &["key", "show", name]);
    assert_eq!(code, Some(1), "it was never refused");
    assert!(err.contains("no caller that this gateway knows"), "{err}");
    let other = ["key", "lift", name, "--limit", "daily", "--reason", "r"];
    assert_eq!(tollgate(&gateway, &other).0, Some(1));
    let out = change(&gateway, &["key", "lift", name, "--dry-run"]);
    assert!(out.contains("before: blocked until "), "{out}");
    assert_eq!(gateway.admin_get("/api/v1/overrides").json(), listed);
    change(&gateway, &["key", "lift", name]);
    assert_eq!(ask(&gateway, "/", "secret"), 200);
    let audit = gateway.admin_get("/api/v1/audit").json();
    assert_eq!(audit["entries"][0]["action"], "lift", "{audit}");
    assert_eq!(
        audit["entries"][0]["override_before"]["block"], true,
        "{audit}"
    );
    assert_eq!(
        tollgate(&gateway, &["key", "lift", name, "--reason", "r"]).0,
        Some(1)
    );
}

#[test]
fn key_name_without_permission_changes_nothing() {
    let gateway = Gateway::start(CONFIG);
    assert_eq!(admitted(&gateway, "/", "secret", 3), 2);
    let name = refused(&gateway, "search");
    let body = json!({ "reason": "r" }).to_string();
    let mut connection = Connection::open(gateway.admin());
    connection.send(format!(
        "POST /api/v1/keys/{name}/reset HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(connection.answer("POST").status, 401);
    assert_eq!(ask(&gateway, "/", "secret"), 429);
    let audit: Value = gateway.admin_get("/api/v1/audit").json();
    assert_eq!(audit["entries"], json!([]));
}
