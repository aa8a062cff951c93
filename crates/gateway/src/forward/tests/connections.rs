//! Connections to the upstream: kept, found stale, bounded, timed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::origin::{OK, Origin};
use super::relay::{gateway, server, upstream};
use super::wire::{DEADLINE, field, read_answer, read_head};
use tollgate_limit::Micros;
use tollgate_policy::upstream::{Balance, HostPolicy, Upstream};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// An address without a listener.
fn dead() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("bound")
}

/// An upstream that answers one request per connection and then closes upon the next, having read it.
fn closes_at_reuse() -> Origin {
    Origin::start(|conn| {
        conn.request()?;
        conn.send(OK)?;
        conn.request().map(|_| ())
    })
}

#[test]
fn a_connection_is_used_again() {
    let origin = Origin::answering(OK);
    let gateway = gateway(upstream(origin.address));
    let mut one = gateway.connect();
    for _ in 0..3 {
        one.write_all(GET.as_bytes()).expect("sent");
        assert_eq!(read_answer(&mut one).status, 200);
    }
    assert_eq!(gateway.ask(POST).status, 200);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(origin.records().len(), 1);
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
    let ill = Origin::answering(UNAVAILABLE);
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
fn retries_end_with_the_last_attempt() {
    let ill = [(); 3].map(|()| Origin::answering(UNAVAILABLE));
    let mut three = in_turn([&ill[0], &ill[1]]);
    three.servers.push(server(ill[2].address));
    (three.retry.statuses, three.eject.failures) = (vec![503], 1000);
    assert_eq!(gateway(three).ask(GET).status, 503);
    let sent = ill.iter().map(|origin| origin.records().len());
    assert_eq!(sent.sum::<usize>(), 2, "of three servers two are asked");
}

#[test]
fn retries_after_a_resend_that_found_no_connection_have_one_attempt_left() {
    let (leaving, dead, well) = (leaves_at_reuse(), dead(), Origin::answering(OK));
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
fn an_answer_that_began_is_not_asked_for_again() {
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
fn a_connection_closed_while_idle_is_not_used_for_a_post() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(OK)
    });
    let gateway = gateway(upstream(origin.address));
    assert_eq!(gateway.ask(GET).status, 200);
    origin.wait_closed();
    assert_eq!(gateway.ask(POST).status, 200);
    assert_eq!(origin.records().len(), 2);
}

#[test]
fn bytes_behind_an_answer_are_never_the_next_answer() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")?;
        conn.request()?;
        conn.send(OK)
    });
    let gateway = gateway(upstream(origin.address));
    assert_eq!(gateway.ask(GET).body, "ok");
    assert_eq!(gateway.ask(GET).body, "ok");
}

#[test]
fn a_dead_upstream_is_502_and_a_silent_one_504() {
    let answer = gateway(upstream(dead())).ask(GET);
    assert_eq!(answer.status, 502);
    assert!(answer.body.contains("upstream-unreachable"), "{answer:?}");

    let silent = Origin::start(|conn| {
        conn.request()?;
        conn.receive().map(|_| ())
    });
    let mut impatient = upstream(silent.address);
    impatient.timeouts.response = Micros(100_000);
    assert_eq!(gateway(impatient).ask(GET).status, 504);
    silent.wait_closed();
}

#[test]
fn a_connect_failure_goes_to_another_server() {
    let origin = Origin::answering(OK);
    let mut two = upstream(dead());
    two.servers.push(server(origin.address));
    two.balance = Balance::RoundRobin;
    two.attempts = 2;
    let gateway = gateway(two);
    for _ in 0..6 {
        assert_eq!(gateway.ask(POST).status, 200);
    }
}

/// Answers one request, listens no more, and closes upon the next, having read it.
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
        let (leaving, stays) = (leaves_at_reuse(), Origin::answering(OK));
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
fn every_attempt_tells_whom_the_request_comes_from() {
    let (leaving, ill, well) = (
        leaves_at_reuse(),
        Origin::answering(UNAVAILABLE),
        Origin::answering(OK),
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
    let answer = gateway.ask(GET);
    assert_eq!(answer.status, 502);
    assert!(answer.body.contains("upstream-unreachable"), "{answer:?}");
}

#[test]
fn a_post_goes_nowhere_else_when_its_connection_closes() {
    for post in [
        POST,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ] {
        let (leaving, stays) = (leaves_at_reuse(), Origin::answering(OK));
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

#[test]
fn requests_beyond_the_bound_wait_and_then_are_refused() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok")?;
        conn.receive().map(|_| ())
    });
    let mut narrow = upstream(origin.address);
    narrow.connections = 1;
    narrow.pending = 1;
    narrow.queue_timeout = Micros(100_000);
    let gateway = gateway(narrow);
    let mut first = gateway.connect();
    first.write_all(GET.as_bytes()).expect("sent");
    read_head(&mut first).expect("its head: it holds the connection");
    let second = gateway.ask(GET);
    assert_eq!(second.status, 503);
    assert_eq!(second.field("retry-after"), Some("1"));
    // The client of the first goes: its place is free again.
    drop(first);
    origin.wait_closed();
}

#[test]
fn a_client_that_leaves_a_full_queue_makes_room_whether_it_sends_a_body_or_not() {
    for left in [
        GET,
        "POST /left HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\npart",
    ] {
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let gone = std::sync::Mutex::new(gone);
        let origin = Origin::start(move |conn| {
            conn.until("\r\n\r\n")?;
            let _ = gone.lock().expect("no panic").recv_timeout(DEADLINE);
            conn.send(OK)?;
            conn.until("\r\n\r\n")?;
            conn.send(OK)
        });
        let mut narrow = upstream(origin.address);
        (narrow.connections, narrow.pending, narrow.queue_timeout) = (1, 1, Micros::from_secs(60));
        let gateway = gateway(narrow);
        let mut first = gateway.connect();
        first.write_all(GET.as_bytes()).expect("sent");
        while origin.records().first().is_none_or(String::is_empty) {
            std::thread::yield_now();
        }
        // Connections are accepted in their order: it takes the one place of the queue.
        let mut waiting = gateway.connect();
        waiting.write_all(left.as_bytes()).expect("sent");
        assert_eq!(gateway.ask(GET).status, 503);
        drop(waiting);
        // A request that is refused is answered at once; one that finds room is answered when the first is.
        let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
        let queued = (0..500).find_map(|_| {
            let mut client = gateway.connect();
            client.write_all(next.as_bytes()).expect("sent");
            client
                .set_read_timeout(Some(std::time::Duration::from_millis(100)))
                .expect("set");
            let refused = client.read(&mut [0; 1]).is_ok();
            std::thread::sleep(std::time::Duration::from_millis(20 * u64::from(refused)));
            (!refused).then_some(client)
        });
        let mut queued = queued.expect("the place of who left is free");
        go.send(()).expect("it waits");
        assert_eq!(read_answer(&mut first).status, 200);
        queued.set_read_timeout(Some(DEADLINE)).expect("set");
        assert_eq!(read_answer(&mut queued).status, 200);
        assert!(
            !origin.records().concat().contains("/left"),
            "who left is never sent on"
        );
    }
}

#[test]
fn a_client_that_goes_takes_its_request_along() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        conn.request()?;
        let _ = tell.send(());
        // Ends when the gateway closes.
        conn.receive().map(|_| ())
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(GET.as_bytes()).expect("sent");
    told.recv_timeout(DEADLINE).expect("the request arrives");
    drop(client);
    origin.wait_closed();
}

#[test]
fn a_client_that_goes_is_noticed_behind_the_requests_it_left() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        // Never answered: only the end of the connection ends this.
        conn.receive().map(|_| ())
    });
    let mut patient = upstream(origin.address);
    patient.timeouts.response = Micros::from_secs(3600);
    let gateway = gateway(patient);
    let mut client = gateway.connect();
    client
        .write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sent");
    while origin.records().first().is_none_or(String::is_empty) {
        std::thread::yield_now();
    }
    drop(client);
    origin.wait_closed();
    assert!(
        !origin.records().concat().contains("/2"),
        "no request waits for the second"
    );
}

#[test]
fn host_is_what_the_policy_says() {
    for (policy, expected) in [
        (HostPolicy::Keep, "a".to_owned()),
        (
            HostPolicy::Fixed("fixed.example:81".parse().expect("an authority")),
            "fixed.example:81".to_owned(),
        ),
    ] {
        let origin = Origin::answering(OK);
        let mut upstream = upstream(origin.address);
        upstream.host = policy;
        upstream.servers[0].base_path = "/base".into();
        assert_eq!(
            gateway(upstream)
                .ask("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
                .status,
            200
        );
        let seen = &origin.records()[0];
        assert_eq!(field(seen, "host"), Some(expected.as_str()));
        assert_eq!(field(seen, "x-forwarded-host"), Some("a"));
        assert!(seen.starts_with("GET /base/x HTTP/1.1\r\n"), "{seen}");
    }
}
