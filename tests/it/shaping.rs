//! `max_wait`: held until the token is due, in order; refused at once when that is too long.

use std::time::Duration;

use crate::harness::{Connection, Gateway, Upstream, eventually};

fn shaped(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "[limits.shaped]\nrate = \"10/second\"\nburst = 1\nmax_wait = \"250ms\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"shaped\"]\n",
        upstream.url()
    ))
}

/// Requests admitted and refused so far: decided, though perhaps still held.
fn decided(gateway: &Gateway) -> [u64; 2] {
    let metrics = gateway.admin_get("/metrics").text();
    ["allow", "deny"].map(|outcome| {
        let line =
            format!("tollgate_limit_decisions_total{{limit=\"shaped\",outcome=\"{outcome}\"}} ");
        metrics
            .lines()
            .find_map(|found| found.strip_prefix(&line)?.parse().ok())
            .unwrap_or(0)
    })
}

/// Sends a request; whether it was admitted, though it may be held.
fn sent(gateway: &Gateway, connection: &mut Connection, path: &str) -> bool {
    let before = decided(gateway);
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    eventually("it is decided", || decided(gateway) != before);
    decided(gateway)[0] > before[0]
}

/// A request that is held.
fn held(gateway: &Gateway, path: &str) -> Connection {
    let mut connection = gateway.connect();
    assert!(sent(gateway, &mut connection, path), "{path} has no place");
    connection
}

fn paths(upstream: &Upstream) -> Vec<String> {
    upstream
        .seen()
        .iter()
        .map(|seen| seen.line().split(' ').nth(1).unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn requests_are_held_until_they_are_due_in_order_and_refused_beyond_the_longest_wait() {
    let upstream = Upstream::hello();
    let gateway = shaped(&upstream);
    assert_eq!(gateway.get("/first").status, 200);
    let (mut second, mut third) = (held(&gateway, "/second"), held(&gateway, "/third"));
    let waiting = |count: u8| {
        let line = format!("\ntollgate_requests_held {count}.0\n");
        eventually("the metrics tell who waits", || {
            gateway.admin_get("/metrics").text().contains(&line)
        });
    };
    waiting(2);
    let refused = gateway.get("/fourth");
    assert_eq!(refused.status, 429, "300 ms is longer than it may be held");
    assert_eq!(refused.json()["retry_after_ms"], 50);
    assert_eq!(paths(&upstream), ["/first"]);
    gateway.advance(Duration::from_micros(49_999));
    assert_eq!(
        gateway.get("/fourth").status,
        429,
        "a microsecond too early"
    );
    gateway.advance(Duration::from_micros(50_001));
    assert_eq!(second.answer("GET").status, 200);
    assert_eq!(paths(&upstream), ["/first", "/second"]);
    let mut fourth = held(&gateway, "/fourth");
    gateway.advance(Duration::from_millis(100));
    assert_eq!(third.answer("GET").status, 200);
    gateway.advance(Duration::from_millis(100));
    assert_eq!(fourth.answer("GET").status, 200);
    assert_eq!(paths(&upstream), ["/first", "/second", "/third", "/fourth"]);
    waiting(0);
}

/// A caller that is held behind another sends `head` and leaves: its place is the next one's, as soon as it is seen to have
/// gone, and it is never sent on.
fn leaves_while_held(gateway: &Gateway, upstream: &Upstream, head: &str) {
    assert_eq!(gateway.get("/first").status, 200);
    let mut second = held(gateway, "/second");
    let before = decided(gateway);
    let mut third = gateway.connect();
    third.send(head);
    eventually("it is decided", || decided(gateway) != before);
    assert_eq!(decided(gateway)[0], before[0] + 1, "held");
    assert_eq!(gateway.get("/fourth").status, 429);
    drop(third);
    let mut fourth = gateway.connect();
    eventually("the place is free", || {
        let admitted = sent(gateway, &mut fourth, "/fourth");
        if !admitted {
            assert_eq!(fourth.answer("GET").status, 429);
        }
        admitted
    });
    gateway.advance(Duration::from_millis(100));
    assert_eq!(second.answer("GET").status, 200);
    gateway.advance(Duration::from_millis(100));
    assert_eq!(fourth.answer("GET").status, 200);
    assert_eq!(
        paths(upstream),
        ["/first", "/second", "/fourth"],
        "who left is never sent on"
    );
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the worker's wheel turns in real time"
)]
fn max_wait_client_gone_gives_its_place_back_unless_a_later_request_waits() {
    let upstream = Upstream::hello();
    let gateway = shaped(&upstream);
    leaves_while_held(
        &gateway,
        &upstream,
        "GET /third HTTP/1.1\r\nHost: x\r\n\r\n",
    );

    gateway.advance(Duration::from_secs(1));
    assert_eq!(gateway.get("/a").status, 200);
    let (b, mut c) = (held(&gateway, "/b"), held(&gateway, "/c"));
    drop(b);
    // That a caller who waits has gone may be seen two ticks of the worker's wheel later.
    let seen = std::time::Instant::now() + 5 * tollgate_net::timers::TICK;
    while std::time::Instant::now() < seen {
        assert_eq!(
            gateway.get("/d").status,
            429,
            "another request waits behind: no moment is promised twice"
        );
    }
    gateway.advance(Duration::from_millis(200));
    assert_eq!(c.answer("GET").status, 200);
    assert!(!paths(&upstream).contains(&"/b".to_owned()));
}

#[test]
fn who_leaves_in_the_middle_of_a_body_that_is_not_read_yet_is_seen_to_leave() {
    for begun in [
        "Content-Length: 10\r\n\r\npart",
        "Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    ] {
        let upstream = Upstream::hello();
        let gateway = shaped(&upstream);
        leaves_while_held(
            &gateway,
            &upstream,
            &format!("POST /third HTTP/1.1\r\nHost: x\r\n{begun}"),
        );
    }
}

#[test]
fn a_body_that_came_while_its_request_was_held_is_whole() {
    let upstream = Upstream::hello();
    let gateway = shaped(&upstream);
    assert_eq!(gateway.get("/first").status, 200);
    let before = decided(&gateway);
    let mut second = gateway.connect();
    second.send("POST /second HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n");
    eventually("it is decided", || decided(&gateway) != before);
    // More than is read ahead.
    second.send("x".repeat(200_000));
    gateway.advance(Duration::from_millis(100));
    second.send("x".repeat(100_000));
    assert_eq!(second.answer("POST").status, 200);
    assert_eq!(upstream.last().body.len(), 300_000);
}
