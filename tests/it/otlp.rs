//! Spans of sampled requests, read by OpenTelemetry's own definitions. Only with the feature `otlp`.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{Gateway, Peers, Reply, Upstream, eventually};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03";

/// The definitions, if `./check` has installed them.
fn definitions() -> Option<Peers> {
    Peers::with_tool("opentelemetry-proto", "tests/it/otlp_check.py")
}

fn start(collector: &Upstream, upstream: &Upstream, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[traces]\nurl = \"{}/v1/traces\"\n{more}\
         [limits.one]\nrate = \"1/hour\"\nper = \"everyone\"\n\
         [[routes]]\nname = \"app\"\nmatch = \"/**\"\nupstream = \"{url}\"\n\
         [[routes]]\nname = \"limited\"\nmatch = \"/limited\"\nupstream = \"{url}\"\nlimits = [\"one\"]\n",
        collector.url(),
        url = upstream.url(),
    ))
}

/// All spans that the collector has, and their attributes as one object each.
fn spans(definitions: &mut Peers, collector: &Upstream) -> Vec<Value> {
    let documents = collector.seen();
    let spans = documents.iter().flat_map(|seen| {
        assert_eq!(seen.line(), "POST /v1/traces HTTP/1.1");
        assert_eq!(seen.header("content-type"), Some("application/json"));
        let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
        let told = definitions.tell(&body);
        assert_eq!(told["resource"]["service.name"], "tollgate", "{told}");
        told["spans"].as_array().expect("a list").clone()
    });
    spans.collect()
}

#[test]
fn otlp_span_of_a_sampled_request_makes_the_gateway_the_sender() {
    let Some(mut definitions) = definitions() else {
        return;
    };
    let (collector, upstream) = (Upstream::hello(), Upstream::hello());
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = start(
        &collector,
        &upstream,
        &format!("[log]\naccess = '{}'\n", log.display()),
    );
    // What is not sampled passes as it came.
    for unsampled in [&format!("00-{TRACE}-{SPAN}-02"), "malformed"] {
        let context = [("traceparent", unsampled), ("tracestate", "a=1")];
        assert_eq!(gateway.request("GET", "/", &context).status, 200);
        let seen = upstream.last();
        assert_eq!(
            (seen.header("traceparent"), seen.header("tracestate")),
            (Some(unsampled), Some("a=1"))
        );
    }
    assert_eq!(gateway.request("GET", "/", &[]).status, 200);
    assert_eq!(upstream.last().header("traceparent"), None);

    let context = [
        ("traceparent", SAMPLED),
        ("tracestate", "a=1"),
        ("user-agent", "curl/8 \u{fc}"),
        ("host", "api.example"),
    ];
    assert_eq!(gateway.request("GET", "/a?secret=1", &context).status, 200);
    let seen = upstream.last();
    assert_eq!(seen.header("tracestate"), Some("a=1"));
    eventually("the span is there", || !collector.seen().is_empty());
    let spans = spans(&mut definitions, &collector);
    let [span] = &spans[..] else {
        panic!("one span: {spans:?}")
    };
    let own = span["spanId"].as_str().expect("an id");
    assert_eq!(
        (span["traceId"].as_str(), span["parentSpanId"].as_str()),
        (Some(TRACE), Some(SPAN))
    );
    assert_ne!(own, SPAN);
    assert_eq!(
        seen.header("traceparent"),
        Some(&*format!("00-{TRACE}-{own}-03"))
    );
    assert_eq!(
        (&span["name"], &span["kind"]),
        (&json!("GET app"), &json!("SPAN_KIND_SERVER"))
    );
    assert_eq!(span["startTimeUnixNano"], "1800000000000000000");
    let attributes = &span["attributes"];
    for (name, value) in [
        ("http.request.method", json!("GET")),
        ("url.path", json!("/a")),
        ("server.address", json!("api.example")),
        ("http.route", json!("app")),
        ("http.response.status_code", json!(200)),
        ("client.address", json!("127.0.0.1")),
        ("network.protocol.version", json!("1.1")),
    ] {
        assert_eq!(attributes[name], value, "{name} in {span}");
    }
    assert!(
        !span.to_string().contains("secret"),
        "queries hold secrets: {span}"
    );
    let line = || -> Option<Value> {
        let text = std::fs::read_to_string(&log).ok()?;
        let mut lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.find(|line| line["trace_id"] == TRACE && line["path"] == "/a")
    };
    eventually("the log is written", || line().is_some());
    let line = line().expect("as before");
    assert_eq!(
        (&line["span_id"], &line["id"]),
        (&span["spanId"], &attributes["tollgate.decision_id"])
    );
}

#[test]
fn otlp_share_of_requests_begins_traces_and_replaces_malformed_ones() {
    let Some(mut definitions) = definitions() else {
        return;
    };
    let (collector, upstream) = (Upstream::hello(), Upstream::hello());
    let gateway = start(&collector, &upstream, "sample = \"100% of requests\"\n");
    let statuses = [
        gateway
            .request(
                "GET",
                "/limited",
                &[("traceparent", "malformed"), ("tracestate", "a=1")],
            )
            .status,
        gateway.request("GET", "/limited", &[]).status,
        gateway
            .request(
                "GET",
                "/",
                &[
                    ("traceparent", SAMPLED),
                    ("traceparent", SAMPLED),
                    ("tracestate", "a=1"),
                ],
            )
            .status,
        gateway
            .request(
                "GET",
                "/",
                &[
                    ("traceparent", &*format!("cc-{TRACE}-{SPAN}-09-later")),
                    ("tracestate", "a=1"),
                ],
            )
            .status,
        gateway
            .request(
                "GET",
                "/",
                &[("traceparent", &*format!("00-{TRACE}-{SPAN}-00"))],
            )
            .status,
    ];
    assert_eq!(statuses, [200, 429, 200, 200, 200]);
    let mut found = Vec::new();
    eventually("the spans are there", || {
        found = spans(&mut definitions, &collector);
        found.len() == 4
    });
    let sent = upstream.seen();
    let state: Vec<_> = sent.iter().map(|seen| seen.header("tracestate")).collect();
    assert_eq!(state, [None, None, Some("a=1"), None]);
    let header = |span: &Value, flags: &str| {
        format!(
            "00-{}-{}-{flags}",
            span["traceId"].as_str().expect("an id"),
            span["spanId"].as_str().expect("an id")
        )
    };
    assert_eq!(
        sent[0].header("traceparent"),
        Some(&*header(&found[0], "03"))
    );
    assert_eq!(
        sent[1].header("traceparent"),
        Some(&*header(&found[2], "03"))
    );
    assert_eq!(
        sent[2].header("traceparent"),
        Some(&*header(&found[3], "01")),
        "only what the version knows"
    );
    assert_eq!(
        sent[3].header("traceparent"),
        Some(&*format!("00-{TRACE}-{SPAN}-00")),
        "its sender decides"
    );
    let parents: Vec<_> = found
        .iter()
        .map(|span| span["parentSpanId"].as_str())
        .collect();
    assert_eq!(parents, [None, None, None, Some(SPAN)]);
    assert_eq!(found[3]["traceId"], TRACE);
    let refused = &found[1]["attributes"];
    assert_eq!(refused["http.response.status_code"], 429);
    assert_eq!(
        (&refused["tollgate.refused"], &refused["tollgate.reason"]),
        (&json!(true), &json!("denied"))
    );
}

fn dropped(gateway: &Gateway) -> u64 {
    let text = gateway.admin_get("/metrics").text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("tollgate_traces_spans_dropped_total "));
    line.expect("the counter").parse().expect("a number")
}

#[test]
fn otlp_collector_that_fails_delays_no_request_and_its_losses_are_counted() {
    let asked = AtomicUsize::new(0);
    let collector = Upstream::start(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::new(503, &[], "later"),
        1 => Reply::ok("{}"),
        2 => Reply::new(400, &[], "never"),
        _ => Reply::Silence,
    });
    let upstream = Upstream::hello();
    let gateway = start(&collector, &upstream, "timeout = \"200ms\"\n");
    let sampled = |gateway: &Gateway| {
        gateway
            .request("GET", "/", &[("traceparent", SAMPLED)])
            .status
    };
    assert_eq!(sampled(&gateway), 200);
    eventually("the span is sent again", || collector.seen().len() == 2);
    assert_eq!(collector.seen()[0].body, collector.seen()[1].body);
    assert_eq!(dropped(&gateway), 0);
    assert_eq!(sampled(&gateway), 200);
    eventually("the span is dropped", || dropped(&gateway) == 1);
    assert_eq!(
        collector.seen().len(),
        3,
        "a refusal for good is not sent again"
    );
    assert_eq!([sampled(&gateway), sampled(&gateway)], [200, 200]);
    eventually("the spans are dropped", || dropped(&gateway) == 3);
}
