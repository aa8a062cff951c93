//! Refusals of budgets (status 402) and of JSON-RPC calls, in every form that a client can ask for.

use std::time::Duration;

use serde_json::json;

use crate::harness::client::Answer;
use crate::harness::frames::{Frames, frame, request};
use crate::harness::{Connection, Gateway, eventually};

/// A budget of two requests a month beside a rate of one a second.
const MONTH: &str = "[limits.month]\nrate = \"2/month\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
    refuse_status = 402\nwindow = { align = \"calendar\" }\n\
    [limits.pace]\nrate = \"1/second\"\nper = \"everyone\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"pace\", \"month\"]\n";

#[test]
fn budget_used_up_is_402_with_the_wait_until_the_next_month() {
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[decide]\nlisten = \"127.0.0.1:0\"\n{MONTH}"
    ));
    assert_eq!(gateway.get("/").status, 200);
    let too_fast = gateway.get("/");
    assert_eq!(
        (too_fast.status, too_fast.header("retry-after")),
        (429, Some("1")),
        "the budget is not used up"
    );
    gateway.advance(Duration::from_secs(1));
    assert_eq!(gateway.get("/").status, 200);
    // Both refuse now: a caller that waits only for the rate is refused again.
    let both = gateway.get("/");
    gateway.advance(Duration::from_secs(1));
    let spent = gateway.get("/");
    for refused in [&both, &spent] {
        assert_eq!(refused.status, 402);
        let problem = refused.json();
        assert_eq!(
            problem["type"],
            "urn:problem-type:tollgate:budget-exhausted"
        );
        assert_eq!(problem["status"], 402);
        let wait = refused
            .header("retry-after")
            .and_then(|wait| wait.parse().ok());
        assert!(wait.is_some_and(|wait: u64| wait > 86_400), "{refused:?}");
        let exact = problem["retry_after_ms"].as_u64().expect("a wait");
        assert_eq!(Some(exact.div_ceil(1000)), wait);
    }
    assert_eq!(both.json()["violated-policies"], json!(["pace", "month"]));
    assert_eq!(spent.json()["violated-policies"], json!(["month"]));
    let quota = spent.header("ratelimit").unwrap_or_default();
    assert!(quota.starts_with("\"month\";r=0;t="), "{quota}");

    let metrics = gateway.admin_get("/metrics").text();
    for line in [
        "tollgate_rejections_total{reason=\"budget_exhausted\"} 2",
        "tollgate_rejections_total{reason=\"denied\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let id = spent.json()["decision_id"].clone();
    let kept = gateway.admin_get(&format!(
        "/api/v1/decisions/{}",
        id.as_str().expect("an id")
    ));
    let kept = kept.json();
    assert_eq!(
        (&kept["status"], &kept["reason"]),
        (&json!(402), &json!("budget_exhausted")),
        "{kept}"
    );

    let check = Connection::open(gateway.deciding()).request(
        "GET",
        "/check",
        &[
            ("X-Original-Method", "GET"),
            ("X-Original-URI", "/"),
            ("X-Forwarded-Host", "x"),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-For", "192.0.2.1"),
        ],
    );
    assert_eq!(check.status, 402);
    let mut asking = Connection::open(gateway.deciding());
    let body = r#"{"requests":[{"limit":"month"}],"together":true}"#;
    asking.send(format!(
        "POST /v1/decide HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let decided = asking.answer("POST").json();
    assert_eq!(decided["allowed"], false, "{decided}");
    assert_eq!(decided["together"]["status"], 402, "{decided}");
}

#[test]
fn budget_used_up_over_http2_is_402_and_resource_exhausted_for_grpc() {
    let gateway = Gateway::start(&MONTH.replace("1/second", "9/second"));
    assert_eq!([(); 2].map(|()| gateway.get("/").status), [200, 200]);
    let mut frames = Frames::open(gateway.address(), &[]);
    frames.ask(1, "GET", "/", &[]);
    let refused = frames.fate(1);
    assert_eq!(refused.status, Some(402));
    assert_eq!(refused.json()["status"], 402);
    let headers = [("content-type", "application/grpc"), ("te", "trailers")];
    let call = gateway.request("POST", "/t.T/Unary", &headers);
    assert_eq!(call.status, 200);
    assert_eq!(call.header("grpc-status"), Some("8"));
    let message = call.header("grpc-message").unwrap_or_default();
    assert!(message.starts_with("The budget is used up"), "{call:?}");
}

#[test]
fn budget_status_changes_by_a_reload_and_nothing_is_refilled() {
    let gateway = Gateway::start(MONTH);
    assert_eq!(gateway.get("/").status, 200);
    gateway.advance(Duration::from_secs(1));
    assert_eq!(gateway.get("/").status, 200);
    gateway.advance(Duration::from_secs(1));
    assert_eq!(gateway.get("/").status, 402);
    let said = gateway
        .reload(&MONTH.replace("refuse_status = 402\n", ""))
        .expect("a good configuration");
    assert!(said.contains("-     refuses with 402"), "{said}");
    assert_eq!(gateway.get("/").status, 429, "an edit refills no budget");
}

/// One call a day, refused as JSON-RPC.
const CALLS: &str = "[limits.calls]\nrate = \"1/day\"\nburst = 1\nper = \"everyone\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"calls\"]\nrefusal = \"json-rpc\"\n";

/// The response to a POST of this body.
fn post(gateway: &Gateway, path: &str, kind: &str, body: &str) -> Answer {
    let mut connection = gateway.connect();
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer("POST")
}

#[test]
fn json_rpc_refusal_repeats_the_id_of_each_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!("[log]\naccess = '{}'\n{CALLS}", log.display()));
    let json = "application/json";
    let call = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call"}}"#);
    let admitted = post(&gateway, "/", json, &call("0"));
    assert_eq!(admitted.status, 200);
    assert!(admitted.text().contains("tools/call"), "{admitted:?}");
    for (id, sent) in [
        ("7", json!(7)),
        ("\"a\\u00e4\\\"\"", json!("a\u{e4}\"")),
        ("null", json!(null)),
        ("-1.5e3", json!(-1.5e3)),
    ] {
        let refused = post(&gateway, "/", json, &call(id));
        assert_eq!(refused.status, 200, "{refused:?}");
        assert_eq!(refused.header("content-type"), Some(json));
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
        assert!(
            refused
                .header("ratelimit")
                .is_some_and(|quota| quota.starts_with("\"calls\";r=0")),
            "{refused:?}"
        );
        let document = refused.json();
        assert_eq!(document["id"], sent);
        assert_eq!(document["error"]["code"], 429);
        assert_eq!(
            document["error"]["data"]["violated-policies"],
            json!(["calls"])
        );
    }
    let batch = format!("[{},{}]", call("1"), call("\"b\""));
    let refused = post(&gateway, "/", json, &batch).json();
    let ids: Vec<_> = refused
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    assert_eq!(ids, [json!(1), json!("b")]);
    // Nothing here waits for a JSON-RPC response.
    let long = format!(
        r#"{{"id":1,"method":"m","params":"{}"}}"#,
        "x".repeat(70_000)
    );
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#,
        r#"{"jsonrpc":"2.0","id":4,"result":{}}"#,
        r#"{"id":[4],"method":"m"}"#,
        &long,
    ] {
        let refused = post(&gateway, "/", json, body);
        assert_eq!(refused.status, 429, "{refused:?}");
        assert_eq!(
            refused.header("content-type"),
            Some("application/problem+json")
        );
    }
    assert_eq!(gateway.get("/").status, 429);
    let fresh = Gateway::start(CALLS);
    let twice = post(&fresh, "/", json, r#"{"id":1,"id":2,"method":"m"}"#);
    assert_eq!(twice.status, 400, "servers read a repeated id differently");
    // In the log and the metrics these are refusals like others, with the HTTP status that was sent.
    eventually("the log has the five JSON-RPC errors", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().filter(|line| {
            line.contains("\"status\":200") && line.contains("\"reason\":\"denied\"")
        });
        lines.count() == 5
    });
}

#[test]
fn json_rpc_refusal_over_http2_and_none_where_another_program_asks() {
    let gateway = Gateway::start(&format!("[decide]\nlisten = \"127.0.0.1:0\"\n{CALLS}"));
    assert_eq!(gateway.get("/").status, 200);
    let body = br#"{"jsonrpc":"2.0","id":"x","method":"m"}"#;
    let mut frames = Frames::open(gateway.address(), &[]);
    let kind = [("content-type", "application/json")];
    frames.send(frame(1, 4, 1, request("POST", "/", &kind)));
    frames.send(frame(0, 1, 1, body));
    let refused = frames.fate(1);
    assert_eq!(refused.status, Some(200));
    assert_eq!(refused.json()["id"], "x");
    assert_eq!(refused.json()["error"]["data"]["status"], 429);
    // A 200 would admit the request.
    let headers = [
        ("X-Original-Method", "POST"),
        ("X-Original-URI", "/"),
        ("X-Forwarded-Host", "x"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("Content-Type", "application/json"),
    ];
    let check = Connection::open(gateway.deciding()).request("GET", "/check", &headers);
    assert_eq!(check.status, 429);
}
