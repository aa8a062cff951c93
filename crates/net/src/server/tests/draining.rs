//! Drains: what is under way is finished, if it is in time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::running::{DEADLINE, read_answer, read_to_end, start, wait_until};
use crate::server::Settings;
use crate::worker::Drain;

/// A drain that closes idle connections at once.
pub(super) fn whole(span: Duration) -> Drain {
    Drain {
        span,
        grace: Duration::ZERO,
        handed_over: false,
    }
}

#[test]
fn drain_finishes_requests_in_progress_and_then_ends() {
    let server = start(Settings::default());
    let mut held = server.connect();
    held.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    server.await_held(1);
    let mut idle = server.connect();
    idle.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    read_answer(&mut idle, "GET /a");

    server.workers.drain(whole(DEADLINE));
    assert_eq!(read_to_end(&mut idle), "", "an idle connection is closed");
    wait_until("the port is closed", || {
        TcpStream::connect(server.address).is_err()
    });
    assert!(!server.workers.ended());
    server.handler.released.add_permits(1);
    let answer = read_to_end(&mut held);
    assert!(
        answer.contains("connection: close") && answer.ends_with("held"),
        "{answer:?}"
    );
    server.workers.join();
}

#[test]
fn drain_grants_a_grace_period_to_a_client_that_begins_a_request() {
    for awake in [Duration::from_secs(60), Duration::from_millis(20)] {
        let rests = awake < Duration::from_secs(1);
        let asked = |grace: Duration| {
            let server = start(Settings {
                awake,
                ..Settings::default()
            });
            let mut stream = server.connect();
            stream
                .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
                .expect("sent");
            read_answer(&mut stream, "GET /a");
            wait_until("it rests", || {
                !rests || server.shared.stats.rested.value() == 1
            });
            server.workers.drain(Drain {
                grace,
                ..whole(10 * DEADLINE)
            });
            wait_until("the port is closed", || {
                TcpStream::connect(server.address).is_err()
            });
            (server, stream)
        };
        let (server, mut stream) = asked(DEADLINE);
        stream
            .write_all(b"GET /b HTTP/1.1\r\nhost: a\r\n\r\n")
            .expect("it is still open");
        let answer = read_to_end(&mut stream);
        assert!(
            answer.contains("\r\nconnection: close\r\n") && answer.ends_with("GET /b"),
            "{answer:?}"
        );
        server.workers.join();
        let (server, mut stream) = asked(Duration::from_millis(1));
        assert_eq!(read_to_end(&mut stream), "");
        server.workers.join();
        assert_eq!(
            server.shared.stats.idle_closed.value(),
            0,
            "a drain is no idleness"
        );
    }
}

#[test]
fn drain_bytes_after_the_last_request_do_not_lose_its_response() {
    for round in 0..20 {
        let server = start(Settings::default());
        let mut held = server.connect();
        held.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n")
            .expect("sent");
        server.await_held(1);
        server.workers.drain(whole(DEADLINE));
        wait_until("the port is closed", || {
            TcpStream::connect(server.address).is_err()
        });
        held.write_all(b"GET /behind HTTP/1.1\r\nhost: a\r\n\r\n")
            .expect("sent");
        server.handler.released.add_permits(1);
        let mut answer = String::new();
        held.read_to_string(&mut answer)
            .expect("an end in order, no reset");
        assert!(
            answer.contains("connection: close") && answer.ends_with("held"),
            "round {round}: {answer:?}"
        );
        drop(held);
        server.workers.join();
    }
}

#[test]
fn a_drain_that_runs_out_of_time_cuts_off() {
    let server = start(Settings::default());
    let mut held = server.connect();
    held.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    server.await_held(1);
    server.workers.drain(whole(Duration::from_millis(100)));
    server.workers.join();
    assert_eq!(read_to_end(&mut held), "");
}
