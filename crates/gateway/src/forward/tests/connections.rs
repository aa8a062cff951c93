//! Connections to the upstream: kept, found stale, bounded, timed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::origin::{OK, Origin};
use super::relay::{gateway, upstream};
use super::wire::{DEADLINE, header, read_head, read_response};
use tollgate_limit::Micros;
use tollgate_policy::upstream::HostPolicy;

pub(super) const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
pub(super) const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";

/// An address without a listener.
pub(super) fn dead() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("bound")
}

#[test]
fn a_connection_is_used_again() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    let mut one = gateway.connect();
    for _ in 0..3 {
        one.write_all(GET.as_bytes()).expect("sent");
        assert_eq!(read_response(&mut one).status, 200);
    }
    assert_eq!(gateway.ask(POST).status, 200);
    assert_eq!(gateway.ask(GET).status, 200);
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
fn connection_is_closed_before_its_server_would_or_the_file_says() {
    let stated = |timeout: &str| {
        format!(
            "HTTP/1.1 200 OK\r\nKeep-Alive: timeout={timeout}, max=100\r\nContent-Length: 2\r\n\r\nok"
        )
    };
    for (response, kept) in [
        (stated("2"), Micros::from_secs(3600)),
        (stated("1"), Micros::from_secs(3600)),
        (stated("3600"), Micros::from_secs(1)),
        (OK.to_owned(), Micros::from_secs(1)),
    ] {
        let origin = Origin::start(move |conn| {
            while !conn.request()?.is_empty() {
                conn.send(&response)?;
            }
            Ok(())
        });
        let mut upstream = upstream(origin.address);
        upstream.timeouts.keep_alive = kept;
        // The pause of a body is another time.
        upstream.timeouts.idle = Micros::from_secs(3600);
        let gateway = gateway(upstream);
        assert_eq!(gateway.ask(GET).status, 200);
        origin.wait_closed();
    }
}

#[test]
fn bytes_after_a_response_are_never_the_next_response() {
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
    let response = gateway(upstream(dead())).ask(GET);
    assert_eq!(response.status, 502);
    assert!(
        response.body.contains("upstream-unreachable"),
        "{response:?}"
    );

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
    assert_eq!(second.header("retry-after"), Some("1"));
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
        // A refused request gets its response at once; one that finds room gets it when the first does.
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
        assert_eq!(read_response(&mut first).status, 200);
        queued.set_read_timeout(Some(DEADLINE)).expect("set");
        assert_eq!(read_response(&mut queued).status, 200);
        assert!(
            !origin.records().concat().contains("/left"),
            "who left is never sent on"
        );
    }
}

#[test]
fn a_client_that_goes_takes_its_request_along() {
    let (tell, received) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        conn.request()?;
        let _ = tell.send(());
        // Ends when the gateway closes.
        conn.receive().map(|_| ())
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(GET.as_bytes()).expect("sent");
    received
        .recv_timeout(DEADLINE)
        .expect("the request arrives");
    drop(client);
    origin.wait_closed();
}

#[test]
fn client_gone_is_noticed_after_pipelined_requests() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        // There is never a response: only the end of the connection ends this.
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
fn host_follows_the_policy() {
    for (policy, expected) in [
        (HostPolicy::Keep, "a".to_owned()),
        (
            HostPolicy::Fixed("fixed.example:81".parse().expect("an authority")),
            "fixed.example:81".to_owned(),
        ),
    ] {
        let origin = Origin::responding(OK);
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
        assert_eq!(header(seen, "host"), Some(expected.as_str()));
        assert_eq!(header(seen, "x-forwarded-host"), Some("a"));
        assert!(seen.starts_with("GET /base/x HTTP/1.1\r\n"), "{seen}");
    }
}
