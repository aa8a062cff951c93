//! Penalties: a key that a limit refuses too often is blocked, and says so everywhere.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::servers::wait_until;

use crate::events::Reader;
use crate::harness::Gateway;
use crate::harness::client::Answer;
use crate::operator_words::program;

/// The SHA-256 of `test`.
const OPERATORS: &str = "operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

const LIMITS: &str = "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
    [limits.search]\nrate = \"2/minute\"\nper = \"tenant\"\npenalty = { after = \"3 refusals in 1m\", block = \"10m\" }\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\"]\n";

fn start(more: &str) -> Gateway {
    Gateway::start(&format!(
        "{more}[admin]\nlisten = \"127.0.0.1:0\"\n{OPERATORS}{LIMITS}"
    ))
}

fn ask_as(gateway: &Gateway, key: &str) -> Answer {
    gateway.request("GET", "/", &[("x-api-key", key)])
}

/// Two admissions, two refusals, and the one that blocks the key.
fn provoke(gateway: &Gateway) -> Answer {
    let first = [(); 4].map(|()| ask_as(gateway, "k").status);
    assert_eq!(first, [200, 200, 429, 429]);
    ask_as(gateway, "k")
}

fn change(gateway: &Gateway, method: &str, body: &Value) -> Answer {
    gateway.change(method, "tenant/k/override", body)
}

/// The lines of the audit, the oldest first, once there are so many.
fn audit(gateway: &Gateway, count: usize) -> Vec<Value> {
    let read = || {
        let told = gateway.admin_get("/api/v1/audit").json();
        told["entries"].as_array().expect("a list").clone()
    };
    wait_until("lines of the audit", || read().len() >= count);
    let mut lines = read();
    lines.reverse();
    lines
}

#[test]
fn penalty_blocks_a_key_says_so_everywhere_and_ends_when_it_said() {
    let gateway = start("");
    let blocked = provoke(&gateway);
    assert_eq!(blocked.status, 429);
    assert_eq!(blocked.header("retry-after"), Some("600"));
    let document = blocked.json();
    assert_eq!(document["type"], "urn:problem-type:tollgate:blocked");
    assert_eq!(document["violated-policies"], json!(["search"]));
    let detail = document["detail"].as_str().expect("words");
    assert!(detail.contains("refused too often"), "{detail}");
    assert_eq!(ask_as(&gateway, "other").status, 200);

    gateway.advance(Duration::from_secs(100));
    let later = ask_as(&gateway, "k");
    assert_eq!(later.header("retry-after"), Some("500"));
    let id = later.json()["decision_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let why = gateway.admin_get(&format!("/api/v1/decisions/{id}")).json();
    assert_eq!(why["reason"], "penalty", "{why}");
    assert_eq!(why["retry_after_ms"], 500_000);
    assert_eq!(why["limits"][0]["outcome"], "deny");
    assert_eq!(why["limits"][0]["override"]["block"], true);
    assert_eq!(why["limits"][0]["override"]["operator"], "penalty");
    assert_eq!(
        why["limits"][0]["override"]["reason"],
        "3 refusals in 1 minute"
    );
    let shown = gateway.admin_get("/api/v1/keys/tenant/k").json();
    assert_eq!(shown["buckets"][0]["override"]["block"], true, "{shown}");
    let other = gateway.admin_get("/api/v1/keys/tenant/other").json();
    assert_eq!(other["buckets"][0]["override"], Value::Null, "{other}");
    let busy = gateway
        .admin_get("/api/v1/limits/search/keys?refused")
        .json();
    assert_eq!(busy["keys"][0]["override"]["block"], true, "{busy}");
    let metrics = gateway.admin_get("/metrics").text();
    assert!(metrics.contains("tollgate_penalties_total 1"), "{metrics}");
    assert!(metrics.contains("reason=\"penalty\"} 2"), "{metrics}");
    let lines = audit(&gateway, 1);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["operator"], "penalty");
    assert_eq!(lines[0]["action"], "penalty");
    assert_eq!(lines[0]["limit"], "search");
    assert_eq!(lines[0]["reason"], "3 refusals in 1 minute");
    assert!(lines[0]["until"].is_string());

    gateway.advance(Duration::from_secs(499));
    assert_eq!(ask_as(&gateway, "k").header("retry-after"), Some("1"));
    gateway.advance(Duration::from_secs(1));
    let again = provoke(&gateway);
    assert_eq!(again.header("retry-after"), Some("600"));
}

#[test]
fn penalty_outlives_a_reset_and_other_numbers_and_is_shown_with_both() {
    let gateway = start("");
    provoke(&gateway);
    // The bucket is full again long before the penalty ends.
    gateway.advance(Duration::from_secs(90));
    assert_eq!(ask_as(&gateway, "k").header("retry-after"), Some("510"));
    let stands = |now: &Value| {
        let level = &now["level"];
        (level["admits"].clone(), level["admits_in_ms"].clone())
    };
    let blocked = |seconds: u64| (json!(false), json!(seconds * 1_000));
    let key = || gateway.admin_get("/api/v1/keys/tenant/k").json();
    assert_eq!(stands(&key()["buckets"][0]["now"]), blocked(510));
    let listed = gateway.admin_get("/api/v1/limits/search/keys?refused");
    assert_eq!(stands(&listed.json()["keys"][0]["now"]), blocked(510));
    let raised = change(
        &gateway,
        "PUT",
        &json!({ "rate": "100/second", "for": "1m", "reason": "r" }),
    );
    let raised = raised.json();
    assert_eq!(stands(&raised["limits"][0]["now"]), blocked(510));
    let reset = gateway.change("POST", "tenant/k/reset", &json!({ "reason": "r" }));
    let reset = reset.json();
    assert_eq!(
        stands(&reset["buckets"][0]["after"]),
        blocked(510),
        "{reset}"
    );
    assert_eq!(ask_as(&gateway, "k").status, 429);
    // Once lifted, the numbers hold.
    change(&gateway, "DELETE", &json!({ "reason": "r" }));
    assert_eq!(ask_as(&gateway, "k").status, 200);
}

#[test]
fn penalties_of_a_flood_of_keys_are_few_lines_of_the_audit_that_count_all() {
    const KEYS: usize = 40;
    let gateway = start("");
    let mut connection = gateway.connect();
    // The requests of all keys at once, so that all are blocked within a moment.
    let mut ask_each = || {
        let request = |key| format!("GET / HTTP/1.1\r\nHost: x\r\nx-api-key: key-{key}\r\n\r\n");
        connection.send((0..KEYS).map(request).collect::<String>());
        let answers = (0..KEYS).map(|_| connection.answer("GET"));
        answers.map(|answer| answer.status).collect::<Vec<u16>>()
    };
    for status in [200, 200, 429, 429, 429] {
        assert_eq!(ask_each(), [status; KEYS]);
    }
    let told = |line: &Value| line["more"].as_u64().unwrap_or(1);
    wait_until("all are told", || {
        audit(&gateway, 1).iter().map(told).sum::<u64>() >= KEYS as u64
    });
    let lines = audit(&gateway, 1);
    assert_eq!(lines.iter().map(told).sum::<u64>(), KEYS as u64);
    assert!(lines.iter().all(|line| line["action"] == "penalty"));
}

#[test]
fn penalty_is_lifted_by_an_operator_and_by_an_override_without_a_limit() {
    let gateway = start("");
    provoke(&gateway);
    let free = json!({ "reason": "r", "unlimited": true, "for": "1m" });
    assert_eq!(change(&gateway, "PUT", &free).status, 200);
    assert_eq!(ask_as(&gateway, "k").status, 200);
    let lifted = change(&gateway, "DELETE", &json!({ "reason": "a ticket" }));
    assert_eq!(lifted.status, 200, "{}", lifted.text());
    assert_eq!(lifted.json()["limits"][0]["after"], Value::Null);
    let refused = ask_as(&gateway, "k").json();
    assert!(
        !refused["detail"]
            .as_str()
            .expect("words")
            .contains("too often")
    );
    assert_eq!(
        change(&gateway, "DELETE", &json!({ "reason": "r" })).status,
        404
    );

    // A penalty alone is lifted too.
    gateway.advance(Duration::from_secs(60));
    provoke(&gateway);
    let dry = json!({ "reason": "r", "dry_run": true });
    let tried = change(&gateway, "DELETE", &dry);
    assert_eq!(tried.status, 200, "{}", tried.text());
    assert_eq!(
        ask_as(&gateway, "k").json()["type"],
        "urn:problem-type:tollgate:blocked"
    );
    let lifted = change(&gateway, "DELETE", &json!({ "reason": "r" }));
    assert_eq!(lifted.json()["limits"][0]["before"]["operator"], "penalty");
    let lines = audit(&gateway, 5);
    let actions: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["action"].as_str())
        .collect();
    assert_eq!(
        actions.iter().filter(|action| **action == "lift").count(),
        2
    );
    assert_eq!(
        actions
            .iter()
            .filter(|action| **action == "penalty")
            .count(),
        2
    );
}

#[test]
fn penalty_is_an_event_when_it_begins_and_when_it_ends() {
    let gateway = start("");
    let mut events = Reader::ready(&gateway);
    provoke(&gateway);
    let (_, began) = events.next("override_set");
    assert_eq!(began["operator"], "penalty", "{began}");
    assert_eq!(began["limit"], "search");
    gateway.advance(Duration::from_secs(600));
    let (_, ended) = events.next("override_ended");
    assert_eq!(
        (&ended["operator"], &ended["lifted"]),
        (&json!("penalty"), &json!(false))
    );
}

/// `check` says the penalty, and plays it in the tests of the file: 300 seconds later the bucket is full, and the key is still
/// blocked.
#[test]
fn penalty_is_said_and_played_by_check_and_said_by_explain() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    let tests = "[[tests]]\nsend = [\"5 x GET / as tenant:k at 0s\", \"2 x GET / as tenant:k at 300s\", \"2 x GET / as tenant:k at 600s\"]\n\
                 expect = { allowed = 4, refused = 5 }\n";
    std::fs::write(&file, format!("{LIMITS}{tests}")).expect("written");
    let run = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(words)
            .arg("--config")
            .arg(&file)
            .output()
            .expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let told = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{told}");
        told
    };
    let words = "3 refusals in 1 minute block the key for 10 minutes";
    let checked = run(&["check"]);
    assert!(
        checked.contains(words) && checked.contains("0 failed"),
        "{checked}"
    );
    let explained = run(&["explain", "GET /", "-H", "x-api-key: k"]);
    assert!(explained.contains(words), "{explained}");
}

/// The decision of a refusal, and what `tollgate why` prints of it.
fn explained(gateway: &Gateway, refused: &Answer) -> (Value, String) {
    let id = refused.json()["decision_id"].clone();
    let id = id.as_str().expect("an id");
    let decision = gateway.admin_get(&format!("/api/v1/decisions/{id}")).json();
    let admin = gateway.admin().to_string();
    let (_, words, _) = program(&["why", id], &[("TOLLGATE_ADMIN", &admin)]);
    (decision, words)
}

#[test]
fn decision_of_a_request_that_a_block_refused_says_the_block_and_no_level() {
    let gateway = start("");
    let body = json!({ "reason": "r", "block": true, "for": "1h" });
    assert_eq!(change(&gateway, "PUT", &body).status, 200);
    let refused = ask_as(&gateway, "k");
    assert_eq!(refused.status, 429);
    let (decision, words) = explained(&gateway, &refused);
    let limit = &decision["limits"][0];
    assert_eq!(limit["then"], Value::Null, "{decision}");
    assert_eq!(limit["outcome"], "deny", "{decision}");
    let end = &decision["until"];
    let block = json!({ "by": "override", "until": end, "admits_at": end });
    assert_eq!(limit["blocked"], block, "{decision}");
    assert!(
        words.contains("then: refused by an operator's block until 20"),
        "{words}"
    );
    assert!(!words.contains("then: 0 units"), "{words}");
    assert_eq!(
        change(&gateway, "DELETE", &json!({ "reason": "r" })).status,
        200
    );

    let refused = [provoke(&gateway), ask_as(&gateway, "k")];
    for refused in refused {
        let (decision, words) = explained(&gateway, &refused);
        let limit = &decision["limits"][0];
        assert_eq!(limit["then"], Value::Null, "{decision}");
        let end = &decision["until"];
        let block = json!({ "by": "penalty", "until": end, "admits_at": end });
        assert_eq!(limit["blocked"], block, "{decision}");
        assert!(
            words.contains("then: refused by a penalty until 20"),
            "{words}"
        );
    }
    // A bucket that refuses has its level.
    gateway.request("GET", "/", &[("x-api-key", "other")]);
    gateway.request("GET", "/", &[("x-api-key", "other")]);
    let (decision, _) = explained(&gateway, &ask_as(&gateway, "other"));
    let limit = &decision["limits"][0];
    assert_eq!(limit["then"]["remaining"], 0, "{decision}");
    assert_eq!(limit["blocked"], Value::Null, "{decision}");
}

/// The penalty ends long before the bucket can pay: both ends are said, and the wait is the later one.
#[test]
fn why_names_the_end_of_a_penalty_and_that_of_its_bucket() {
    let limits = LIMITS.replace("2/minute", "2/day").replace("10m", "3s");
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{OPERATORS}{limits}"
    ));
    let refused = provoke(&gateway);
    let wait: u64 = refused
        .header("retry-after")
        .expect("a wait")
        .parse()
        .expect("seconds");
    assert!((43_000..=43_200).contains(&wait), "half a day: {wait}");
    let (decision, words) = explained(&gateway, &refused);
    let block = &decision["limits"][0]["blocked"];
    assert_eq!(block["admits_at"], decision["until"], "{decision}");
    assert!(
        block["until"].as_str() < block["admits_at"].as_str(),
        "{decision}"
    );
    let text = |member: &str| block[member].as_str().expect("a time");
    assert!(text("until").ends_with('Z'), "{decision}");
    let said = format!(
        "then: refused by a penalty until {}; the bucket can pay from {}\n",
        text("until"),
        text("admits_at")
    );
    assert!(words.contains(&said), "{words}");
    gateway.advance(Duration::from_secs(wait));
    assert_eq!(ask_as(&gateway, "k").status, 200);
}

/// A penalty of a limit that only counts since a reload refuses nothing, and nothing says that it does.
#[test]
fn penalty_of_a_limit_in_shadow_mode_is_not_said_to_refuse() {
    let gateway = start("");
    provoke(&gateway);
    let key = || gateway.admin_get("/api/v1/keys/tenant/k").json();
    assert_eq!(key()["buckets"][0]["override"]["operator"], "penalty");
    let shadow = LIMITS.replace("per =", "mode = \"shadow\"\nper =");
    let admin = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{OPERATORS}");
    gateway
        .reload(&format!("{admin}{shadow}"))
        .expect("a good file");
    assert_eq!(ask_as(&gateway, "k").status, 200);
    assert_eq!(key()["buckets"][0]["override"], Value::Null);
}
