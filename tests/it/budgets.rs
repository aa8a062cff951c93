//! Limits that are budgets: refusals with status 402, in every form that a client can ask for.

use std::time::Duration;

use serde_json::json;

use crate::harness::frames::Frames;
use crate::harness::{Connection, Gateway};

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
    assert!(said.contains("refuse_status: 402 -> 429"), "{said}");
    assert_eq!(gateway.get("/").status, 429, "an edit refills no budget");
}
