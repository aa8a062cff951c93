//! HTTP/2 upstreams that misbehave, frame by frame.

mod deadlines;
mod faults;
mod resends;

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use super::origin::{Conn, Origin};
use super::relay::{Gateway, gateway, server, upstream};
use super::wire::{DEADLINE, read_head, read_response};
use tollgate_limit::Micros;
use tollgate_limiter::Cause;
use tollgate_policy::upstream::{Balance, Upstream};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Reads one frame: its type, flags and stream.
fn read_frame(conn: &mut Conn) -> io::Result<(u8, u8, u32)> {
    let mut head = [0; 9];
    conn.stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    io::copy(&mut (&mut conn.stream).take(length.into()), &mut io::sink())?;
    Ok((
        head[3],
        head[4],
        u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
    ))
}

/// Takes the preface and says what is to be said first.
pub(super) fn greet(conn: &mut Conn, settings: &[u8]) -> io::Result<()> {
    conn.stream.read_exact(&mut [0; 24])?;
    write(conn, &frame(SETTINGS, 0, 0, settings))
}

fn write(conn: &mut Conn, bytes: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut conn.stream, bytes)
}

/// Waits for a request and gives its stream.
fn request(conn: &mut Conn) -> io::Result<u32> {
    loop {
        match read_frame(conn)? {
            (HEADERS, _, stream) => return Ok(stream),
            (SETTINGS, flags, _) if flags & ACK == 0 => write(conn, &frame(SETTINGS, ACK, 0, b""))?,
            _ => {}
        }
    }
}

/// 200 and no body.
fn ok(conn: &mut Conn, stream: u32) -> io::Result<()> {
    write(conn, &frame(HEADERS, 0x5, stream, &[0x88]))
}

pub(super) fn respond_to_all(conn: &mut Conn) -> io::Result<()> {
    loop {
        let stream = request(conn)?;
        ok(conn, stream)?;
    }
}

/// A server that responds to every request.
fn well() -> Origin {
    Origin::start(|conn| {
        greet(conn, b"")?;
        respond_to_all(conn)
    })
}

fn http2(origin: &Origin) -> Upstream {
    let mut upstream = upstream(origin.address);
    upstream.http2 = true;
    upstream.eject.failures = 1000;
    upstream
}

/// One that says nothing on its first connection after its settings, not even to a ping.
fn half_dead() -> Origin {
    Origin::start(|conn| {
        greet(conn, b"")?;
        if conn.index == 0 {
            while read_frame(conn).is_ok() {}
            return Ok(());
        }
        respond_to_all(conn)
    })
}

#[test]
fn a_stuck_connection_gets_no_more_requests() {
    let origin = half_dead();
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros(300_000);
    let gateway = gateway(upstream);
    // The server's settings are something that is heard: they come with the first request, or before the second.
    let statuses: Vec<u16> = (0..3).map(|_| gateway.ask(GET).status).collect();
    assert!(
        matches!(statuses[..], [504, 200 | 504, 200]),
        "{statuses:?}"
    );
}

#[test]
fn http2_stuck_connection_whose_requests_state_a_deadline_gets_no_more_requests() {
    let origin = half_dead();
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros(300_000);
    let gateway = gateway(upstream);
    let hasty = GET.replace("Host: a\r\n", "Host: a\r\nConnect-Timeout-Ms: x\r\n");
    let statuses: Vec<u16> = (0..3).map(|_| gateway.ask(&hasty).status).collect();
    assert!(
        matches!(statuses[..], [504, 200 | 504, 200]),
        "{statuses:?}"
    );
    let late = statuses.iter().filter(|status| **status == 504).count();
    let causes = gateway.causes();
    assert!(causes[..late].iter().all(|cause| *cause == Cause::Client));
}

#[test]
fn http2_connection_without_ping_acknowledgement_is_closed() {
    let origin = half_dead();
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros::from_secs(3600);
    upstream.timeouts.idle = Micros::from_secs(1);
    let gateway = gateway(upstream);
    assert_eq!(gateway.ask(GET).status, 502);
    assert_eq!(gateway.ask(GET).status, 200);
}

#[test]
fn a_request_the_leaving_server_did_not_look_at_goes_to_a_new_connection() {
    let origin = Origin::start(|conn| {
        greet(conn, b"")?;
        if conn.index == 0 {
            request(conn)?;
            // Last stream 0, no error: whatever came after is untouched.
            write(conn, &frame(GOAWAY, 0, 0, &[0; 8]))?;
            while read_frame(conn).is_ok() {}
            return Ok(());
        }
        respond_to_all(conn)
    });
    let mut upstream = http2(&origin);
    upstream.attempts = 2;
    let gateway = gateway(upstream);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(origin.records().len(), 2);
}

#[test]
fn a_connection_that_has_gone_in_order_is_replaced_without_a_failure() {
    let origin = Origin::start(|conn| {
        greet(conn, b"")?;
        let stream = request(conn)?;
        ok(conn, stream)?;
        write(conn, &frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]))?;
        conn.stream.shutdown(std::net::Shutdown::Both)
    });
    let gateway = gateway(http2(&origin));
    for _ in 0..5 {
        assert_eq!(gateway.ask(GET).status, 200);
        // Whether the end was heard before the next request or after it was sent is the machine's choice.
        origin.wait_closed();
    }
}

#[test]
fn a_request_that_finds_its_connection_gone_and_no_other_goes_to_another_server() {
    let stays = well();
    for _ in 0..30 {
        let leaving = Origin::leaving(|conn| {
            greet(conn, b"")?;
            for _ in 0..4 {
                let stream = request(conn)?;
                ok(conn, stream)?;
            }
            // Last stream 7, the fourth: what came after is untouched.
            write(conn, &frame(GOAWAY, 0, 0, &[0, 0, 0, 7, 0, 0, 0, 0]))?;
            while read_frame(conn).is_ok() {}
            Ok(())
        });
        let mut two = http2(&leaving);
        two.servers.push(server(stays.address));
        two.balance = Balance::RoundRobin;
        two.attempts = 2;
        let gateway = gateway(two);
        // Whether a request hears of the end before it is put on the connection, there, or sent is the machine's choice.
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..2 {
                        assert_eq!(gateway.ask(POST).status, 200);
                        assert_eq!(
                            gateway
                                .ask(&POST.replace("0\r\n\r\n", "2\r\n\r\nhi"))
                                .status,
                            200
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn more_requests_than_a_connection_takes_open_another() {
    let (meeting, streams) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let (met, most) = (Arc::clone(&meeting), Arc::clone(&streams));
    let origin = Origin::start(move |conn| {
        // SETTINGS_MAX_CONCURRENT_STREAMS = 1
        greet(conn, &[0, 3, 0, 0, 0, 1])?;
        loop {
            let stream = request(conn)?;
            if most.fetch_add(1, Ordering::SeqCst) > 0 {
                met.wait();
            }
            ok(conn, stream)?;
        }
    });
    let gateway = gateway(http2(&origin));
    assert_eq!(
        gateway.ask(GET).status,
        200,
        "the server's bound is known from here on"
    );
    let gateway: &Gateway = &gateway;
    std::thread::scope(|scope| {
        // The server responds to neither before both have come.
        let both = [
            scope.spawn(|| gateway.ask(GET).status),
            scope.spawn(|| gateway.ask(GET).status),
        ];
        both.into_iter()
            .for_each(|one| assert_eq!(one.join().expect("no panic"), 200));
    });
    assert_eq!(origin.records().len(), 2);
}

#[test]
fn connections_on_which_the_server_takes_nothing_are_not_kept() {
    let (tell, received) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        conn.stream.read_exact(&mut [0; 24])?;
        let stream = request(conn)?;
        // SETTINGS_MAX_CONCURRENT_STREAMS = 0
        write(conn, &frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0]))?;
        ok(conn, stream)?;
        let end = loop {
            if let Err(error) = read_frame(conn) {
                break error.kind();
            }
        };
        let _ = tell.send(!matches!(
            end,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ));
        Ok(())
    });
    let mut upstream = http2(&origin);
    upstream.timeouts.idle = Micros::from_secs(3600);
    let gateway = gateway(upstream);
    for _ in 0..3 {
        assert_eq!(gateway.ask(GET).status, 200);
    }
    for _ in 0..3 {
        assert_eq!(
            received.recv_timeout(Duration::from_secs(20)),
            Ok(true),
            "closed by us"
        );
    }
}

#[test]
fn an_idle_connection_is_closed() {
    let origin = well();
    let mut upstream = http2(&origin);
    upstream.timeouts.idle = Micros::from_secs(1);
    let gateway = gateway(upstream);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(origin.wait_closed(), 0);
    assert_eq!(gateway.ask(GET).status, 200, "on a new one");
}

#[test]
fn a_callers_short_deadline_costs_no_connection() {
    let asked = AtomicUsize::new(0);
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        loop {
            let stream = request(conn)?;
            // Two calls of a slow method after the first request.
            if !(1..3).contains(&asked.fetch_add(1, Ordering::SeqCst)) {
                ok(conn, stream)?;
            }
        }
    });
    let gateway = gateway(http2(&origin));
    assert_eq!(gateway.ask(GET).status, 200);
    for _ in 0..2 {
        assert_eq!(gateway.ask(HASTY).header("grpc-status"), Some("4"));
    }
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(origin.records().len(), 1, "a healthy connection goes on");
}

const HASTY: &str = "POST /pkg.Service/Slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/grpc\r\n\
                     grpc-timeout: 20m\r\nContent-Length: 0\r\n\r\n";

#[test]
fn grpc_timeout_of_the_call_is_kept_and_forwarded() {
    let (tell, received) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        let _ = request(conn)?;
        // RST_STREAM
        while read_frame(conn)?.0 != 3 {}
        let _ = tell.send(());
        respond_to_all(conn)
    });
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros::from_secs(3600);
    let call = "POST /pkg.Service/Method HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/grpc\r\n\
                grpc-timeout: 200m\r\nContent-Length: 0\r\n\r\n";
    let response = gateway(upstream).ask(call);
    assert_eq!(
        (response.status, response.header("grpc-status")),
        (200, Some("4")),
        "DEADLINE_EXCEEDED: {response:?}"
    );
    received
        .recv_timeout(Duration::from_secs(10))
        .expect("the call is cancelled upstream");
}
