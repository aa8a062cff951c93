//! The total time of a request, and the deadline of a gRPC call: they bound every wait.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use super::http2_pool::{greet, respond_to_all};
use super::origin::{OK, Origin, respond};
use super::relay::{defaults, gateway, gateway_of, in_turn, route, upstream};
use super::wire::{DEADLINE, RawResponse, read_response, wait_until};
use crate::forward::{ServerHealth, UpstreamHealth};
use tollgate_limit::Micros;
use tollgate_limiter::Cause;
use tollgate_policy::upstream::Upstream;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// A call whose client waits for 200 milliseconds.
const CALL: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nGrpc-Timeout: 200m\r\nContent-Length: 0\r\n\r\n";

/// An upstream whose only server never finishes the TLS handshake; connecting may take long.
fn unconnectable() -> (TcpListener, Upstream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut secure = upstream(listener.local_addr().expect("bound"));
    secure.servers[0].tls = Some("app.example".into());
    // The system's authorities are not needed.
    secure.tls.pinned = vec![[0; 32]];
    secure.attempts = 2;
    (listener, secure)
}

/// Whether the gateway says that the deadline of the call has passed.
fn is_late(call: &RawResponse) -> bool {
    call.header("grpc-status") == Some("4")
}

#[test]
fn total_time_that_passes_while_connecting_ends_the_request() {
    for http2 in [false, true] {
        let (_listener, mut bounded) = unconnectable();
        bounded.http2 = http2;
        bounded.timeouts.total = Some(Micros(100_000));
        let gateway = gateway(bounded);
        // The connect timeout would be a 502.
        assert_eq!(gateway.ask(GET).status, 504, "HTTP/2: {http2}");
        assert_eq!(gateway.causes(), [Cause::Gateway], "HTTP/2: {http2}");
    }
}

#[test]
fn deadline_of_a_grpc_call_that_passes_while_connecting_ends_the_call() {
    for http2 in [false, true] {
        let (_listener, mut hung) = unconnectable();
        hung.http2 = http2;
        let gateway = gateway(hung);
        assert!(is_late(&gateway.ask(CALL)), "HTTP/2: {http2}");
        assert_eq!(gateway.causes(), [Cause::Gateway], "HTTP/2: {http2}");
    }
}

#[test]
fn deadline_of_a_grpc_call_that_passes_in_the_queue_keeps_the_call_from_its_upstream() {
    let busy = Origin::start(|conn| {
        conn.request()?;
        conn.receive().map(|_| ())
    });
    let mut one = upstream(busy.address);
    one.connections = 1;
    let gateway = gateway(one);
    let mut first = gateway.connect();
    first.write_all(GET.as_bytes()).expect("sent");
    wait_until("it is under way", || busy.records().len() == 1);
    assert!(is_late(&gateway.ask(CALL)));
    assert_eq!(gateway.causes(), [Cause::Gateway]);
    drop(first);
    // Its place is free, and no request waits for it any more.
    let mut second = gateway.connect();
    second.write_all(GET.as_bytes()).expect("sent");
    let is_read = |record: &String| record.ends_with("\r\n\r\n");
    wait_until("another one is under way", || {
        busy.records()
            .iter()
            .filter(|record| is_read(record))
            .count()
            == 2
    });
    let records = busy.records();
    let is_get = |record: &String| record.starts_with("GET ");
    assert!(records.iter().all(is_get), "{records:?}");
}

#[test]
fn total_time_that_passes_while_connecting_ejects_no_server_and_the_connect_timeout_does() {
    for (request, total) in [(GET, Some(Micros(200_000))), (CALL, None)] {
        let (_listener, hung) = unconnectable();
        let well = Origin::responding(OK);
        let mut two = in_turn(hung, well.address);
        two.attempts = 1;
        two.timeouts.total = total;
        let (mut slow, mut quick) = (two.clone(), two);
        slow.timeouts.connect = Micros::from_secs(60);
        quick.timeouts.connect = Micros(600_000);

        let health = UpstreamHealth::default();
        let gateway = gateway_of(slow, route(), defaults(), health);
        let served = |response: RawResponse| response.body == "ok";
        let count = (0..6).filter(|_| served(gateway.ask(request))).count();
        assert_eq!(count, 3, "a time that a request had left says nothing");

        let health = UpstreamHealth::default();
        let state = |health: &UpstreamHealth| health.status(&quick)[0].state;
        let gateway = gateway_of(quick.clone(), route(), defaults(), health.clone());
        let count = (0..2).filter(|_| served(gateway.ask(request))).count();
        assert_eq!(count, 1);
        wait_until("the server is left out", || {
            state(&health) == Some(ServerHealth::Ejected)
        });
    }
}

/// A listener whose queue is short, and its address.
fn with_a_short_queue() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    socket2::SockRef::from(&listener)
        .listen(0)
        .expect("listens");
    (listener, address)
}

/// Connections that fill the queue of the listener at `address`: it completes no other one until they
/// are accepted.
fn fill(address: SocketAddr) -> Vec<TcpStream> {
    let more = || TcpStream::connect_timeout(&address, Duration::from_millis(100));
    std::iter::repeat_with(more).map_while(Result::ok).collect()
}

/// The address of a listener that accepts one connection and completes no other one, until the other
/// value is dropped.
fn accepting_once(
    serve: impl FnOnce(TcpStream) + Send + 'static,
) -> (SocketAddr, mpsc::Sender<()>) {
    let (listener, address) = with_a_short_queue();
    let (at_end, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        let held = fill(address);
        serve(stream);
        // Until the test drops the other end.
        let _ = ended.recv();
        drop(held);
    });
    (address, at_end)
}

/// A call that a kept connection has read, and whose next connection hangs, is not one that was never
/// sent.
#[test]
fn deadline_that_passes_while_a_request_is_sent_again_is_that_of_one_that_was_sent() {
    let (address, _at_end) = accepting_once(|stream| {
        let mut lines = BufReader::new(stream);
        let read_head = |lines: &mut BufReader<TcpStream>| {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                lines.read_line(&mut line).expect("a line");
            }
        };
        read_head(&mut lines);
        lines.get_mut().write_all(OK.as_bytes()).expect("sent");
        read_head(&mut lines);
    });
    let mut hung = upstream(address);
    hung.attempts = 2;
    hung.timeouts.connect = Micros::from_secs(60);
    let gateway = gateway(hung);
    assert_eq!(gateway.ask(GET).status, 200);
    let call = CALL.replace("POST", "GET");
    assert!(is_late(&gateway.ask(&call)));
    assert_eq!(gateway.causes(), [Cause::Upstream, Cause::Client]);
}

/// Of the abandoned attempts to connect only one goes on; the others say nothing about the server.
#[test]
fn calls_that_give_up_while_connecting_count_as_one_failure() {
    for http2 in [false, true] {
        let (_listener, mut hung) = unconnectable();
        hung.http2 = http2;
        hung.attempts = 1;
        hung.timeouts.connect = Micros(600_000);
        hung.eject.failures = 3;
        let health = UpstreamHealth::default();
        let gateway = gateway_of(hung.clone(), route(), defaults(), health.clone());
        let call = CALL.replace("200m", "20m");
        for _ in 0..6 {
            assert!(is_late(&gateway.ask(&call)), "HTTP/2: {http2}");
        }
        // The second failure, after the end of the attempts before.
        assert_eq!(gateway.ask(GET).status, 502, "HTTP/2: {http2}");
        let state = health.status(&hung)[0].state;
        assert_ne!(state, Some(ServerHealth::Ejected), "HTTP/2: {http2}");
    }
}

/// The attempt to connect goes on without its request, and its connection is not closed.
#[test]
fn connection_that_is_opened_after_its_request_gave_up_serves_the_next_one() {
    for http2 in [false, true] {
        let (listener, address) = with_a_short_queue();
        let waiting = fill(address);
        let mut late = upstream(address);
        late.http2 = http2;
        late.timeouts.connect = Micros::from_secs(60);
        // The system tries again after a second.
        late.timeouts.total = Some(Micros(400_000));
        let gateway = gateway(late);
        assert_eq!(gateway.ask(GET).status, 504, "HTTP/2: {http2}");
        for _ in &waiting {
            listener.accept().expect("it waits");
        }
        let (tell, received) = mpsc::channel();
        let origin = Origin::of(listener, move |conn| {
            if http2 {
                greet(conn, b"")?;
            }
            let _ = tell.send(());
            match http2 {
                true => respond_to_all(conn),
                false => respond(OK)(conn),
            }
        });
        received.recv_timeout(DEADLINE).expect("it is opened");
        assert_eq!(gateway.ask(GET).status, 200, "HTTP/2: {http2}");
        assert_eq!(origin.records().len(), 1, "HTTP/2: {http2}: no other one");
    }
}

#[test]
fn total_time_bounds_the_request_that_is_sent_again_for_a_status() {
    let ill = Origin::start(|conn| {
        conn.request()?;
        conn.send("HTTP/1.1 503 Ill\r\nContent-Length: 100\r\n\r\nill")?;
        conn.receive().map(|_| ())
    });
    let hung = Origin::start(|conn| {
        conn.request()?;
        conn.receive().map(|_| ())
    });
    let mut two = in_turn(upstream(ill.address), hung.address);
    two.attempts = 2;
    two.retry.statuses = vec![503];
    two.timeouts.response = Micros::from_secs(60);
    two.timeouts.total = Some(Micros(200_000));
    two.eject.failures = 1000;
    let gateway = gateway(two);
    let mut client = gateway.connect();
    client.write_all(GET.as_bytes()).expect("sent");
    assert_eq!(read_response(&mut client).status, 504);
}
