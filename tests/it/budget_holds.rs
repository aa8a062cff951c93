//! Budgets of money that hold: against a provider that is slow, requests for many outputs, tokens that are stated beside
//! others, and targets that serve another model than the one that was asked for.

use serde_json::{Value, json};

use crate::harness::client::Answer;
use crate::harness::{Gateway, Reply, Upstream, eventually};

const JSON: (&str, &str) = ("content-type", "application/json");
/// A dollar, in millionths.
const DOLLAR: u64 = 1_000_000;

/// A budget of a dollar for everyone, at 1 and 2 for a token of input and of output, 10 and 30 for those of `large`.
fn budget(more: &str) -> String {
    format!(
        "[prices.models]\nsmall = {{ input = \"1\", output = \"2\" }}\nlarge = {{ input = \"10\", output = \"30\" }}\n\
         [limits.budget]\nrate = \"1 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nprices = \"json:model\"\n\
         refund_on = [\"4xx\", \"5xx\"]\nrefuse_status = 402\n{more}\n\
         cost = {{ usage = \"openai\", default = 100, max = 1000 }}\nsettle = {{ usage = [\"openai\", \"anthropic\"] }}\n"
    )
}

/// The same, in front of one upstream.
fn gateway(upstream: &Upstream, more: &str) -> Gateway {
    Gateway::start(&format!(
        "{}[limits.calls]\nrate = \"100/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nrefund_on = [\"5xx\"]\n\
         [upstreams.model]\nservers = [\"{}\"]\ntimeouts = {{ response = \"200ms\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"model\"\nlimits = [\"budget\", \"calls\"]\n",
        budget(more),
        upstream.url()
    ))
}

fn ask(gateway: &Gateway, path: &str, body: &str) -> Answer {
    let mut connection = gateway.connect();
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer("POST")
}

/// A request that costs nothing, and what it reserves.
fn probe() -> (String, u64) {
    let body = json!({"model": "small", "max_tokens": 1, "probe": true}).to_string();
    let reserved = body.len() as u64 + 2;
    (body, reserved)
}

/// What of the budget is charged, once everything is settled at `expected`.
fn assert_charged(gateway: &Gateway, expected: u64, case: &str) {
    let (body, reserved) = probe();
    eventually(&format!("{case}: {expected} are charged"), || {
        let answer = ask(gateway, "/probe", &body);
        assert_eq!(answer.status, 200, "{case}: {answer:?}");
        DOLLAR - reserved - answer.left_of("budget").expect("units") == expected
    });
}

/// An upstream that replies with this document to all but probes, which cost nothing.
fn states(document: Value) -> Upstream {
    Upstream::start(move |seen| {
        let probed = json!({"usage": {"prompt_tokens": 0, "completion_tokens": 0}});
        let reply = match seen.line().contains("/probe") {
            true => &probed,
            false => &document,
        };
        Reply::new(200, &[JSON], reply.to_string())
    })
}

#[test]
fn budget_keeps_the_reservation_where_the_provider_is_too_slow_for_the_gateway() {
    let upstream = Upstream::start(|seen| {
        let line = seen.line();
        let usage = r#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#;
        match () {
            () if line.contains("/slow") => Reply::Silence,
            () if line.contains("/busy") => Reply::new(503, &[JSON], "{}"),
            () if line.contains("/closed") => Reply::Close(Vec::new()),
            () => Reply::new(200, &[JSON], usage),
        }
    });
    let gateway = gateway(&upstream, "");
    let body = json!({"model": "small", "max_tokens": 1000}).to_string();
    let reserved = body.len() as u64 + 2000;
    for round in 1..=3 {
        let answer = ask(&gateway, "/slow", &body);
        assert_eq!(answer.status, 504);
        assert_charged(&gateway, round * reserved, "the provider did the work");
    }
    assert_eq!(ask(&gateway, "/busy", &body).status, 503);
    assert_charged(&gateway, 3 * reserved, "the provider says that it did not");
    assert_eq!(ask(&gateway, "/closed", &body).status, 502);
    assert_charged(&gateway, 4 * reserved, "closed after the whole request");
    // A count of requests is given back: one of the closed call, and those of the probes, stay.
    let probes = upstream
        .seen()
        .iter()
        .filter(|seen| seen.line().contains("/probe"))
        .count();
    let answer = ask(&gateway, "/probe", &probe().0);
    assert_eq!(answer.left_of("calls"), Some(100 - 1 - probes as u64 - 1));
}

#[test]
fn budget_reserves_every_output_that_a_request_asks_for_or_refuses_it() {
    let upstream = states(json!({}));
    let body = |most: &str, n: &str| format!(r#"{{"model":"small","max_tokens":{most},"n":{n}}}"#);
    for (most, n, outputs) in [
        ("1000", "1", 1000),
        ("1000", "8", 8000),
        ("999", "128", 127_872),
    ] {
        let gateway = gateway(&upstream, "");
        let body = body(most, n);
        assert_eq!(ask(&gateway, "/", &body).status, 200, "{body}");
        assert_charged(&gateway, body.len() as u64 + 2 * outputs, &body);
    }
    let gateway = gateway(&upstream, "");
    let padded = format!(r#"{{"model":"small","pad":"{}"}}"#, "x".repeat(70_000));
    for (body, status) in [
        (body("1000", "512"), 402),
        (body("1001", "1"), 402),
        (body("1e3", "1"), 402),
        (body("1000", "1.28e2"), 402),
        (body("1000", r#""128""#), 402),
        (body("-1", "1"), 402),
        (padded, 400),
    ] {
        let answer = ask(&gateway, "/", &body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert_eq!(answer.header("retry-after"), None, "it never fits: {body}");
    }
    assert_charged(&gateway, 0, "what is refused costs nothing");
    let chooses = budget("unknown_model = \"small\"");
    let gateway = Gateway::start(&format!(
        "{chooses}[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\"]\n",
        upstream.url()
    ));
    let hidden = "POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: x-own\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let mut connection = gateway.connect();
    connection.send(hidden);
    let answer = connection.answer("POST");
    assert!(
        matches!(answer.status, 400 | 402 | 415),
        "its outputs are not known: {answer:?}"
    );
    assert_eq!(
        upstream
            .seen()
            .iter()
            .filter(|seen| seen.header("content-encoding").is_some())
            .count(),
        0
    );
}

#[test]
fn budget_charges_reasoning_beside_the_output_and_keeps_what_cannot_be_read() {
    let body = json!({"model": "small", "max_tokens": 1000}).to_string();
    let reserved = body.len() as u64 + 2000;
    for (usage, cost) in [
        (
            json!({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}),
            10 + 2 * 20,
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 530}),
            10 + 2 * 520,
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 530,
                "completion_tokens_details": {"reasoning_tokens": 500}}),
            10 + 2 * 520,
        ),
        (
            json!({"input_tokens": 10, "output_tokens": 20, "total_tokens": 530}),
            10 + 2 * 520,
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": "20"}),
            reserved,
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": -20}),
            reserved,
        ),
        (
            json!({"prompt_tokens": [10], "completion_tokens": 20}),
            reserved,
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 20, "prompt_tokens_details": null}),
            10 + 2 * 20,
        ),
    ] {
        let case = usage.to_string();
        let upstream = states(json!({ "usage": usage }));
        let gateway = gateway(&upstream, "");
        assert_eq!(ask(&gateway, "/", &body).status, 200);
        assert_charged(&gateway, cost, &case);
    }
}

#[test]
fn budget_prices_what_the_next_target_serves_by_its_own_model() {
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10});
    let (small, large) = (100 + 20, 1000 + 300);
    for (asked, named, written, cost) in [
        ("large", Some("small"), "", small),
        ("small", Some("large"), "", large),
        ("large", Some("other"), "", large),
        ("large", None, "", large),
        ("large", None, ", model = \"small\"", small),
        ("small", None, ", model = \"large\"", large),
        ("small", Some("small"), ", model = \"large\"", large),
        ("small", Some("large"), ", model = \"small\"", large),
    ] {
        let case = format!("{asked} {named:?}{written}");
        let mut document = json!({ "usage": usage });
        if let Some(named) = named {
            document["model"] = json!(named);
        }
        let upstream = states(document);
        let url = upstream.url();
        let gateway = Gateway::start(&format!(
            "{}[limits.first]\nrate = \"1/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\ncost = 1\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"first\"]\n\
             over_limit = {{ instead_of = \"first\", upstream = \"{url}/next\", limits = [\"budget\"]{written} }}\n",
            budget("")
        ));
        assert_eq!(
            ask(&gateway, "/", &probe().0).status,
            200,
            "the route's own target"
        );
        let body = json!({"model": asked, "max_tokens": 100}).to_string();
        assert_eq!(ask(&gateway, "/", &body).status, 200, "{case}");
        let left = |expected: u64| {
            let probe = json!({"model": "small", "max_tokens": 1}).to_string();
            let answer = ask(&gateway, "/probe", &probe);
            answer.left_of("budget").is_some_and(|left| {
                let rate = if written.contains("large") {
                    (10, 30)
                } else {
                    (1, 2)
                };
                DOLLAR - left - rate.0 * probe.len() as u64 - rate.1 == expected
            })
        };
        eventually(&case, || left(cost));
    }
}
