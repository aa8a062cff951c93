//! The party that causes a response, or its absence, where that is not the upstream alone.

use std::io::{self, Write};
use std::time::Duration;

use super::origin::{Conn, OK, Origin};
use super::relay::{ask_six, gateway, upstream};
use super::wire::read_head;
use tollgate_limit::Micros;
use tollgate_limiter::Cause;

const UNFINISHED: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel";

/// Responds with this status before the body is complete.
fn early(status: u16) -> Origin {
    Origin::start(move |conn| {
        conn.until("\r\n\r\nhel")?;
        conn.send(&format!(
            "HTTP/1.1 {status} Early\r\nContent-Length: 0\r\n\r\n"
        ))?;
        conn.receive().map(|_| ())
    })
}

#[test]
fn response_504_before_the_request_has_arrived_ejects_no_server() {
    let (late, well) = (early(504), early(200));
    let (responses, causes) = ask_six(upstream(late.address), well.address, UNFINISHED);
    let late = responses.iter().filter(|one| one.status == 504).count();
    assert_eq!(late, 3, "{responses:?}");
    assert_eq!(causes, [Cause::Early; 6]);
}

#[test]
fn response_408_to_a_request_with_a_body_earns_no_credit() {
    let origin = Origin::responding("HTTP/1.1 408 Slow\r\nContent-Length: 0\r\n\r\n");
    let gateway = gateway(upstream(origin.address));
    gateway.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    gateway.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(gateway.causes(), [Cause::Early, Cause::Upstream]);
}

#[test]
fn response_that_is_late_for_a_body_that_waits_for_100_earns_no_credit() {
    let hung = Origin::start(|conn| {
        conn.until("\r\n\r\n")?;
        conn.receive().map(|_| ())
    });
    let mut upstream = upstream(hung.address);
    upstream.timeouts.response = Micros(200_000);
    let gateway = gateway(upstream);
    let waiting = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(gateway.ask(waiting).status, 504);
    assert_eq!(gateway.causes(), [Cause::Client]);
}

#[test]
fn response_101_after_the_deadline_of_the_caller_earns_no_credit() {
    for (deadline, expected) in [("0", Cause::Early), ("3600000", Cause::Upstream)] {
        let origin = Origin::start(|conn| {
            conn.until("\r\n\r\n")?;
            conn.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            )?;
            conn.receive().map(|_| ())
        });
        let gateway = gateway(upstream(origin.address));
        let mut client = gateway.connect();
        write!(
            client,
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nConnect-Timeout-Ms: {deadline}\r\n\r\n"
        )
        .expect("sent");
        let head = read_head(&mut client).expect("a head");
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert_eq!(gateway.causes(), [expected], "{deadline}");
    }
}

/// How many of six requests, in turn to a server with this script and to one that responds, fail.
pub(super) fn failed_of_six(
    request: &str,
    script: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static,
) -> usize {
    let failing = Origin::start(script);
    // It does not wait for the body.
    let well = Origin::start(|conn| {
        loop {
            conn.receive()?;
            conn.send(OK)?;
        }
    });
    let (responses, _) = ask_six(upstream(failing.address), well.address, request);
    responses.iter().filter(|one| one.status != 200).count()
}

/// Sends this in place of a response, after `wait`, and closes.
fn closing(wait: u64, sends: &'static str) -> impl Fn(&mut Conn) -> io::Result<()> {
    move |conn| {
        conn.request()?;
        std::thread::sleep(Duration::from_millis(wait));
        conn.send(sends)
    }
}

#[test]
fn connection_closed_at_the_deadline_of_its_caller_ejects_no_server() {
    let request = |deadline: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{deadline}Content-Length: 0\r\n\r\n"
        )
    };
    for sends in ["", "HTTP/1.1 2"] {
        for deadline in ["Connect-Timeout-Ms: 50\r\n", "Grpc-Timeout: 50m\r\n"] {
            let failed = failed_of_six(&request(deadline), closing(50, sends));
            assert_eq!(failed, 3, "{deadline}: the server stays in");
        }
        for deadline in ["Connect-Timeout-Ms: 4000\r\n", "Grpc-Timeout: 4S\r\n", ""] {
            let failed = failed_of_six(&request(deadline), closing(0, sends));
            assert_eq!(failed, 1, "{deadline:?}: the server is left out");
        }
    }
    // Malformed at any time.
    let malformed = closing(50, "HTTP/1.1 20x OK\r\n\r\n");
    let failed = failed_of_six(&request("Connect-Timeout-Ms: 50\r\n"), malformed);
    assert_eq!(failed, 1, "no deadline makes a response malformed");
}

#[test]
fn connection_closed_during_a_slow_upload_ejects_no_server() {
    // Servers wait for a body for seconds before they close.
    for (waited, expected) in [(1_100, 3), (0, 1)] {
        let failed = failed_of_six(UNFINISHED, move |conn| {
            conn.until("\r\n\r\nhel")?;
            std::thread::sleep(Duration::from_millis(waited));
            Ok(())
        });
        assert_eq!(failed, expected, "after {waited} ms");
    }
}
