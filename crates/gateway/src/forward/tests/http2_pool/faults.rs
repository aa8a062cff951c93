//! HTTP/2 upstreams that end a stream or a connection because of a request: a caller can write such a
//! request.

use super::super::relay::{ask_six, in_turn};
use super::*;

const RST_STREAM: u8 = 3;
const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A GOAWAY whose last stream is 0: it says that no request was processed.
fn goaway(code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[[0; 4], code.to_be_bytes()].concat())
}

/// Responds to every request by a GOAWAY with this code.
fn leaving_with(code: u32) -> Origin {
    Origin::start(move |conn| {
        greet(conn, b"")?;
        request(conn)?;
        write(conn, &goaway(code))?;
        while read_frame(conn).is_ok() {}
        Ok(())
    })
}

#[test]
fn http2_goaway_with_an_error_is_not_sent_again_and_earns_no_credit() {
    for code in [PROTOCOL_ERROR, REFUSED_STREAM, ENHANCE_YOUR_CALM] {
        for request in [GET, POST] {
            let origin = leaving_with(code);
            let mut twice = http2(&origin);
            twice.attempts = 2;
            let gateway = gateway(twice);
            assert_eq!(gateway.ask(request).status, 502);
            assert_eq!(origin.records().len(), 1, "code {code}: sent once");
            assert_eq!(gateway.causes(), [Cause::Client], "code {code}");
        }
    }
}

#[test]
fn http2_goaway_without_error_repeated_for_each_connection_earns_no_credit() {
    let origin = leaving_with(NO_ERROR);
    let gateway = gateway(http2(&origin));
    assert_eq!(gateway.ask(GET).status, 502);
    assert!(origin.records().len() > 1, "it may be sent again");
    assert_eq!(gateway.causes(), [Cause::Client]);
}

#[test]
fn http2_stream_refused_at_every_attempt_earns_no_credit() {
    let origin = Origin::start(|conn| {
        greet(conn, b"")?;
        loop {
            let stream = request(conn)?;
            let refused = REFUSED_STREAM.to_be_bytes();
            write(conn, &frame(RST_STREAM, 0, stream, &refused))?;
        }
    });
    let mut twice = http2(&origin);
    twice.attempts = 2;
    let gateway = gateway(twice);
    assert_eq!(gateway.ask(POST).status, 502);
    assert_eq!(gateway.causes(), [Cause::Client]);
}

#[test]
fn http2_request_that_its_server_refuses_ejects_no_server() {
    let error = |_: u32| goaway(PROTOCOL_ERROR);
    let refusal = |stream| frame(RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes());
    let ways: [fn(u32) -> Vec<u8>; 2] = [error, refusal];
    for (index, answer) in ways.into_iter().enumerate() {
        let well = well();
        let came = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&came);
        let refusing = Origin::start(move |conn| {
            greet(conn, b"")?;
            loop {
                let stream = request(conn)?;
                counted.fetch_add(1, Ordering::SeqCst);
                write(conn, &answer(stream))?;
            }
        });
        ask_six(http2(&refusing), well.address, POST);
        let came = came.load(Ordering::SeqCst);
        assert_eq!(came, 3, "way {index}: the server stays in");
    }
}

/// The statuses of four requests that are sent at once, sorted.
fn four_at_once(gateway: &Gateway) -> Vec<u16> {
    let mut statuses: Vec<u16> = std::thread::scope(|scope| {
        let asks: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| gateway.ask(POST).status))
            .collect();
        asks.into_iter()
            .map(|ask| ask.join().expect("no panic"))
            .collect()
    });
    statuses.sort_unstable();
    statuses
}

#[test]
fn http2_connection_that_ends_for_one_request_is_not_counted_for_the_others() {
    let well = well();
    let refusing = Origin::start(|conn| {
        greet(conn, b"")?;
        if conn.index > 0 {
            return respond_to_all(conn);
        }
        let first = request(conn)?.to_be_bytes();
        request(conn)?;
        // The first stream is not refused, and ends with the connection.
        let goaway = [first, PROTOCOL_ERROR.to_be_bytes()].concat();
        write(conn, &frame(GOAWAY, 0, 0, &goaway))?;
        conn.stream.shutdown(std::net::Shutdown::Both)
    });
    let gateway = gateway(in_turn(http2(&refusing), well.address));
    assert_eq!(four_at_once(&gateway), [200, 200, 502, 502]);
    for _ in 0..2 {
        assert_eq!(gateway.ask(POST).status, 200);
    }
    assert_eq!(refusing.records().len(), 2, "the server stays in");
}

#[test]
fn http2_connection_that_breaks_after_its_server_left_it_in_order_is_a_failure() {
    let well = well();
    let (meeting, came) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let (met, counted) = (Arc::clone(&meeting), Arc::clone(&came));
    let leaving = Origin::start(move |conn| {
        greet(conn, b"")?;
        if conn.index > 0 {
            loop {
                let stream = request(conn)?;
                if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                    met.wait();
                }
                ok(conn, stream)?;
            }
        }
        let first = request(conn)?.to_be_bytes();
        request(conn)?;
        // The second stream goes to another connection; the first is to end here.
        let goaway = [first, NO_ERROR.to_be_bytes()].concat();
        write(conn, &frame(GOAWAY, 0, 0, &goaway))?;
        met.wait();
        conn.stream.shutdown(std::net::Shutdown::Both)
    });
    let gateway = gateway(in_turn(http2(&leaving), well.address));
    assert_eq!(four_at_once(&gateway), [200, 200, 200, 502]);
    for _ in 0..4 {
        assert_eq!(gateway.ask(POST).status, 200);
    }
    let came = came.load(Ordering::SeqCst);
    assert_eq!(came, 1, "the server is left out");
}

#[test]
fn http2_server_that_leaves_every_connection_in_order_is_not_ejected() {
    let well = well();
    let leaving = leaving_with(NO_ERROR);
    let (responses, _) = ask_six(http2(&leaving), well.address, POST);
    let failed = responses.iter().filter(|one| one.status == 502).count();
    assert_eq!(failed, 3, "{responses:?}");
}

#[test]
fn http2_request_whose_connections_all_end_in_order_goes_to_another_server() {
    let well = well();
    let leaving = leaving_with(NO_ERROR);
    let mut two = in_turn(http2(&leaving), well.address);
    two.attempts = 2;
    let gateway = gateway(two);
    assert_eq!(
        [POST, POST].map(|post| gateway.ask(post).status),
        [200, 200]
    );
    assert!(!leaving.records().is_empty(), "one of them was tried there");
}

#[test]
fn http2_stream_that_its_server_resets_ends_no_connection() {
    const INTERNAL_ERROR: u32 = 2;
    let origin = Origin::start(|conn| {
        greet(conn, b"")?;
        let stream = request(conn)?;
        let reset = INTERNAL_ERROR.to_be_bytes();
        write(conn, &frame(RST_STREAM, 0, stream, &reset))?;
        respond_to_all(conn)
    });
    let gateway = gateway(http2(&origin));
    assert_eq!(
        [POST, POST].map(|post| gateway.ask(post).status),
        [502, 200]
    );
    assert_eq!(origin.records().len(), 1, "the connection stays in use");
}

#[test]
fn http2_response_after_the_deadline_of_the_caller_earns_no_credit() {
    let origin = well();
    let gateway = gateway(http2(&origin));
    for deadline in ["0", "3600000"] {
        gateway.ask(&POST.replace(
            "Host: a",
            &format!("Host: a\r\nConnect-Timeout-Ms: {deadline}"),
        ));
    }
    assert_eq!(gateway.causes(), [Cause::Early, Cause::Upstream]);
}

#[test]
fn http2_connection_that_carries_other_responses_survives_a_late_one() {
    let (tell, received) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        request(conn)?;
        let _ = tell.send(());
        respond_to_all(conn)
    });
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros(500_000);
    let gateway = gateway(upstream);
    let gateway: &Gateway = &gateway;
    std::thread::scope(|scope| {
        let late = scope.spawn(|| gateway.ask(POST).status);
        received.recv_timeout(DEADLINE).expect("it comes");
        assert_eq!(gateway.ask(POST).status, 200);
        assert_eq!(late.join().expect("no panic"), 504);
    });
    assert_eq!(gateway.ask(POST).status, 200);
    assert_eq!(origin.records().len(), 1, "the connection is not stuck");
}
