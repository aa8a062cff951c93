//! Keys by route, method and host; the first of several sources; tiers and numbers of single clients.

use std::sync::Arc;

use super::fixtures::{by, identity, limit, policy, route, rule, send, with_callers};
use crate::identity::callers::{Caller, Callers, parse_digest};
use crate::identity::{WhenMissing, WhenUnknown};
use crate::{Policy, Scope, ScopePart};
use tollgate_limit::Mode;

fn split_by(part: ScopePart, routes: &[&str]) -> Policy {
    let routes = routes.iter().map(|pattern| route(pattern, &[0])).collect();
    policy(
        Vec::new(),
        vec![rule("a", Scope::Identities(vec![part]))],
        routes,
    )
}

#[test]
fn scope_method_made_up_shares_one_bucket() {
    let policy = split_by(ScopePart::Method, &["/**", "PURGE /cache"]);
    let key = |line: &str| send(line, &[]).claims(&policy);
    assert_eq!(key("GET /x"), ["a method GET 1"]);
    assert_eq!(key("HEAD /x"), ["a method GET 1"]);
    assert_eq!(key("POST /x"), ["a method POST 1"]);
    for made_up in ["FOO /x", "BAR /x", "PURGE /x"] {
        assert_eq!(key(made_up), ["a method other 1"], "{made_up}");
    }
    assert_eq!(
        key("PURGE /cache"),
        ["a method PURGE 1"],
        "the route lists it"
    );
}

#[test]
fn scope_method_of_any_name_has_no_more_buckets_than_standard_and_listed_ones() {
    let policy = split_by(ScopePart::Method, &["/**", "PURGE|LINK /cache"]);
    let standard = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE",
    ];
    let made_up = (0..100).map(|number| format!("M{number}"));
    let methods: Vec<String> = standard
        .into_iter()
        .chain(["PURGE", "LINK", "PROPFIND"])
        .map(str::to_owned)
        .chain(made_up)
        .collect();
    let buckets = |path: &str| {
        let keys = methods
            .iter()
            .flat_map(|method| send(&format!("{method} {path}"), &[]).claims(&policy));
        keys.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(buckets("/x"), 8, "seven, and one for all others");
    assert_eq!(buckets("/cache"), 10, "and two that its route lists");
}

#[test]
fn scope_host_made_up_is_no_fresh_bucket() {
    let routes = ["api.example.com/**", "*.example.com/**", "/**"];
    let policy = split_by(ScopePart::Host, &routes);
    let key = |host: &str| send("GET /x", &[("host", host)]).claims(&policy);
    assert_eq!(key("api.example.com"), ["a host api.example.com 1"]);
    assert_eq!(key("API.example.com:8080"), ["a host api.example.com 1"]);
    for made_up in ["a.example.com", "b.example.com"] {
        assert_eq!(key(made_up), ["a host *.example.com 1"]);
    }
    for made_up in ["one.test", "two.test"] {
        assert_eq!(key(made_up), ["a any host 1"]);
    }
}

#[test]
fn scope_route_is_the_name_of_the_route() {
    let policy = split_by(ScopePart::Route, &["/a/{id}", "/b"]);
    let key = |line: &str| send(line, &[]).claims(&policy);
    assert_eq!(key("GET /a/1"), ["a route /a/{id} 1"]);
    assert_eq!(key("GET /a/2"), ["a route /a/{id} 1"]);
    assert_eq!(key("GET /b"), ["a route /b 1"]);
}

#[test]
fn first_of_takes_the_key_wherever_it_stands_and_refuses_two_that_differ() {
    let mut tenant = identity(
        "tenant",
        &["header:x-api-key", "query:key"],
        WhenMissing::Refuse,
    );
    tenant.first_of = true;
    let policy = policy(
        vec![tenant],
        vec![rule("a", by(0))],
        vec![route("/**", &[0])],
    );
    let claims = |line: &str, headers: &[(&'static str, &str)]| send(line, headers).claims(&policy);
    let one = [r#"a "k1" 1"#];
    assert_eq!(claims("GET /", &[("x-api-key", "k1")]), one);
    assert_eq!(claims("GET /?key=k1", &[]), one);
    assert_eq!(claims("GET /?key=k1", &[("x-api-key", "k1")]), one);
    // The upstream may read the other one: a made-up first key would be a fresh bucket for the real second.
    assert_eq!(
        claims("GET /?key=k1", &[("x-api-key", "made-up")]),
        ["identity `tenant`: the key is ambiguous: given twice"]
    );
    assert_eq!(
        claims("GET /", &[]),
        ["identity `tenant`: the key is missing"]
    );
}

#[test]
fn clients_counted_by_address_have_the_tier_that_the_identity_gives_them() {
    let mut tenant = with_callers(
        identity("tenant", &["header:x-api-key"], WhenMissing::UseAddress),
        WhenUnknown::UseAddress,
    );
    tenant.address_tier = Some("anonymous".into());
    let mut search = rule("search", by(0));
    search.tiers = vec![("anonymous".into(), limit("search", Mode::Shadow))];
    let policy = policy(vec![tenant], vec![search], vec![route("/**", &[0])]);
    // Shadowed claims stand in brackets: these are the tier's numbers. A made-up key must not lead to others.
    let anonymous = ["[search address 192.0.2.1 1]"];
    assert_eq!(send("GET /", &[]).claims(&policy), anonymous);
    assert_eq!(
        send("GET /", &[("x-api-key", "made-up")]).claims(&policy),
        anonymous
    );
    assert_eq!(
        send("GET /", &[("x-api-key", "test")]).claims(&policy),
        ["search caller acme 1"]
    );
}

#[test]
fn a_caller_with_numbers_of_its_own_keeps_its_bucket_and_its_tier() {
    let mut tenant = with_callers(
        identity("tenant", &["header:x-api-key"], WhenMissing::Refuse),
        WhenUnknown::Refuse,
    );
    let acme = Caller::new("acme", Some("pro".into()), true);
    let digest = parse_digest(&crate::identity::callers::digest_words(b"test")).expect("a digest");
    tenant.callers = Some(arc_swap::ArcSwap::from_pointee(
        Callers::new([(digest, acme)]).expect("one caller"),
    ));
    let mut search = rule("search", by(0));
    search.tiers = vec![
        ("pro".into(), limit("search", Mode::Enforce)),
        ("caller acme".into(), limit("search", Mode::Shadow)),
    ];
    let policy = policy(vec![tenant], vec![search], vec![route("/**", &[0])]);
    let sent = send("GET /", &[("x-api-key", "test")]);
    assert_eq!(sent.claims(&policy), ["[search caller acme 1]"]);
    let request = sent.describe(&policy);
    let matched = policy.route(&request).expect("a route");
    let who = policy.identify(&matched, &request, 0).expect("known");
    assert_eq!(who.tier().map(Arc::as_ref), Some("pro"));
}

#[test]
fn look_up_key_of_a_cookie_is_spelt_as_in_a_request() {
    let cookie = identity("session", &["cookie:sid"], WhenMissing::Refuse);
    let header = identity("tenant", &["header:x-key"], WhenMissing::Refuse);
    let policy = policy(
        vec![cookie, header],
        vec![rule("a", Scope::Identities(vec![ScopePart::Identity(0)]))],
        vec![route("/**", &[0])],
    );
    let key = |identity: &str, value: &str| {
        let found = policy.look_up_key(identity, &[value]);
        found.map(|found| found.key)
    };
    let plain = key("session", "ann+b").expect("a key");
    for spelling in ["\"ann+b\"", "%61nn%20b", "ann b", " ann+b ", "%22ann+b%22"] {
        assert_eq!(key("session", spelling).as_ref(), Ok(&plain), "{spelling}");
        let claimed = send("GET /x", &[("cookie", &format!("sid={spelling}"))]).claims(&policy);
        assert_eq!(
            claimed,
            send("GET /x", &[("cookie", "sid=ann+b")]).claims(&policy),
            "{spelling}"
        );
    }
    for several in ["a,b", "\"a\\b\"", "a\"b", "\"\""] {
        assert!(key("session", several).is_err(), "{several}");
    }
    // The value of a header has one spelling.
    assert_ne!(key("tenant", "%61"), key("tenant", "a"));
}
