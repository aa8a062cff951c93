//! HTTP/2 servers that keep the deadline of a caller by ending its stream, as those of gRPC do.

use super::super::relay::{ask_six, defaults, gateway_of, route};
use super::*;
use crate::forward::{ServerHealth, UpstreamHealth};

const RST_STREAM: u8 = 3;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

/// `POST` with these lines.
fn post(lines: &str) -> String {
    POST.replace("Host: a\r\n", &format!("Host: a\r\n{lines}"))
}

/// Asks six times with these lines, in turn at a server that resets each stream with `code` after
/// `wait`, and at one that responds. Returns how many requests the first got, what the gateway says
/// of the last of them, and the causes.
fn reset_of_six(lines: &str, code: u32, wait: Duration) -> (usize, (u16, String), Vec<Cause>) {
    let came = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&came);
    let resetting = Origin::start(move |conn| {
        greet(conn, b"")?;
        loop {
            let stream = request(conn)?;
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(wait);
            write(conn, &frame(RST_STREAM, 0, stream, &code.to_be_bytes()))?;
        }
    });
    let well = well();
    let (responses, causes) = ask_six(http2(&resetting), well.address, &post(lines));
    let mut received = responses.iter().map(|response| {
        let grpc = response.header("grpc-status").unwrap_or_default();
        (response.status, grpc.to_owned())
    });
    let failed = received.rfind(|received| *received != (200, String::new()));
    (
        came.load(Ordering::SeqCst),
        failed.unwrap_or_default(),
        causes,
    )
}

const GRPC: &str = "Content-Type: application/grpc\r\n";

#[test]
fn http2_stream_reset_at_the_deadline_of_its_caller_ejects_no_server() {
    let wait = Duration::from_millis(50);
    for (deadline, says) in [
        // The gateway keeps this one, too: DEADLINE_EXCEEDED.
        (format!("{GRPC}Grpc-Timeout: 50m\r\n"), (200, "4")),
        ("Grpc-Timeout: 50m\r\n".to_owned(), (502, "")),
        ("Connect-Timeout-Ms: 50\r\n".to_owned(), (502, "")),
        ("Connect-Timeout-Ms: x\r\n".to_owned(), (502, "")),
    ] {
        for code in [CANCEL, INTERNAL_ERROR] {
            let (came, failed, causes) = reset_of_six(&deadline, code, wait);
            assert_eq!(came, 3, "{deadline}: the server stays in");
            assert_eq!(failed, (says.0, says.1.to_owned()), "{deadline}");
            let clients = causes.iter().filter(|cause| **cause == Cause::Client);
            assert_eq!(clients.count(), 3, "{deadline}: {causes:?}");
        }
    }
}

/// Where all callers state deadlines, a server that fails every request must be left out all the same.
#[test]
fn http2_stream_reset_before_the_deadline_of_its_caller_ejects_its_server() {
    for deadline in ["Grpc-Timeout: 4S\r\n", "Connect-Timeout-Ms: 4000\r\n", ""] {
        for code in [CANCEL, INTERNAL_ERROR] {
            let lines = format!("{GRPC}{deadline}");
            let (came, failed, _) = reset_of_six(&lines, code, Duration::ZERO);
            assert_eq!(came, 1, "{deadline:?}: the server is left out");
            assert_eq!(failed, (200, "14".to_owned()), "{deadline:?}: UNAVAILABLE");
        }
    }
}

#[test]
fn http2_connection_that_breaks_is_a_failure_although_a_hasty_request_was_on_it() {
    const HASTY: &str = "Connect-Timeout-Ms: x\r\n";
    for (first, second) in [(HASTY, ""), ("", HASTY)] {
        let (tell, received) = std::sync::mpsc::channel();
        let breaking = Origin::start(move |conn| {
            greet(conn, b"")?;
            request(conn)?;
            let _ = tell.send(());
            request(conn)?;
            conn.stream.shutdown(std::net::Shutdown::Both)
        });
        let mut one = http2(&breaking);
        one.eject.failures = 1;
        one.eject.wait = Micros::from_secs(60);
        let health = UpstreamHealth::default();
        let gateway = gateway_of(one.clone(), route(), defaults(), health.clone());
        let gateway: &Gateway = &gateway;
        std::thread::scope(|scope| {
            let early = scope.spawn(|| gateway.ask(&post(first)).status);
            received.recv_timeout(DEADLINE).expect("it comes");
            assert_eq!(gateway.ask(&post(second)).status, 502);
            assert_eq!(early.join().expect("no panic"), 502);
        });
        let state = health.status(&one)[0].state;
        assert_eq!(state, Some(ServerHealth::Ejected), "{first:?}, {second:?}");
    }
}
