//! Events that are sent to a service: one that fails, one that does not respond, one that recovers.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::harness::upstream::Seen;
use crate::harness::{Gateway, Reply, Upstream, eventually};
use crate::servers::available;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn config(service: &Upstream, webhook: &str, more: &str) -> String {
    format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\nwebhook = {{ url = \"{}/hook\", {webhook} }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n{more}",
        service.url()
    )
}

fn event(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).expect("JSON")
}

fn told(gateway: &Gateway, name: &str) -> u64 {
    let text = gateway.admin_get("/metrics").text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect("the counter").parse().expect("a number")
}

#[test]
fn webhook_event_is_sent_again_until_the_service_takes_it_and_is_signed() {
    if !available("openssl") {
        return;
    }
    let asked = AtomicUsize::new(0);
    let service = Upstream::start(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::new(500, &[], "out of order"),
        1 => Reply::Close(Vec::new()),
        _ => Reply::new(204, &[], ""),
    });
    let config = config(
        &service,
        "events = [\"reload\"], secret = \"${SECRET}\"",
        "",
    );
    let gateway = Gateway::start_with_environment(&config, |name| {
        (name == "SECRET").then(|| SECRET.to_owned())
    });
    gateway.reload(&config).expect("as before");
    eventually("the event is taken", || {
        told(&gateway, "tollgate_webhook_events_delivered_total") == 1
    });
    let seen = service.seen();
    assert_eq!(seen.len(), 3, "twice it was not");
    let [first, .., last] = &seen[..] else {
        panic!("three")
    };
    assert_eq!(first.line(), "POST /hook HTTP/1.1");
    assert_eq!(
        (first.header("content-type"), first.header("webhook-id")),
        (Some("application/json"), last.header("webhook-id"))
    );
    assert_eq!(first.body, last.body);
    let document = event(last);
    assert_eq!(
        (&document["format"], &document["event"]),
        (&1.into(), &"reload".into())
    );
    assert_eq!(document["data"]["good"], true);
    assert_eq!(document["id"].as_str(), last.header("webhook-id"));
    assert!(
        document["gateway"]
            .as_str()
            .is_some_and(|name| !name.is_empty())
    );
    assert_eq!(told(&gateway, "tollgate_webhook_failures_total"), 2);
    assert_eq!(told(&gateway, "tollgate_webhook_events_dropped_total"), 0);

    let [id, at] = ["webhook-id", "webhook-timestamp"].map(|name| last.header(name).expect("sent"));
    let signed = [id.as_bytes(), at.as_bytes(), &last.body].join(&b'.');
    let mut openssl = Command::new("sh")
        .args([
            "-c",
            &format!("openssl dgst -sha256 -hmac {SECRET} -binary | openssl base64"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    openssl
        .stdin
        .take()
        .expect("piped")
        .write_all(&signed)
        .expect("written");
    let printed = openssl.wait_with_output().expect("it ends").stdout;
    let expected = format!("v1,{}", String::from_utf8_lossy(&printed).trim());
    assert_eq!(last.header("webhook-signature"), Some(&*expected));
}

#[test]
fn webhook_service_that_does_not_respond_delays_no_request_and_costs_the_event() {
    let asked = AtomicUsize::new(0);
    let service = Upstream::start(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Reply::Silence,
        2 => Reply::new(400, &[], "never"),
        _ => Reply::ok("taken"),
    });
    let config = config(
        &service,
        "events = [\"reload\"], timeout = \"100ms\", attempts = 2",
        "",
    );
    let gateway = Gateway::start(&config);
    gateway.reload(&config).expect("as before");
    assert_eq!(
        (gateway.get("/").status, gateway.admin_get("/livez").status),
        (200, 200)
    );
    eventually("the first event is dropped", || {
        told(&gateway, "tollgate_webhook_events_dropped_total") == 1
    });
    assert_eq!(service.seen().len(), 2);
    // The second one is refused for good, and is not sent again; the third one is taken.
    gateway.reload(&config).expect("as before");
    eventually("the second event is dropped", || {
        told(&gateway, "tollgate_webhook_events_dropped_total") == 2
    });
    gateway.reload(&config).expect("as before");
    eventually("the third event is taken", || {
        told(&gateway, "tollgate_webhook_events_delivered_total") == 1
    });
    assert_eq!(service.seen().len(), 4);
    assert_eq!(event(&service.last())["data"]["generation"], 4);
    assert_eq!(
        service.last().header("webhook-signature"),
        None,
        "there is no secret"
    );
}

#[test]
fn webhook_reports_refusals_while_no_page_is_open() {
    let service = Upstream::hello();
    let limited = "limits = [\"one\"]\n[limits.one]\nrate = \"1/hour\"\nper = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n";
    let config = config(&service, "events = [\"refusals_began\"]", limited);
    let gateway = Gateway::start(&config);
    let named = |wanted: &str| {
        service
            .seen()
            .iter()
            .any(|seen| event(seen)["event"] == wanted)
    };
    let mut keys = 0;
    // What is refused already when the gateway begins to look is no event, so new keys are refused.
    eventually("the refusals are told", || {
        keys += 1;
        let key = [("x-api-key", &*format!("k{keys}"))];
        let statuses = [(); 2].map(|()| gateway.request("GET", "/", &key).status);
        assert_eq!(statuses, [200, 429]);
        named("refusals_began")
    });
    assert_eq!(event(&service.seen()[0])["data"]["limit"], "one");
    assert!(
        service
            .seen()
            .iter()
            .all(|seen| event(seen)["event"] == "refusals_began")
    );
}
