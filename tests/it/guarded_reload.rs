//! A changed file is judged by recent requests: one that would newly limit callers is refused.

use std::time::Duration;

use crate::harness::{Connection, Gateway, Upstream};

const GUARD: &str = "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\n\
                     reload = { refuse_if_newly_limited = \"10% of keys\", remember = \"1MiB\" }\n\
                     [address]\ntrusted_proxies = [\"127.0.0.0/8\"]\n";

/// A file whose one limit has these lines, and whose route `/` has it.
fn limited(numbers: &str, upstream: &Upstream) -> String {
    format!(
        "{GUARD}[limits.one]\n{numbers}\n[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"one\"]\n",
        upstream.url()
    )
}

fn open(upstream: &Upstream) -> String {
    format!(
        "{GUARD}[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        upstream.url()
    )
}

/// Ten clients send six requests each within a second, and the first one three more.
fn traffic(gateway: &Gateway) {
    let mut connection = gateway.connect();
    for number in 0..63_u64 {
        let client = if number < 60 { number % 10 } else { 0 };
        let client = format!("192.0.2.{client}");
        let headers = [
            ("x-forwarded-for", client.as_str()),
            ("x-api-key", "secret"),
        ];
        assert_eq!(connection.request("GET", "/", &headers).status, 200);
        gateway.advance(Duration::from_millis(10));
    }
}

fn status(gateway: &Gateway) -> serde_json::Value {
    let text = gateway.admin_get("/api/v1/status").text();
    serde_json::from_str(&text).expect("JSON")
}

fn post(gateway: &Gateway, path: &str) -> (u16, String) {
    let answer = Connection::open(gateway.admin()).request("POST", path, &[]);
    (answer.status, answer.text())
}

#[test]
fn reload_that_would_newly_limit_callers_is_refused_and_can_be_forced() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited(
        "rate = \"100/minute\"\nper = \"address\"",
        &upstream,
    ));
    traffic(&gateway);
    let tight = limited("rate = \"5/hour\"\nper = \"address\"", &upstream);
    let why = gateway
        .reload(&tight)
        .expect_err("it would limit all callers");
    for wanted in [
        "would newly refuse 13 of 63 recent requests, of 10 keys",
        "more than 10% of keys",
        "limit `one`: 10 of 10 keys",
        "one: address 192.0.2.0 would lose 4 of 9 requests",
        "one: address 192.0.2.1 would lose 1 of 6 requests",
        "/-/reload?force",
    ] {
        assert!(why.contains(wanted), "{wanted}: {why}");
    }
    let before = status(&gateway);
    assert_eq!(before["configuration"]["generation"], 1);
    let said = before["configuration"]["last_error"]
        .as_str()
        .unwrap_or_default();
    assert!(said.contains("192.0.2.0"), "{said}");
    // The old file stays in force: eleven more than the new one would admit.
    let mut connection = gateway.connect();
    for _ in 0..11 {
        let headers = [("x-forwarded-for", "192.0.2.1")];
        assert_eq!(connection.request("GET", "/", &headers).status, 200);
    }
    let (code, said) = post(&gateway, "/-/reload");
    assert_eq!(code, 422, "{said}");
    assert!(said.contains("192.0.2.0"), "{said}");
    let (code, said) = post(&gateway, "/-/reload?force=false");
    assert_eq!(code, 400, "{said}");
    let (code, said) = post(&gateway, "/-/reload?force");
    assert_eq!(code, 200, "{said}");
    assert_eq!(status(&gateway)["configuration"]["generation"], 2);
    let headers = [("x-forwarded-for", "192.0.2.7")];
    let statuses: Vec<u16> = (0..6)
        .map(|_| connection.request("GET", "/", &headers).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
}

#[test]
fn reload_that_newly_limits_few_enough_is_taken() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited(
        "rate = \"100/minute\"\nper = \"address\"",
        &upstream,
    ));
    traffic(&gateway);
    // One of ten keys is 10 %, and not more.
    gateway
        .reload(&limited("rate = \"7/hour\"\nper = \"address\"", &upstream))
        .expect("nine of ten callers lose nothing");
    // Back: what is admitted again limits no caller.
    gateway
        .reload(&limited(
            "rate = \"100/minute\"\nper = \"address\"",
            &upstream,
        ))
        .expect("a larger limit");
    // Counted in shadow mode, and refused once it is to be enforced.
    let shadow = limited(
        "rate = \"5/hour\"\nper = \"address\"\nmode = \"shadow\"",
        &upstream,
    );
    gateway.reload(&shadow).expect("it refuses no request");
    let why = gateway
        .reload(&shadow.replace("mode = \"shadow\"", "mode = \"enforce\""))
        .expect_err("it would limit all callers");
    assert!(why.contains("10 of 10 keys"), "{why}");
    // The share in force decides, not the one of the new file.
    let why = gateway
        .reload(
            &limited("rate = \"5/hour\"\nper = \"address\"", &upstream)
                .replace("10% of keys", "100% of keys"),
        )
        .expect_err("it would limit all callers");
    assert!(why.contains("more than 10% of keys"), "{why}");
}

#[test]
fn reload_that_adds_the_first_limit_is_judged_by_address_and_for_everyone() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    traffic(&gateway);
    let why = gateway
        .reload(&limited("rate = \"5/hour\"\nper = \"address\"", &upstream))
        .expect_err("it would limit all callers");
    assert!(
        why.contains("one: address 192.0.2.0 would lose 4 of 9 requests"),
        "{why}"
    );
    let why = gateway
        .reload(&limited(
            "rate = \"60/hour\"\nper = \"everyone\"",
            &upstream,
        ))
        .expect_err("all share one key");
    assert!(
        why.contains("one: everyone would lose 3 of 63 requests"),
        "{why}"
    );
    gateway
        .reload(&limited(
            "rate = \"63/hour\"\nper = \"everyone\"",
            &upstream,
        ))
        .expect("just enough");
    // Recent requests hold no key for this one: it cannot be judged, and is taken.
    let by_header = "rate = \"1/hour\"\nper = \"header:x-api-key\"\nwhen_missing = \"refuse\"";
    gateway
        .reload(&limited(by_header, &upstream))
        .expect("not judged");
}

#[test]
fn reload_names_no_secret_of_a_caller() {
    let upstream = Upstream::hello();
    let by_header = |rate: &str| {
        limited(
            &format!("rate = \"{rate}\"\nper = \"header:x-api-key\"\nwhen_missing = \"refuse\""),
            &upstream,
        )
    };
    let gateway = Gateway::start(&by_header("100/minute"));
    traffic(&gateway);
    let why = gateway
        .reload(&by_header("5/hour"))
        .expect_err("it would hit the caller");
    assert!(why.contains("limit `one`: 1 of 1 keys"), "{why}");
    assert!(!why.contains("secret"), "{why}");
    // Without the table nothing is judged.
    let gateway = Gateway::start(&by_header("100/minute").replace(
        "reload = { refuse_if_newly_limited = \"10% of keys\", remember = \"1MiB\" }\n",
        "",
    ));
    traffic(&gateway);
    gateway
        .reload(&by_header("5/hour"))
        .expect("nothing is remembered");
}
