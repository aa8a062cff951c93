//! Request bodies that fail on their way to an HTTP/2 upstream: the client is at fault, not the server.

use super::super::relay::{defaults, gateway_of, in_turn, route, upstream};
use super::peers::mirror;
use crate::forward::tests::relay::Gateway;
use crate::forward::{ServerHealth, UpstreamHealth};
use crate::proxy_defaults::ProxyDefaults;
use tollgate_limit::Micros;
use tollgate_limiter::Cause;
use tollgate_policy::upstream::Upstream;

const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A gateway in front of two HTTP/2 servers, each of which one failure ejects. A body may have eight
/// bytes, and 200 ms.
fn strict() -> (Gateway, Upstream, UpstreamHealth) {
    let mut two = in_turn(upstream(mirror()), mirror());
    two.http2 = true;
    let mut route = route();
    route.body_max = Some(8);
    let defaults = ProxyDefaults {
        body_rate: 1_000,
        body_grace: Micros(200_000),
        ..defaults()
    };
    let health = UpstreamHealth::default();
    let gateway = gateway_of(two.clone(), route, defaults, health.clone());
    (gateway, two, health)
}

fn assert_up(two: &Upstream, health: &UpstreamHealth, case: &str) {
    for server in health.status(two) {
        assert_eq!(server.state, Some(ServerHealth::Up), "{case}: {server:?}");
        assert_eq!(server.last_error, None, "{case}");
    }
}

#[test]
fn http2_request_body_that_fails_has_the_status_of_its_failure_and_ejects_no_server() {
    for (body, status, says) in [
        ("9\r\n123456789\r\n0\r\n\r\n", 413, "large"),
        ("2\r\nhi\r\n9\r\n123456789\r\n0\r\n\r\n", 413, "large"),
        ("2\r\nhi\r\nzz\r\n", 400, ""),
        ("2\r\nhi\r\n", 408, "slowly"),
    ] {
        let (gateway, two, health) = strict();
        for _ in 0..2 {
            let response = gateway.ask(&format!("{CHUNKED}{body}"));
            assert_eq!(response.status, status, "{body:?}: {response:?}");
            assert!(response.body.contains(says), "{body:?}: {response:?}");
        }
        assert_eq!(gateway.causes(), [Cause::Client; 2], "{body:?}");
        assert_up(&two, &health, body);
        assert_eq!(gateway.ask(&format!("{CHUNKED}0\r\n\r\n")).status, 200);
    }
}
