//! Which requests are sent again, how often and to which server.

use super::connections::{GET, POST, dead};
use super::origin::{OK, Origin};
use super::relay::{gateway, server, upstream};
use tollgate_policy::upstream::{Balance, HostPolicy, Upstream};

const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// An upstream that responds to one request per connection, and closes it after reading the next.
fn closes_at_reuse() -> Origin {
    Origin::start(|conn| {
        conn.request()?;
        conn.send(OK)?;
        conn.request().map(|_| ())
    })
}

#[test]
fn a_get_survives_a_connection_that_closes_at_reuse() {
    let origin = closes_at_reuse();
    let mut two = upstream(origin.address);
    two.attempts = 2;
    let gateway = gateway(two);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(gateway.ask(GET).status, 200);
    let records = origin.records();
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(
        records[0].matches("GET /").count(),
        2,
        "it was sent on the old connection"
    );
    assert_eq!(
        records[1].matches("GET /").count(),
        1,
        "and once more on a fresh one"
    );
}

#[test]
fn retries_after_closed_connections_are_bounded_by_the_retry_budget() {
    const REQUESTS: usize = 300;
    // The budget holds 500, each request adds one, each retry takes five.
    const RETRIES_MOST: usize = (500 + REQUESTS) / 5;
    let origin = closes_at_reuse();
    let mut two = upstream(origin.address);
    two.attempts = 2;
    let gateway = gateway(two);
    let served = (0..REQUESTS).filter(|_| gateway.ask(GET).status == 200);
    let served = served.count();
    let sent = origin.records().concat().matches("GET /").count();
    assert!(sent <= REQUESTS + RETRIES_MOST, "{sent}");
    assert!(served < REQUESTS, "the others are 502");
    assert!(served > 100, "{served}");
}

#[test]
fn retries_after_a_status_are_bounded_by_the_retry_budget() {
    const REQUESTS: usize = 300;
    const RETRIES_MOST: usize = (500 + REQUESTS) / 5;
    let ill = Origin::responding(UNAVAILABLE);
    let mut two = upstream(ill.address);
    (two.attempts, two.retry.statuses, two.eject.failures) = (2, vec![503], 1_000_000);
    let gateway = gateway(two);
    for _ in 0..REQUESTS {
        assert_eq!(gateway.ask(GET).status, 503);
    }
    let sent = ill.records().concat().matches("GET /").count();
    assert!(sent <= REQUESTS + RETRIES_MOST, "{sent}");
    assert!(sent > REQUESTS + 100, "{sent}");
}

#[test]
fn retry_ends_with_the_last_attempt() {
    let ill = [(); 3].map(|()| Origin::responding(UNAVAILABLE));
    let mut three = in_turn([&ill[0], &ill[1]]);
    three.servers.push(server(ill[2].address));
    (three.retry.statuses, three.eject.failures) = (vec![503], 1000);
    assert_eq!(gateway(three).ask(GET).status, 503);
    let sent = ill.iter().map(|origin| origin.records().len());
    assert_eq!(sent.sum::<usize>(), 2, "of three servers two are asked");
}

#[test]
fn retries_after_a_resend_that_found_no_connection_have_one_attempt_left() {
    let (leaving, dead, well) = (leaves_at_reuse(), dead(), Origin::responding(OK));
    let mut three = upstream(leaving.address);
    three.servers.extend([server(dead), server(well.address)]);
    (three.balance, three.attempts, three.eject.failures) = (Balance::RoundRobin, 2, 1000);
    let gateway = gateway(three);
    // Of the requests that begin with the server that leaves, the second finds its connection closed.
    let statuses: Vec<u16> = (0..6).map(|_| gateway.ask(GET).status).collect();
    let asked = leaving.records().concat().matches("GET /").count();
    assert_eq!(asked, 2, "the second time in vain");
    assert_eq!(
        statuses.iter().filter(|status| **status == 502).count(),
        2,
        "its one other attempt, and that of the next, is at the dead server: {statuses:?}"
    );
}

#[test]
fn a_post_is_never_sent_twice() {
    for post in [
        POST,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
    ] {
        let origin = closes_at_reuse();
        let mut three = upstream(origin.address);
        three.attempts = 3;
        let gateway = gateway(three);
        assert_eq!(gateway.ask(GET).status, 200);
        assert_eq!(gateway.ask(post).status, 502, "{post:?}");
        assert_eq!(origin.records().len(), 1, "{post:?}");
    }
}

#[test]
fn a_fresh_connection_that_closes_is_not_tried_again() {
    let origin = Origin::start(|conn| conn.request().map(|_| ()));
    assert_eq!(gateway(upstream(origin.address)).ask(GET).status, 502);
    assert_eq!(origin.records().len(), 1);
}

#[test]
fn request_with_a_begun_response_is_not_sent_again() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(OK)?;
        conn.request()?;
        conn.send("HTTP/1.1 200 O")
    });
    let gateway = gateway(upstream(origin.address));
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(gateway.ask(GET).status, 502);
    assert_eq!(origin.records().len(), 1);
}

#[test]
fn a_connect_failure_goes_to_another_server() {
    let origin = Origin::responding(OK);
    let mut two = upstream(dead());
    two.servers.push(server(origin.address));
    two.balance = Balance::RoundRobin;
    two.attempts = 2;
    let gateway = gateway(two);
    for _ in 0..6 {
        assert_eq!(gateway.ask(POST).status, 200);
    }
}

/// Responds to one request, stops listening, and closes the connection after reading the next.
fn leaves_at_reuse() -> Origin {
    Origin::leaving(|conn| {
        conn.request()?;
        conn.send(OK)?;
        conn.request().map(|_| ())
    })
}

/// The servers take turns, whichever is first, and an attempt may follow another.
fn in_turn(servers: [&Origin; 2]) -> Upstream {
    let mut two = upstream(servers[0].address);
    two.servers.push(server(servers[1].address));
    two.balance = Balance::RoundRobin;
    two.attempts = 2;
    two
}

#[test]
fn a_get_goes_elsewhere_when_its_connection_closes_and_no_other_can_be_made() {
    const BARE: &str = "GET /x?y HTTP/1.0\r\n\r\n";
    const NAMED: &str = "GET /x?y HTTP/1.1\r\nHost: a\r\nX-Some: thing\r\nX-Empty:\r\n\r\n";
    for (request, policy) in [
        (NAMED, HostPolicy::Keep),
        (NAMED, HostPolicy::Upstream),
        (BARE, HostPolicy::Keep),
    ] {
        let (leaving, stays) = (leaves_at_reuse(), Origin::responding(OK));
        let mut two = in_turn([&leaving, &stays]);
        two.servers[0].base_path = "/one".to_owned();
        two.servers[1].base_path = "/two".to_owned();
        two.host = policy.clone();
        let gateway = gateway(two);
        for _ in 0..4 {
            assert_eq!(gateway.ask(request).status, 200, "{request:?} {policy:?}");
        }
        assert_eq!(
            leaving.records()[0]
                .matches("GET /one/x?y HTTP/1.1")
                .count(),
            2,
            "the second time in vain"
        );
        let seen = stays.records().concat();
        assert_eq!(
            seen.matches("GET /two/x?y HTTP/1.1\r\n").count(),
            3,
            "{seen}"
        );
        let own = request == BARE || policy == HostPolicy::Upstream;
        let host = if own {
            stays.address.to_string()
        } else {
            "a".to_owned()
        };
        assert_eq!(
            seen.matches(&format!("\r\nhost: {host}\r\n")).count(),
            3,
            "{seen}"
        );
        assert_eq!(seen.matches("\r\nhost:").count(), 3, "{seen}");
        let others = if request == NAMED { 3 } else { 0 };
        assert_eq!(
            seen.matches("\r\nx-some: thing\r\n").count(),
            others,
            "{seen}"
        );
        assert_eq!(seen.matches("\r\nx-empty: \r\n").count(), others, "{seen}");
    }
}

#[test]
fn retry_every_attempt_has_the_forwarding_headers() {
    let (leaving, ill, well) = (
        leaves_at_reuse(),
        Origin::responding(UNAVAILABLE),
        Origin::responding(OK),
    );
    let mut three = in_turn([&leaving, &ill]);
    three.servers.push(server(well.address));
    (three.attempts, three.retry.statuses, three.eject.failures) = (3, vec![503], 1000);
    let gateway = gateway(three);
    for _ in 0..6 {
        assert_eq!(gateway.ask(GET).status, 200);
    }
    assert_eq!(
        leaving.records()[0].matches("GET / ").count(),
        2,
        "the second time in vain"
    );
    for server in [&leaving, &ill, &well] {
        let seen = server.records().concat();
        for field in [
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-proto: http",
            "x-forwarded-host: a",
            "host: a",
        ] {
            let lines = seen.matches(&format!("\r\n{field}\r\n")).count();
            assert_eq!(lines, seen.matches("GET / ").count(), "{field}: {seen}");
        }
    }
}

#[test]
fn a_get_whose_only_server_leaves_is_502() {
    let leaving = leaves_at_reuse();
    let mut alone = upstream(leaving.address);
    alone.attempts = 2;
    let gateway = gateway(alone);
    assert_eq!(gateway.ask(GET).status, 200);
    let response = gateway.ask(GET);
    assert_eq!(response.status, 502);
    assert!(
        response.body.contains("upstream-unreachable"),
        "{response:?}"
    );
}

#[test]
fn a_post_goes_nowhere_else_when_its_connection_closes() {
    for post in [
        POST,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ] {
        let (leaving, stays) = (leaves_at_reuse(), Origin::responding(OK));
        let gateway = gateway(in_turn([&leaving, &stays]));
        assert_eq!(
            [gateway.ask(GET).status, gateway.ask(GET).status],
            [200, 200]
        );
        let mut statuses = [gateway.ask(post).status, gateway.ask(post).status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 502], "{post:?}");
        assert_eq!(leaving.records()[0].matches("POST").count(), 1, "{post:?}");
        assert_eq!(
            stays.records().concat().matches("POST").count(),
            1,
            "{post:?}"
        );
    }
}
