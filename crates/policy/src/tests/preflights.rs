//! A browser's question whether it may ask is not the request.

use super::fixtures::{by, identity, policy, route, rule, send};
use crate::identity::WhenMissing;

#[test]
fn a_preflight_takes_the_route_of_the_request_it_asks_about() {
    let routes = vec![
        route("/**", &[]),
        route("POST /a", &[]),
        route("PUT /b", &[]),
        route("OPTIONS /b", &[]),
    ];
    let policy = policy(Vec::new(), Vec::new(), routes);
    let taken = |line: &str, headers: &[(&'static str, &str)]| {
        let sent = send(line, headers);
        policy
            .route(&sent.describe(&policy))
            .map(|matched| matched.route)
    };
    let asking = |method| {
        [
            ("origin", "https://a.example"),
            ("access-control-request-method", method),
        ]
    };
    assert_eq!(taken("OPTIONS /a", &asking("POST")), Some(1));
    assert_eq!(taken("OPTIONS /a", &asking("PATCH")), Some(0));
    assert_eq!(taken("OPTIONS /a", &asking("")), Some(0));
    assert_eq!(taken("OPTIONS /a", &asking("POST")[1..]), Some(0));
    assert_eq!(taken("GET /a", &asking("POST")), Some(0));
    assert_eq!(taken("OPTIONS /b", &asking("PUT")), Some(3));
}

#[test]
fn preflight_is_only_a_request_a_browser_would_send() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(
        vec![tenant],
        vec![rule("tenant", by(0))],
        vec![route("/**", &[0])],
    );
    let asking = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "POST"),
    ];
    let is_preflight = |more: &[(&'static str, &str)]| {
        let sent = send("OPTIONS /a", &[&asking, more].concat());
        policy.preflight(&sent.describe(&policy)).is_some()
    };
    assert!(is_preflight(&[]));
    assert!(is_preflight(&[
        ("content-length", "0"),
        ("access-control-request-headers", "x-api-key")
    ]));
    for more in [
        ("origin", "https://b.example"),
        ("access-control-request-method", "GET"),
        ("authorization", "Bearer x"),
        ("cookie", "sid=1"),
        ("x-api-key", "k"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("x-http-method-override", "DELETE"),
    ] {
        assert!(!is_preflight(&[more]), "{more:?}");
    }
    for (query, is_one) in [
        ("?_method=POST", false),
        ("?a=1&_Method=POST", false),
        ("?%5Fmethod=POST", false),
        ("?a=1;_method=POST", false),
        ("?[_method]=POST", false),
        ("?method=POST", true),
    ] {
        let sent = send(&format!("OPTIONS /a{query}"), &asking);
        let found = policy.preflight(&sent.describe(&policy)).is_some();
        assert_eq!(found, is_one, "{query}");
    }
}
