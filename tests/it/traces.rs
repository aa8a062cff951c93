//! W3C trace context: what upstreams receive of it, and what the access log tells.

use serde_json::Value;

use crate::harness::frames::Frames;
use crate::harness::upstream::{Reply, Seen};
use crate::harness::{Gateway, Upstream, eventually};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// What a request may carry: good, malformed, of the future, repeated.
const CONTEXTS: [&[(&str, &str)]; 6] = [
    &[
        ("traceparent", PARENT),
        ("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
    ],
    &[
        ("traceparent", PARENT),
        ("tracestate", "rojo=1"),
        ("tracestate", "congo=2"),
    ],
    &[("traceparent", "00-NOT-A-TRACE"), ("tracestate", "=,;")],
    &[(
        "traceparent",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later",
    )],
    &[("traceparent", PARENT), ("traceparent", PARENT)],
    &[("tracestate", "rojo=1")],
];

/// The trace context that an upstream received.
fn received(seen: &Seen) -> Vec<(&str, &str)> {
    ["traceparent", "tracestate"]
        .into_iter()
        .flat_map(|name| seen.all(name).into_iter().map(move |value| (name, value)))
        .collect()
}

const EDITED: &str = "request_headers = { set = { x-tier = \"t\" }, remove = [\"x-internal\"] }\n";

#[test]
fn trace_context_passes_unchanged_with_and_without_route_edits() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[address]\ntrusted_proxies = [\"192.0.2.1\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\n\
         [[routes]]\nmatch = \"/edited\"\nupstream = \"{url}\"\n{EDITED}",
        url = upstream.url()
    ));
    for context in CONTEXTS {
        for path in ["/", "/edited"] {
            let headers = [context, &[("x-internal", "1")]].concat();
            assert_eq!(gateway.request("GET", path, &headers).status, 200);
            assert_eq!(received(&upstream.last()), context, "{path}");
        }
    }
}

#[test]
fn trace_context_passes_a_retry_unchanged() {
    let fails = Upstream::start(|_| Reply::new(503, &[], ""));
    let well = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         [upstreams.app]\nservers = [\"{}\", \"{}\"]\nbalance = \"round_robin\"\n\
         retries = {{ attempts = 2, on = [\"503\"] }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n{EDITED}",
        fails.url(),
        well.url()
    ));
    eventually("a request is sent twice", || {
        assert_eq!(gateway.request("GET", "/", CONTEXTS[0]).status, 200);
        !fails.seen().is_empty()
    });
    assert_eq!(received(&fails.seen()[0]), CONTEXTS[0]);
    for seen in well.seen() {
        assert_eq!(received(&seen), CONTEXTS[0]);
    }
}

#[test]
fn trace_context_over_http2_passes_unchanged() {
    let upstream = Upstream::hello();
    // The second gateway receives HTTP/2 from the first one.
    let second = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nvia = \"second\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        upstream.url()
    ));
    let first = Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"http://{}\"]\nhttp2 = true\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n\
         [[routes]]\nmatch = \"/edited\"\nupstream = \"app\"\n{EDITED}",
        second.address()
    ));
    let mut frames = Frames::open(first.address(), &[]);
    let mut stream = 1;
    for context in CONTEXTS {
        for path in ["/", "/edited"] {
            frames.ask(stream, "GET", path, context);
            assert_eq!(frames.fate(stream).status, Some(200));
            assert_eq!(received(&upstream.last()), context, "{path}");
            stream += 2;
        }
    }
}

#[test]
fn access_log_has_the_trace_only_where_traceparent_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        // Lines of two workers may be out of order.
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[log]\naccess = '{}'\n\
         [limits.one]\nrate = \"1/hour\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n",
        log.display()
    ));
    // The second one is refused by the limit: it is part of its trace, too.
    let statuses: Vec<u16> = CONTEXTS
        .iter()
        .map(|context| gateway.request("GET", "/", context).status)
        .collect();
    assert_eq!(statuses, [200, 429, 429, 429, 429, 429]);
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    };
    eventually("the log is written", || lines().len() == CONTEXTS.len());
    let valid = (Value::from(TRACE), Value::from(SPAN));
    let none = (Value::Null, Value::Null);
    let told: Vec<_> = lines()
        .iter()
        .map(|line| (line["trace_id"].clone(), line["span_id"].clone()))
        .collect();
    assert_eq!(
        told,
        [&valid, &valid, &none, &valid, &none, &none].map(Clone::clone)
    );
}
