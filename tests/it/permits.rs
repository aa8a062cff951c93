//! `/v1/settle`, `/v1/give-back` and `/v1/decide`: what programs report, and what they ask at once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::decisions::{check, gateway};
use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway, eventually};
use crate::rls::stores::{Shared, StoreKind};

pub(crate) fn headers<'a>(uri: &'a str, client: &'a str) -> [(&'a str, &'a str); 3] {
    [
        ("X-Original-Method", "GET"),
        ("X-Original-URI", uri),
        ("X-Real-IP", client),
    ]
}

/// Asks for one client; the permit.
pub(crate) fn admitted(gateway: &Gateway, uri: &str) -> String {
    let answer = check(gateway, &headers(uri, "192.0.2.1"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
        .header("x-tollgate-permit")
        .expect("a permit")
        .to_owned()
}

fn status(gateway: &Gateway, uri: &str) -> u16 {
    check(gateway, &headers(uri, "192.0.2.1")).status
}

pub(crate) fn send(gateway: &Gateway, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut connection = Connection::open(gateway.deciding());
    let length = body.len().to_string();
    let length = [("Content-Length", length.as_str())];
    let head = crate::harness::client::head("POST", path, &[headers, &length].concat());
    connection.send(head + body);
    connection.answer("POST")
}

pub(crate) fn post(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    let kind = [("Content-Type", "application/json")];
    send(gateway, path, &kind, &body.to_string())
}

/// What is left of the limit `it` for the client, without drawing.
fn left(gateway: &Gateway) -> u64 {
    left_of(gateway, "it")
}

/// The same, of another limit.
pub(crate) fn left_of(gateway: &Gateway, limit: &str) -> u64 {
    let document = json!({ "requests": [{ "limit": limit, "key": "192.0.2.1", "cost": 0 }] });
    let answer = post(gateway, "/v1/decide", &document).json();
    answer["decisions"][0]["limits"][0]["remaining"]
        .as_u64()
        .unwrap_or_else(|| panic!("{answer}"))
}

fn limited(numbers: &str) -> String {
    format!(
        "[limits.it]\n{numbers}\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n"
    )
}

#[test]
fn permit_holds_a_place_until_it_is_given_back_once() {
    let gateway = gateway("", &limited("in_flight = 2"));
    let (first, second) = (admitted(&gateway, "/"), admitted(&gateway, "/"));
    assert_ne!(first, second);
    assert_eq!(status(&gateway, "/"), 429);
    let give_back = |id: &str| post(&gateway, "/v1/give-back", &json!({ "permit": id })).status;
    assert_eq!(give_back(&first), 204);
    let third = admitted(&gateway, "/");
    // Given back twice it would free the place of another request.
    assert_eq!(give_back(&first), 404);
    assert_eq!(status(&gateway, "/"), 429);
    for made_up in [
        "",
        "0",
        "00000000000000000000000000000000",
        &third.to_uppercase(),
    ] {
        assert_eq!(give_back(made_up), 404, "{made_up}");
    }
    assert_eq!(status(&gateway, "/"), 429);
    assert_eq!([give_back(&second), give_back(&third)], [204, 204]);
    admitted(&gateway, "/");
}

#[test]
fn permit_that_is_not_reported_expires_and_keeps_its_charge() {
    let gateway = gateway(
        "permit_expiry = \"30s\"",
        "[limits.it]\nrate = \"100/hour\"\nper = \"address\"\nsettle = { from = \"header:x-cost\", estimate = 10, max = 50 }\n\
         [limits.places]\nin_flight = 1\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\", \"places\"]\n",
    );
    let permit = admitted(&gateway, "/");
    assert_eq!((left(&gateway), status(&gateway, "/")), (90, 429));
    gateway.advance(Duration::from_secs(29));
    assert_eq!(status(&gateway, "/"), 429);
    gateway.advance(Duration::from_secs(1));
    eventually("the permit expires", || {
        gateway
            .admin_get("/metrics")
            .text()
            .contains("tollgate_permits_expired_total 1")
    });
    assert_eq!(left(&gateway), 90, "the estimate stays");
    let settle = json!({ "permit": permit, "units": 0 });
    assert_eq!(post(&gateway, "/v1/settle", &settle).status, 404);
    assert_eq!(left(&gateway), 90);
    admitted(&gateway, "/");
}

#[test]
fn permit_of_a_program_that_leaves_before_its_response_is_given_back() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let shared = Shared::new(server);
    let gateway = gateway(
        "permit_expiry = \"1h\"",
        &format!(
            "[limits.places]\nin_flight = 1\nper = \"address\"\nstore = \"local\"\n\
             [limits.it]\nrate = \"9/hour\"\nper = \"address\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"places\", \"it\"]\n{}",
            shared.table
        ),
    );
    eventually("the store decides", || {
        let document = json!({ "requests": [{ "limit": "it", "key": "192.0.2.2" }] });
        post(&gateway, "/v1/decide", &document).json()["allowed"] == true
    });
    // The store does not respond, so the second decision is not made yet.
    shared.signal("-STOP");
    let limits = ["places", "it"].map(|limit| json!({ "limit": limit, "key": "192.0.2.1" }));
    let body = json!({ "requests": limits }).to_string();
    let length = body.len().to_string();
    let headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", length.as_str()),
    ];
    let mut program = Connection::open(gateway.deciding());
    program.send(crate::harness::client::head("POST", "/v1/decide", &headers) + &body);
    eventually("the place is taken", || left_of(&gateway, "places") == 0);
    drop(program);
    eventually("the place is free", || left_of(&gateway, "places") == 1);
    shared.signal("-CONT");
    let metrics = gateway.admin_get("/metrics").text();
    assert!(
        metrics.contains("tollgate_permits_expired_total 0"),
        "{metrics}"
    );
}

#[test]
fn settle_corrects_the_estimate_upwards_and_downwards() {
    let gateway = gateway(
        "",
        &limited(
            "rate = \"1000/hour\"\nsettle = { from = \"header:x-cost\", estimate = 100, max = 400 }",
        ),
    );
    let settle = |units: Value| {
        let permit = admitted(&gateway, "/");
        let answer = post(
            &gateway,
            "/v1/settle",
            &json!({ "permit": permit, "units": units }),
        );
        (
            answer.status,
            answer.json()["charged"]["it"].as_u64(),
            left(&gateway),
        )
    };
    assert_eq!(settle(json!(30)), (200, Some(30), 970));
    assert_eq!(settle(json!({ "it": 250 })), (200, Some(250), 720));
    // Never more than the limit's `max`.
    assert_eq!(settle(json!(100_000)), (200, Some(400), 320));
    // A limit that is not of the permit: nothing happens, and it can still be settled.
    let permit = admitted(&gateway, "/");
    let wrong = json!({ "permit": permit, "units": { "other": 1 } });
    assert_eq!(post(&gateway, "/v1/settle", &wrong).status, 400);
    assert_eq!(left(&gateway), 220);
    let right = json!({ "permit": permit, "units": 0, "status": 200 });
    assert_eq!(post(&gateway, "/v1/settle", &right).status, 200);
    assert_eq!(left(&gateway), 320);
}

#[test]
fn settle_report_that_says_a_member_twice_is_refused_and_settles_nothing() {
    let gateway = gateway(
        "",
        &limited(
            "rate = \"100/hour\"\nsettle = { from = \"header:x-cost\", estimate = 10, max = 50 }",
        ),
    );
    let permit = admitted(&gateway, "/");
    let json = [("Content-Type", "application/json")];
    for members in [
        r#""units":{"it":20,"it":1}"#,
        r#""units":{"it":20,"\u0069t":1}"#,
        r#""units":20,"units":1"#,
        r#""status":200,"status":200"#,
    ] {
        let body = format!(r#"{{"permit":"{permit}",{members}}}"#);
        let answer = send(&gateway, "/v1/settle", &json, &body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert_eq!(left(&gateway), 90, "{body}");
    }
    let report = json!({ "permit": permit, "units": { "it": 20 } });
    assert_eq!(post(&gateway, "/v1/settle", &report).status, 200);
    assert_eq!(left(&gateway), 80);
}

#[test]
fn settle_status_decides_the_charge() {
    let gateway = gateway(
        "",
        &limited("rate = \"2/hour\"\nalgorithm = \"fixed_window\"\ncount = \"failures\""),
    );
    let report = |status: u16| {
        let permit = admitted(&gateway, "/");
        let report = json!({ "permit": permit, "status": status });
        assert_eq!(post(&gateway, "/v1/settle", &report).status, 200);
        left(&gateway)
    };
    assert_eq!([report(200), report(200), report(200)], [2, 2, 2]);
    assert_eq!([report(401), report(200), report(403)], [1, 1, 0]);
    assert_eq!(status(&gateway, "/"), 429);
}

#[test]
fn permits_are_bounded_and_a_request_beyond_is_not_charged() {
    let more = "[limits.it]\nrate = \"10/hour\"\nper = \"address\"\nrefund_on = [\"5xx\"]\n\
        [limits.plain]\nrate = \"10/hour\"\nper = \"address\"\n\
        [[routes]]\nmatch = \"/open\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n\
        [[routes]]\nmatch = \"/plain\"\nupstream = \"builtin:echo\"\nlimits = [\"plain\"]\n";
    let gateway = gateway("permits = 2", more);
    let permits = [admitted(&gateway, "/open"), admitted(&gateway, "/open")];
    assert_eq!(left(&gateway), 8);
    assert_eq!(status(&gateway, "/open"), 503);
    assert_eq!(left(&gateway), 8);
    // A request whose charges are final needs no permit.
    assert_eq!(status(&gateway, "/plain"), 200);
    let report = json!({ "permit": permits[0], "status": 503 });
    assert_eq!(post(&gateway, "/v1/settle", &report).status, 200);
    assert_eq!(left(&gateway), 9);
    admitted(&gateway, "/open");
}

#[test]
fn resources_take_strict_json_from_programs_only() {
    let gateway = gateway("", &limited("rate = \"10/hour\""));
    let json = ("Content-Type", "application/json");
    let good = r#"{"requests":[{"limit":"it","key":"192.0.2.1"}]}"#;
    assert_eq!(send(&gateway, "/v1/decide", &[json], good).status, 200);
    let charset = ("Content-Type", "application/json; charset=utf-8");
    assert_eq!(send(&gateway, "/v1/decide", &[charset], good).status, 200);
    for (headers, body, status) in [
        (&[json, ("Origin", "https://evil.example")][..], good, 403),
        (&[json, ("Sec-Fetch-Site", "cross-site")], good, 403),
        (&[], good, 400),
        (&[("Content-Type", "text/plain")], good, 400),
        (&[json], "", 400),
        (&[json], "[]", 400),
        (
            &[json],
            r#"[[{"limit":"it","key":"192.0.2.1"}],false]"#,
            400,
        ),
        (&[json], r#"{"requests":[]}"#, 400),
        (&[json], r#"{"requests":[{}]}"#, 400),
        (
            &[json],
            r#"{"requests":[{"limit":"it","key":"192.0.2.1"}],"more":1}"#,
            400,
        ),
        (
            &[json],
            r#"{"requests":[{"limit":"it","limit":"it"}]}"#,
            400,
        ),
        (&[json], r#"{"requests":[{"limit":"it","cost":-1}]}"#, 400),
        (
            &[json],
            r#"{"requests":[{"limit":"it","method":"GET"}]}"#,
            400,
        ),
        (&[json], r#"{"requests":[{"limit":"it","path":"/"}]}"#, 400),
        (&[json], r#"{"requests":[{"method":"GET"}]}"#, 400),
        (
            &[json],
            r#"{"requests":[{"method":"GET","path":"x"}]}"#,
            400,
        ),
        (
            &[json],
            r#"{"requests":[{"method":"GET","path":"/","client":"x"}]}"#,
            400,
        ),
        (
            &[json],
            r#"{"requests":[{"method":"GET","path":"/","headers":{"a":"1","A":"2"}}]}"#,
            400,
        ),
        (
            &[json],
            r#"{"requests":[{"method":"GET","path":"/","headers":{"a":"1\n2"}}]}"#,
            400,
        ),
        (
            &[json],
            r#"{"requests":[{"method":"GET","path":"/","scheme":"ftp"}]}"#,
            400,
        ),
        (&[json], &format!("{good}x"), 400),
        (
            &[json],
            &format!("{}{}", "[".repeat(50_000), "]".repeat(50_000)),
            400,
        ),
        (&[json], &" ".repeat(300_000), 413),
    ] {
        let answer = send(&gateway, "/v1/decide", headers, body);
        let start = &body[..body.len().min(80)];
        assert_eq!(answer.status, status, "{headers:?} {start}");
        assert_eq!(answer.json()["status"], status, "{start}");
    }
    let many = json!({ "requests": vec![json!({ "limit": "it", "key": "192.0.2.1" }); 101] });
    assert_eq!(post(&gateway, "/v1/decide", &many).status, 400);
    assert_eq!(left(&gateway), 8, "none of these was charged");
    let got = Connection::open(gateway.deciding()).request("GET", "/v1/decide", &[]);
    assert_eq!((got.status, got.header("allow")), (405, Some("POST")));
}

#[test]
fn batch_decides_each_request_by_itself() {
    let more = "[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n\
        [limits.it]\nrate = \"2/hour\"\nper = \"tenant\"\n[limits.all]\nrate = \"10/hour\"\nper = \"everyone\"\n\
        [limits.both]\nrate = \"10/hour\"\nper = [\"tenant\", \"address\"]\n\
        [[routes]]\nmatch = \"api.example.com/things\"\nupstream = \"builtin:echo\"\nlimits = [\"it\", \"all\"]\n";
    let gateway = gateway("", more);
    let request = json!({ "method": "GET", "host": "api.example.com", "path": "/things?x=y", "scheme": "https",
        "headers": { "x-api-key": "k" }, "client": "192.0.2.1" });
    let mut anonymous = request.clone();
    anonymous["headers"] = json!({});
    let answer = post(
        &gateway,
        "/v1/decide",
        &json!({ "requests": [
        request, { "limit": "it", "key": "k" }, request, anonymous,
        { "limit": "it", "key": "other", "cost": 2 }, { "limit": "all" }, { "limit": "none" },
        { "limit": "both", "key": "k" }, { "limit": "it" }, { "method": "GET", "path": "/other" },
        { "limit": "it", "key": "big", "cost": 3 },
    ] }),
    );
    assert_eq!(answer.status, 200);
    let answer = answer.json();
    let statuses: Vec<u64> = answer["decisions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|decision| decision["status"].as_u64().expect("a status"))
        .collect();
    assert_eq!(
        statuses,
        [200, 200, 429, 401, 200, 200, 400, 400, 400, 404, 429],
        "{answer:#}"
    );
    assert_eq!(answer["allowed"], false);
    let first = &answer["decisions"][0];
    assert!(first["headers"]["ratelimit"].is_string(), "{first}");
    let refused = &answer["decisions"][2];
    assert_eq!(refused["body"]["violated-policies"][0], "it");
    assert_eq!(refused["retry_after_ms"], 1_800_000);
    let never = &answer["decisions"][10];
    assert_eq!(
        (never["violated"][0].as_str(), &never["retry_after_ms"]),
        (Some("it"), &Value::Null)
    );
}

#[test]
fn batch_together_charges_all_or_none() {
    let more = "[limits.it]\nrate = \"5/hour\"\nper = \"address\"\n[limits.all]\nrate = \"3/hour\"\nper = \"everyone\"\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\", \"all\"]\n";
    let gateway = gateway("", more);
    let together = |requests: Value| {
        let document = json!({ "requests": requests, "together": true });
        let answer = post(&gateway, "/v1/decide", &document);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };
    let request = json!({ "method": "GET", "path": "/", "client": "192.0.2.1" });
    // Two requests of one caller draw two units from one bucket.
    let answer = together(json!([request, request]));
    assert_eq!(answer["allowed"], true, "{answer}");
    assert_eq!(left(&gateway), 3);
    let answer = together(json!([request, request]));
    assert_eq!(answer["allowed"], false, "{answer}");
    assert_eq!(answer["together"]["violated"], json!(["all"]));
    assert!(answer["together"]["retry_after_ms"].is_u64(), "{answer}");
    assert_eq!(left(&gateway), 3, "a refused request spends nothing");
    let other = json!({ "limit": "it", "key": "192.0.2.2", "cost": 5 });
    assert_eq!(together(json!([request, other]))["allowed"], true);
    assert_eq!(left(&gateway), 2);
    // One that no route takes refuses all.
    let lost = json!({ "method": "GET", "path": "/%zz" });
    let answer = together(json!([{ "limit": "it", "key": "192.0.2.1" }, lost]));
    assert_eq!(
        (&answer["allowed"], &answer["together"]["status"]),
        (&json!(false), &json!(400))
    );
    assert_eq!(left(&gateway), 2);
    let many: Vec<Value> = (0..17)
        .map(|last| json!({ "limit": "it", "key": format!("192.0.2.{last}") }))
        .collect();
    let many = json!({ "requests": many, "together": true });
    assert_eq!(post(&gateway, "/v1/decide", &many).status, 400);
}

#[test]
fn batch_key_is_not_the_name_of_a_known_caller() {
    // The key of `acme` is `test`.
    let more = "[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\n\
        [identities.tenant.callers]\n\
        \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = { name = \"acme\" }\n\
        [limits.it]\nrate = \"2/hour\"\nper = \"tenant\"\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n";
    let gateway = gateway("", more);
    let ask = |key: &str| {
        let document = json!({ "requests": [{ "limit": "it", "key": key }] });
        post(&gateway, "/v1/decide", &document).json()["decisions"][0]["status"].clone()
    };
    assert_eq!([ask("acme"), ask("made-up")], [json!(401), json!(401)]);
    assert_eq!(
        [ask("test"), ask("test"), ask("test")],
        [json!(200), json!(200), json!(429)]
    );
}
