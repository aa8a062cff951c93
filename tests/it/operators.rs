//! Changes by operators over the admin listener: who may, what they do, and the record.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway};

/// Two operators: the first one's token is `test`, the second one's `read`.
const OPERATORS: &str = "operators = [\n\
    { name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" },\n\
    { name = \"bob\", token = \"sha256:3316348dbadfb7b11c7c2ea235949419e23f9fa898ad2c198f999617912a9925\", level = \"read\" },\n]\n";

const LIMITS: &str = "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
    [limits.search]\nrate = \"2/hour\"\nper = \"tenant\"\n\
    [limits.jobs]\nin_flight = 5\nper = \"tenant\"\n\
    [limits.pair]\nrate = \"100/hour\"\nper = [\"tenant\", \"address\"]\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\", \"jobs\", \"pair\"]\n";

fn start(admin: &str) -> Gateway {
    Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{admin}{LIMITS}"
    ))
}

/// The status of a request by tenant `k`.
fn ask(gateway: &Gateway) -> u16 {
    gateway.request("GET", "/", &[("x-api-key", "k")]).status
}

fn exhaust(gateway: &Gateway) {
    assert_eq!([ask(gateway), ask(gateway), ask(gateway)], [200, 200, 429]);
}

const BEARER: (&str, &str) = ("authorization", "Bearer test");
const JSON: (&str, &str) = ("content-type", "application/json");

/// A change with these headers and this body.
fn post(gateway: &Gateway, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut connection = Connection::open(gateway.admin());
    let mut head = format!(
        "POST /api/v1/keys/{path} HTTP/1.1\r\ncontent-length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    connection.send(format!("{head}\r\n{body}"));
    connection.answer("POST")
}

fn reset(gateway: &Gateway, body: &Value) -> Answer {
    post(
        gateway,
        "tenant/k/reset",
        &[BEARER, JSON],
        &body.to_string(),
    )
}

#[test]
fn reset_by_an_operator_fills_the_bucket_and_is_audited() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("audit.log");
    let gateway = start(&format!("{OPERATORS}audit = '{}'\n", file.display()));
    exhaust(&gateway);
    let tried = reset(&gateway, &json!({ "reason": "a try", "dry_run": true })).json();
    assert_eq!(
        tried["buckets"][0]["after"]["level"]["remaining"], 0,
        "{tried}"
    );
    assert_eq!(ask(&gateway), 429, "a dry run changes nothing");
    assert_eq!(
        gateway.admin_get("/api/v1/audit").json()["entries"],
        json!([])
    );

    let done = reset(&gateway, &json!({ "reason": " their job ran twice " }));
    assert_eq!(done.status, 200, "{}", done.text());
    let done = done.json();
    let buckets = done["buckets"].as_array().expect("a list");
    assert_eq!(
        buckets.len(),
        1,
        "places in flight and pairs are left alone: {done}"
    );
    assert_eq!(buckets[0]["limit"], "search");
    assert_eq!(buckets[0]["before"]["level"]["remaining"], 0);
    assert_eq!(buckets[0]["after"]["level"]["remaining"], 2);
    exhaust(&gateway);

    let mut entry = gateway.admin_get("/api/v1/audit").json()["entries"][0].clone();
    assert_eq!(entry["operator"], "ann");
    assert_eq!(entry["outcome"], "made");
    assert_eq!(entry["action"], "reset");
    assert_eq!(entry["reason"], "their job ran twice");
    assert!(
        entry["from"]
            .as_str()
            .is_some_and(|from| from.starts_with("127.0.0.1:"))
    );
    assert_eq!(entry["before"]["level"]["remaining"], 0);
    assert_eq!(entry["after"]["level"]["remaining"], 2);
    let text = std::fs::read_to_string(&file).expect("the audit");
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: Value = serde_json::from_str(&text).expect("JSON");
    // The file has what was done, and no words beside it.
    let words = entry
        .as_object_mut()
        .and_then(|entry| entry.remove("words"));
    let words = words.unwrap_or_default().to_string();
    assert!(
        words.contains("(before: 0 units, after: 2 units)"),
        "{words}"
    );
    assert_eq!(line, entry);
    assert!(
        !text.contains("\"k\""),
        "no key stands there in clear: {text}"
    );
    // The owner only: it tells who is limited.
    let mode = std::fs::metadata(&file).expect("there").mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// RFC 9110 8.3.1: a media type is compared without regard to case, and may have parameters.
#[test]
fn reset_with_any_spelling_of_the_content_type_is_made() {
    let gateway = start(OPERATORS);
    let good = json!({ "reason": "r", "dry_run": true }).to_string();
    for kind in [
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json ;charset=UTF-8",
    ] {
        let answer = post(
            &gateway,
            "tenant/k/reset",
            &[BEARER, ("content-type", kind)],
            &good,
        );
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
    }
}

#[test]
fn reset_without_permission_is_refused_and_changes_nothing() {
    let gateway = start(OPERATORS);
    exhaust(&gateway);
    let good = json!({ "reason": "r" }).to_string();
    for (headers, status) in [
        (&[JSON][..], 401),
        (&[JSON, ("authorization", "Bearer wrong")], 401),
        (&[JSON, ("authorization", "Bearer ")], 401),
        (&[JSON, ("authorization", "Basic dGVzdDp0ZXN0")], 401),
        (&[JSON, BEARER, BEARER], 401),
        (&[JSON, ("authorization", "Bearer read")], 403),
        (&[JSON, BEARER, ("origin", "http://localhost:9180")], 403),
        (&[JSON, BEARER, ("sec-fetch-site", "same-origin")], 403),
        (&[JSON, BEARER, ("host", "evil.example")], 421),
        (&[BEARER], 415),
        (&[BEARER, ("content-type", "text/plain")], 415),
    ] {
        let answer = post(&gateway, "tenant/k/reset", headers, &good);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
        if status == 401 {
            let challenge = answer.header("www-authenticate");
            assert_eq!(challenge, Some("Bearer realm=\"tollgate\""));
        }
    }
    assert_eq!(gateway.admin_get("/api/v1/keys/tenant/k/reset").status, 405);
    // These are callers of that name.
    for value in ["reset", "override", "grant"] {
        let shown = gateway.admin_get(&format!("/api/v1/keys/tenant/{value}"));
        assert_eq!(shown.status, 200, "{value}: {}", shown.text());
    }
    assert_eq!(ask(&gateway), 429);

    let without = start("");
    exhaust(&without);
    let answer = reset(&without, &json!({ "reason": "r" }));
    assert_eq!(answer.status, 403);
    assert!(answer.text().contains("no operators"), "{}", answer.text());
    assert_eq!(ask(&without), 429);
}

#[test]
fn reset_that_makes_no_sense_is_refused_with_the_reason() {
    let gateway = start(OPERATORS);
    exhaust(&gateway);
    let long = "x".repeat(201);
    for (path, body, status, words) in [
        ("tenant/k/reset", json!({}), 400, "reason"),
        ("tenant/k/reset", json!({ "reason": " " }), 400, "reason"),
        ("tenant/k/reset", json!({ "reason": long }), 400, "reason"),
        (
            "tenant/k/reset",
            json!({ "reason": "r", "limits": "x" }),
            400,
            "unknown field",
        ),
        (
            "tenant/k/reset",
            json!({ "reason": "r", "limit": "no" }),
            404,
            "no limit is called",
        ),
        (
            "tenant/k/reset",
            json!({ "reason": "r", "limit": "jobs" }),
            409,
            "nothing to fill",
        ),
        (
            "tenant/k/reset",
            json!({ "reason": "r", "limit": "pair" }),
            404,
            "not by this identity alone",
        ),
        (
            "unknown/k/reset",
            json!({ "reason": "r" }),
            404,
            "no identity is called",
        ),
        (
            "address/k/reset",
            json!({ "reason": "r" }),
            404,
            "not an IP address",
        ),
        (
            "everyone/reset",
            json!({ "reason": "r" }),
            404,
            "no limit has buckets",
        ),
        (
            "tenant/%ff/reset",
            json!({ "reason": "r" }),
            400,
            "percent-encoded",
        ),
    ] {
        let answer = post(&gateway, path, &[BEARER, JSON], &body.to_string());
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
    }
    let huge = format!("{{\"reason\":\"{}\"}}", "x".repeat(64 << 10));
    for body in ["", "{", &huge] {
        let answer = post(&gateway, "tenant/k/reset", &[BEARER, JSON], body);
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    assert_eq!(ask(&gateway), 429);
    assert_eq!(
        gateway.admin_get("/api/v1/audit").json()["entries"],
        json!([])
    );
}

#[test]
fn reset_that_cannot_be_audited_is_not_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = folder.path().join("logs");
    std::fs::create_dir(&logs).expect("made");
    let file = logs.join("audit.log");
    let gateway = start(&format!("{OPERATORS}audit = '{}'\n", file.display()));
    std::fs::remove_dir_all(&logs).expect("removed");
    exhaust(&gateway);
    let answer = reset(&gateway, &json!({ "reason": "r" }));
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("audit"), "{}", answer.text());
    assert_eq!(ask(&gateway), 429);
}

#[test]
fn reset_over_a_unix_socket_is_by_the_user_of_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("admin.sock");
    let own = std::fs::metadata(folder.path()).expect("there").uid();
    let start = |user: u32| {
        Gateway::start(&format!(
            "[admin]\nlisten = 'unix:{}'\noperators = [{{ name = \"me\", user = {user} }}]\n{LIMITS}",
            socket.display()
        ))
    };
    let admin = format!("unix:{}", socket.display());
    let command = [
        "key", "reset", "tenant", "k", "--reason", "r", "--admin", &admin,
    ];
    let gateway = start(own.wrapping_add(1));
    exhaust(&gateway);
    let (code, _, err) = tollgate(&command, None);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("Unix socket and its user"), "{err}");
    assert_eq!(ask(&gateway), 429);
    gateway.shutdown();

    let gateway = start(own);
    exhaust(&gateway);
    let dry = [&command[..], &["--dry-run"]].concat();
    let (code, out, err) = tollgate(&dry, None);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("search (local): would be filled"), "{out}");
    assert_eq!(ask(&gateway), 429);
    let (code, out, err) = tollgate(&command, None);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("search (local): filled\n") && out.contains("after: 2 units left: admitted"),
        "{out}"
    );
    exhaust(&gateway);
    let (code, _, err) = tollgate(&command, Some("wrong"));
    assert_eq!(code, Some(1), "a token that is shown must be right: {err}");
    assert_eq!(ask(&gateway), 429);
}

/// Runs the program with this token; returns its exit code and what it printed.
fn tollgate(args: &[&str], token: Option<&str>) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args(args)
        .current_dir(Path::new("/"))
        .env_remove("TOLLGATE_ADMIN")
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_TOKEN");
    if let Some(token) = token {
        command.env("TOLLGATE_TOKEN", token);
    }
    let output = command.output().expect("it runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A token that the file no longer has is worth nothing from the reload on, and a new one is at once; an operator who may
/// only read now changes nothing.
#[test]
fn reload_of_operators_revokes_tokens_and_levels_at_once() {
    let file = |operators: &str| format!("[admin]\nlisten = \"127.0.0.1:0\"\n{operators}{LIMITS}");
    let gateway = Gateway::start(&file(OPERATORS));
    let body = json!({ "reason": "r", "dry_run": true }).to_string();
    let change = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), JSON];
        post(&gateway, "tenant/k/reset", &headers, &body).status
    };
    assert_eq!([change("test"), change("read")], [200, 403]);
    let without_ann: String = OPERATORS
        .lines()
        .filter(|line| !line.contains("ann"))
        .map(|line| format!("{line}\n").replace(", level = \"read\"", ""))
        .collect();
    let words = gateway.reload(&file(&without_ann)).expect("a good file");
    assert!(words.contains("admin.operators: changed"), "{words}");
    assert!(!words.contains("wait for a restart"), "{words}");
    assert_eq!([change("test"), change("read")], [401, 200]);
    gateway.reload(&file("")).expect("a good file");
    assert_eq!(change("read"), 403, "no operators, no changes");
    gateway.reload(&file(OPERATORS)).expect("a good file");
    assert_eq!(change("test"), 200);
    // Everything else of the listener waits for a restart.
    let hosts = format!("hosts = [\"gate.internal\"]\n{OPERATORS}");
    let words = gateway.reload(&file(&hosts)).expect("a good file");
    assert!(words.contains("wait for a restart: admin"), "{words}");
}
