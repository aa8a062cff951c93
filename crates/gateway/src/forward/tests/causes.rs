//! The party that causes a response, or its absence, where that is not the upstream alone.

use std::io::Write;

use super::origin::Origin;
use super::relay::{gateway, in_turn, upstream};
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
    let gateway = gateway(in_turn(upstream(late.address), well.address));
    let statuses: Vec<u16> = (0..6).map(|_| gateway.ask(UNFINISHED).status).collect();
    let late = statuses.iter().filter(|status| **status == 504).count();
    assert_eq!(late, 3, "{statuses:?}");
    assert_eq!(gateway.causes(), [Cause::Early; 6]);
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
