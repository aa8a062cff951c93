//! What a policy takes from headers, and what it writes into them.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::fixtures::{NOW, by, identity, policy, route, rule, send, with_callers};
use crate::identity::{WhenMissing, WhenUnknown};
use crate::routes::Template;

#[test]
fn edits_remove_headers_spelt_like_keys_or_edited_headers() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let mut edited = route("/**", &[0]);
    edited.request_headers.remove = vec![HeaderName::from_static("x-internal")];
    let tier = Template::parse("pro", |_| None).expect("a template");
    edited.request_headers.set = vec![(HeaderName::from_static("x-tier"), tier)];
    let policy = policy(vec![tenant], vec![rule("tenant", by(0))], vec![edited]);
    let mut headers = HeaderMap::new();
    for name in [
        "x_api_key",
        "x-api_key",
        "x-api-key",
        "x_internal",
        "x_tier",
        "x_other",
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
    }
    policy.drop_lookalikes(true, &mut headers);
    let sent = send("GET /", &[("x-api-key", "1")]);
    let request = sent.describe(&policy);
    let matched = policy.route(&request).expect("a route");
    let who = policy
        .identify(&matched, &request, NOW)
        .expect("identified");
    policy
        .edits(&policy.routes[0].request_headers, &matched, &who, &request)
        .apply(&mut headers);
    let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["x-api-key", "x-tier", "x_other"]);
}

#[test]
fn templates_are_filled_from_the_request() {
    let tenant = with_callers(
        identity("tenant", &["header:x-api-key"], WhenMissing::Skip),
        WhenUnknown::Accept,
    );
    let mut edited = route("example.com/{id}", &[0]);
    let template =
        |text| Template::parse(text, |name| (name == "tenant").then_some(0)).expect("a template");
    edited.request_headers.set = vec![
        (
            HeaderName::from_static("x-who"),
            template("{caller}/{tier}/{identity:tenant}"),
        ),
        (
            HeaderName::from_static("x-where"),
            template("{host} {path:id} {address} {route}"),
        ),
    ];
    edited.request_headers.remove = vec![HeaderName::from_static("x-api-key")];
    let policy = policy(vec![tenant], vec![rule("a", by(0))], vec![edited]);
    let filled = |key: &str| {
        let mut sent = send("GET http://EXAMPLE.com/a%20b", &[("x-api-key", key)]);
        let headers = sent.headers.clone();
        let request = policy
            .describe(None, &sent.method, &sent.uri, &headers, sent.peer, None)
            .expect("well formed");
        let matched = policy.route(&request).expect("a route");
        let who = policy
            .identify(&matched, &request, NOW)
            .expect("identified");
        policy
            .edits(&policy.routes[0].request_headers, &matched, &who, &request)
            .apply(&mut sent.headers);
        assert!(!sent.headers.contains_key("x-api-key"));
        (
            sent.headers["x-who"].clone(),
            sent.headers["x-where"].clone(),
        )
    };
    assert_eq!(filled("test").0, "acme/pro/acme");
    assert_eq!(filled("k2").0, "//k2");
    assert_eq!(filled("k2").1, "example.com a b 192.0.2.1 example.com/{id}");
}
