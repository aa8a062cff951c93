//! What a request costs, and what its answer makes of that: costs, estimates, failures given back, holding back.

use std::time::Duration;

use crate::harness::{Connection, Gateway, Reply, Upstream, eventually};

/// An upstream whose answer's status is the last segment of the path.
fn statuses() -> Upstream {
    Upstream::start(|seen| {
        let path = seen.line().split(' ').nth(1).unwrap_or_default();
        let status = path.rsplit('/').next().and_then(|last| last.parse().ok());
        Reply::new(status.unwrap_or(200), &[], "said")
    })
}

fn limited(numbers: &str, upstream: &str) -> String {
    format!(
        "[limits.it]\n{numbers}\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"it\"]\n"
    )
}

/// What `RateLimit` says is left, after a request on this connection: one connection, so that the answer before has been
/// settled.
fn left_after(connection: &mut Connection, path: &str, headers: &[(&str, &str)]) -> Option<u64> {
    let answer = connection.request("GET", path, headers);
    let field = answer.header("ratelimit")?;
    field.split("r=").nth(1)?.split(';').next()?.parse().ok()
}

#[test]
fn only_failures_count_where_that_is_asked() {
    let upstream = statuses();
    let gateway = Gateway::start(&limited(
        "rate = \"2/hour\"\nalgorithm = \"fixed_window\"\ncount = \"failures\"",
        &upstream.url(),
    ));
    let mut connection = gateway.connect();
    for _ in 0..5 {
        assert_eq!(connection.request("GET", "/200", &[]).status, 200);
    }
    assert_eq!(connection.request("GET", "/401", &[]).status, 401);
    assert_eq!(connection.request("GET", "/403", &[]).status, 403);
    assert_eq!(connection.request("GET", "/200", &[]).status, 429, "two failures are all there is");
    assert_eq!(upstream.seen().len(), 7);
}

#[test]
fn what_the_upstream_failed_to_answer_is_given_back() {
    let upstream = statuses();
    let dead = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().expect("its address");
    let gateway = Gateway::start(&format!(
        "[limits.it]\nrate = \"2/hour\"\nburst = 2\nper = \"address\"\nrefund_on = [\"5xx\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n\
         [[routes]]\nmatch = \"/dead\"\nupstream = \"http://{dead}\"\nlimits = [\"it\"]\n",
        upstream.url()
    ));
    let mut connection = gateway.connect();
    for _ in 0..3 {
        assert_eq!(connection.request("GET", "/503", &[]).status, 503);
        assert_eq!(connection.request("GET", "/dead", &[]).status, 502);
        // To a gRPC call a dead upstream is a 200 with a status of its own; it costs no more for that.
        let call =
            connection.request("POST", "/dead", &[("content-type", "application/grpc"), ("content-length", "0")]);
        assert_eq!((call.status, call.header("grpc-status")), (200, Some("14")));
    }
    assert_eq!(connection.request("GET", "/200", &[]).status, 200);
    assert_eq!(connection.request("GET", "/404", &[]).status, 404);
    assert_eq!(connection.request("GET", "/200", &[]).status, 429);
}

#[test]
fn an_estimate_is_corrected_from_what_the_answer_says() {
    let upstream = Upstream::start(|_| {
        let body = format!("{{\"id\":1,\"usage\":{{\"total_tokens\":400}},\"text\":\"{}\"}}", "x".repeat(9_000));
        Reply::new(200, &[("content-type", "application/json"), ("x-units", "70")], body)
    });
    for (from, real) in [("json:usage.total_tokens", 400), ("header:x-units", 70), ("bytes", 9)] {
        let gateway = Gateway::start(&limited(
            &format!("rate = \"1000/hour\"\nburst = 1000\nsettle = {{ from = \"{from}\", estimate = 10, max = 500 }}"),
            &upstream.url(),
        ));
        let mut connection = gateway.connect();
        assert_eq!(left_after(&mut connection, "/", &[]), Some(990), "{from}: the estimate");
        assert_eq!(
            left_after(&mut connection, "/", &[]),
            Some(990 - real),
            "{from}: what it really cost, and an estimate"
        );
    }
}

#[test]
fn a_cost_comes_with_the_request_or_from_the_route() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.it]\nrate = \"20/hour\"\nburst = 20\nper = \"address\"\n\
         cost = {{ header = \"x-cost\", default = 2, min = 1, max = 30 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"it\"]\n\
         [[routes]]\nmatch = \"/dear\"\nupstream = \"{url}\"\nlimits = [{{ limit = \"it\", cost = 7 }}]\n",
        url = upstream.url()
    ));
    let mut connection = gateway.connect();
    assert_eq!(left_after(&mut connection, "/", &[]), Some(18), "the default");
    assert_eq!(left_after(&mut connection, "/", &[("x-cost", "3")]), Some(15));
    assert_eq!(left_after(&mut connection, "/dear", &[]), Some(8), "the route's");
    let never = connection.request("GET", "/", &[("x-cost", "25")]);
    assert_eq!((never.status, never.header("retry-after")), (429, None), "no wait would help");
    assert!(never.json()["detail"].as_str().is_some_and(|words| words.contains("will not help")), "{never:?}");
    let later = connection.request("GET", "/", &[("x-cost", "9")]);
    assert_eq!((later.status, later.header("retry-after")), (429, Some("180")), "{later:?}");
}

#[test]
fn a_request_is_held_until_its_token_is_due() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("rate = \"1/minute\"\nburst = 1\nmax_wait = \"2m\"", &upstream.url()));
    assert_eq!(gateway.get("/").status, 200);
    let mut held = [gateway.connect(), gateway.connect()];
    for (place, connection) in held.iter_mut().enumerate() {
        connection.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        let line = format!("tollgate_limit_decisions_total{{limit=\"it\",outcome=\"allow\"}} {}", place + 2);
        eventually("it is decided", || gateway.admin_get("/metrics").text().contains(&line));
    }
    let refused = gateway.get("/");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("60")),
        "three minutes are too long to hold"
    );
    gateway.advance(Duration::from_micros(59_999_999));
    assert_eq!(upstream.seen().len(), 1, "nobody goes early");
    for connection in &mut held {
        gateway.advance(Duration::from_micros(1));
        assert_eq!(connection.answer("GET").status, 200, "in order, each at its moment");
        gateway.advance(Duration::from_micros(59_999_999));
    }
    assert_eq!(upstream.seen().len(), 3);
}
