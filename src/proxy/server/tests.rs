//! The server on real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};

use super::{ConnInfo, Handler, Inbound, Payload, Settings, Shared, serve};
use crate::policy::address::NetSet;
use crate::proxy::listener::{Address, Listen, bind};
use crate::proxy::tls::ServerTls;
use crate::proxy::worker::{Drain, Workers};

/// Answers by path; `/hold` answers when `released`.
#[derive(Clone)]
struct ByPath {
    held: Arc<tokio::sync::Semaphore>,
    released: Arc<tokio::sync::Semaphore>,
}

mod http1;
mod tls;

/// The same bytes again and again.
#[derive(Default)]
struct Chunks {
    bytes: Bytes,
    left: usize,
    /// Nobody is told how many.
    streams: bool,
    /// The last piece is followed by an error.
    breaks: bool,
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        Self { left: usize::from(!bytes.is_empty()), bytes, ..Self::default() }
    }
}

impl From<&'static str> for Chunks {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<String> for Chunks {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Poll::Ready(Some(Ok(Frame::data(self.bytes.clone()))))
            }
            None if self.breaks => Poll::Ready(Some(Err(std::io::ErrorKind::Other.into()))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && !self.breaks
    }

    fn size_hint(&self) -> SizeHint {
        if self.streams {
            return SizeHint::default();
        }
        SizeHint::with_exact((self.bytes.len() * self.left) as u64)
    }
}

impl Payload for Chunks {}

impl Handler for ByPath {
    type Body = Chunks;

    async fn handle(&self, connection: &Rc<ConnInfo>, request: Request<Inbound>) -> Response<Chunks> {
        match request.uri().path() {
            "/panic" => panic!("as asked"),
            "/hold" => {
                self.held.add_permits(1);
                self.released.acquire().await.expect("never closed").forget();
                Response::new("held".into())
            }
            "/early" => {
                let mut answer = Response::new("too much".into());
                *answer.status_mut() = http::StatusCode::PAYLOAD_TOO_LARGE;
                answer
            }
            "/empty" => {
                let mut answer = Response::new(Chunks::default());
                *answer.status_mut() = http::StatusCode::NOT_FOUND;
                answer
            }
            "/large" => Response::new(Chunks { bytes: vec![b'x'; 1 << 16].into(), left: 1 << 10, ..Chunks::default() }),
            "/stream" => Response::new(Chunks { left: 2, streams: true, ..Chunks::from("abc") }),
            "/broken" => Response::new(Chunks { streams: true, breaks: true, ..Chunks::from("abc") }),
            "/peer" => Response::new(connection.peer.map_or_else(|| "unix".into(), |peer| peer.to_string().into())),
            "/echo" => {
                Response::new(request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default().into())
            }
            path => Response::new(format!("{} {path}", request.method()).into()),
        }
    }
}

struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    handler: ByPath,
    workers: Workers,
}

fn start(settings: Settings) -> Server {
    start_with(settings, None)
}

fn start_with(settings: Settings, tls: Option<Arc<ServerTls>>) -> Server {
    let listen = Listen { address: Address::Tcp(([127, 0, 0, 1], 0).into()), tls };
    let bound = bind(&[listen], 2).expect("a free port");
    let Address::Tcp(address) = bound[0].address else { panic!("bound to TCP") };
    let shared = Arc::new(Shared::new(settings));
    let handler =
        ByPath { held: Arc::new(tokio::sync::Semaphore::new(0)), released: Arc::new(tokio::sync::Semaphore::new(0)) };
    let each = handler.clone();
    let workers = serve(bound, 2, Arc::clone(&shared), move |_| each.clone()).expect("started");
    Server { address, shared, handler, workers }
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("set");
        stream.set_write_timeout(Some(DEADLINE)).expect("set");
        stream
    }

    /// What the server sends until it closes.
    fn talk(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("sent");
        read_to_end(&mut stream)
    }

    fn await_held(&self, many: u32) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let held = tokio::time::timeout(DEADLINE, self.handler.held.acquire_many(many)).await;
            held.expect("held in time").expect("never closed").forget();
        });
    }
}

fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset after the answer is an end like any other.
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("not closed in time"),
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

/// Reads one answer whose body has `body` bytes.
fn read_answer(stream: &mut TcpStream, body: &str) -> String {
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(format!("\r\n\r\n{body}").as_bytes()) {
        let read = stream.read_exact(&mut byte);
        read.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&answer)));
        answer.push(byte[0]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_connection_serves_many_requests_one_after_another_and_pipelined() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    for i in 0..3 {
        write!(stream, "GET /{i} HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        assert!(read_answer(&mut stream, &format!("GET /{i}")).starts_with("HTTP/1.1 200"));
    }
    let pipelined: String = (0..5).map(|i| format!("GET /p{i} HTTP/1.1\r\nhost: a\r\n\r\n")).collect();
    stream.write_all(pipelined.as_bytes()).expect("sent");
    for i in 0..5 {
        read_answer(&mut stream, &format!("GET /p{i}"));
    }
    assert_eq!(server.shared.stats.accepted.value(), 1);
    assert_eq!(server.shared.bounds.open(), 1);
}

#[test]
fn http2_with_prior_knowledge_is_spoken_on_the_same_port() {
    let server = start(Settings::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await.expect("connected");
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.expect("HTTP/2 is spoken");
        tokio::spawn(connection);
        for body in ["one", "two"] {
            let request = Request::post("http://a/echo").body(Full::<Bytes>::from(body)).expect("a request");
            let answer = sender.send_request(request).await.expect("answered");
            assert_eq!(answer.version(), http::Version::HTTP_2);
            assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), body);
        }
    });
}

#[test]
fn a_preface_that_comes_byte_by_byte_is_known_all_the_same() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    stream.set_nodelay(true).expect("set");
    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
        stream.write_all(&[*byte]).expect("sent");
    }
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).expect("sent"); // empty SETTINGS
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("SETTINGS");
    assert_eq!(head[3], 4, "the first frame is SETTINGS");
}

#[test]
fn a_head_that_does_not_end_is_answered_408_in_time() {
    let server = start(Settings { header_read: Duration::from_secs(1), ..Settings::default() });
    // From the first byte on, and also where the connection has served a request before.
    let answer = server.talk(b"GET / HTTP/1.1\r\nhost: a\r\nx-slow: ");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    let mut stream = server.connect();
    stream.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    read_answer(&mut stream, "GET /a");
    stream.write_all(b"GET /b HTTP/1.1\r\n").expect("sent");
    let answer = read_to_end(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    // A caller that says nothing hears nothing.
    assert_eq!(read_to_end(&mut server.connect()), "");
    wait_until("all are counted", || server.shared.stats.slow_heads.value() == 3);
}

#[test]
fn bytes_that_drip_do_not_put_the_deadline_off() {
    let server = start(Settings { header_read: Duration::from_secs(1), ..Settings::default() });
    let mut stream = server.connect();
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
    stream.write_all(b"GET / HTTP/1.1\r\nx: ").expect("sent");
    let mut answer = [0; 512];
    for _ in 0..500 {
        match stream.read(&mut answer) {
            Ok(read) => {
                assert!(answer[..read].starts_with(b"HTTP/1.1 408"));
                return;
            }
            Err(_) => {
                let _ = stream.write_all(b"y");
            }
        }
    }
    panic!("never closed");
}

#[test]
fn an_idle_connection_is_closed() {
    let server = start(Settings { keep_alive: Duration::from_millis(200), ..Settings::default() });
    let answer = server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(answer.ends_with("GET /a"), "{answer:?}");
    wait_until("it is counted", || server.shared.stats.idle_closed.value() == 1);
}

#[test]
fn a_connection_that_rests_wakes_up_where_it_was() {
    let server = start(Settings { awake: Duration::from_millis(40), ..Settings::default() });
    let mut stream = server.connect();
    for round in 1..4 {
        stream.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTT").expect("sent");
        read_answer(&mut stream, "GET /a");
        // A head that was begun belongs to a request: it is kept.
        stream.write_all(b"P/1.1\r\nhost: a\r\n\r\n").expect("sent");
        read_answer(&mut stream, "GET /b");
        wait_until("it rests", || server.shared.stats.rested.value() >= round);
    }
    // A body that nobody reads is never taken for a request: the connection does not outlive its answer.
    let head = "POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 40\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    read_answer(&mut stream, "too much");
    let rested = server.shared.stats.rested.value();
    let mut other = server.connect();
    other.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    read_answer(&mut other, "GET /a");
    wait_until("the other rests", || server.shared.stats.rested.value() > rested);
    stream.write_all(b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    assert!(!read_to_end(&mut stream).contains("smuggled"));

    // Resting is idle: it ends as idleness does, and in a drain.
    let server = start(Settings {
        awake: Duration::from_millis(40),
        keep_alive: Duration::from_millis(120),
        ..Settings::default()
    });
    server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    wait_until("its end is counted", || server.shared.stats.idle_closed.value() == 1);
    assert_eq!(server.shared.stats.rested.value(), 1);
}

#[test]
fn of_many_idle_connections_only_a_few_keep_their_buffers() {
    // Nobody's second is over for as long as this test runs.
    let server = start(Settings { awake: Duration::from_secs(60), ..Settings::default() });
    let mut streams: Vec<TcpStream> = (0..80).map(|_| server.connect()).collect();
    for round in 1..=2 {
        for stream in &mut streams {
            // Two of them at once: the second must not be forgotten in the rest.
            stream.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
            read_answer(stream, "GET /a");
            read_answer(stream, "GET /b");
        }
        wait_until("those too many rest", || server.shared.stats.rested.value() >= round * (80 - 2 * 32));
    }
    assert!(server.shared.stats.rested.value() <= 2 * (80 - 32), "some stay awake");
}

#[test]
fn a_connection_whose_last_request_had_a_body_rests_too() {
    let server = start(Settings { awake: Duration::from_millis(40), ..Settings::default() });
    let mut stream = server.connect();
    for round in 1..4 {
        let head = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n";
        stream.write_all(format!("{head}ab").as_bytes()).expect("sent");
        stream.write_all(b"cd").expect("sent");
        read_answer(&mut stream, "abcd");
        wait_until("it rests", || server.shared.stats.rested.value() >= round);
    }
}

#[test]
fn a_request_that_is_being_answered_is_not_idle() {
    let settings = Settings {
        keep_alive: Duration::from_millis(500),
        header_read: Duration::from_millis(500),
        body_idle: Duration::from_millis(500),
        ..Settings::default()
    };
    let server = start(settings);
    let mut stream = server.connect();
    stream.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    server.await_held(1);
    // Another connection lives its idle life to the end meanwhile: proof that the deadlines run.
    server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    server.handler.released.add_permits(1);
    read_answer(&mut stream, "held");
}

#[test]
fn a_caller_that_does_not_read_is_cut_off() {
    let server = start(Settings { body_idle: Duration::from_millis(200), ..Settings::default() });
    let mut stream = server.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    wait_until("the caller is cut off", || server.shared.stats.slow_reads.value() == 1);
}

#[test]
fn oversized_heads_are_refused() {
    let server = start(Settings { header_bytes: 10_000, headers: 10, target_bytes: 100, ..Settings::default() });
    let many: String = (0..11).map(|i| format!("x-{i}: y\r\n")).collect();
    let long = "y".repeat(20_000);
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), "431"),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"), "431"),
        (format!("GET /{} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", &long[..100]), "414"),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n".to_owned(), "400"),
        ("\u{16}\u{3}\u{1}".to_owned(), "400"),
    ] {
        let answer = server.talk(request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer:?}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("application/problem+json"), "{answer:?}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer:?}");
        let problem: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(problem["status"].to_string(), status);
    }
    wait_until("all are counted", || {
        server.shared.stats.oversized_heads.value() == 3 && server.shared.stats.malformed.value() == 2
    });
}

#[test]
fn a_handlers_empty_answer_is_left_as_it_is() {
    let server = start(Settings::default());
    let answer = server.talk(b"GET /empty HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("\r\n\r\n"), "{answer:?}");
}

#[test]
fn an_early_answer_reaches_a_caller_that_goes_on_sending() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    write!(stream, "POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 8000000\r\n\r\n").expect("sent");
    // All of it, although the answer is there long before.
    stream.write_all(&vec![b'x'; 8_000_000]).expect("read to the end, not reset");
    let answer = read_to_end(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("too much"), "{answer:?}");
}

#[test]
fn a_caller_whose_streams_have_no_window_is_cut_off() {
    let server = start(Settings { body_idle: Duration::from_millis(300), ..Settings::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await.expect("connected");
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .initial_stream_window_size(65_535)
            .handshake(io)
            .await
            .expect("HTTP/2 is spoken");
        let connection = tokio::spawn(connection);
        let request = Request::get("http://a/large").body(Full::<Bytes>::default()).expect("a request");
        let answer = sender.send_request(request).await.expect("answered");
        // The answer's body is held and never read.
        let _ = tokio::time::timeout(DEADLINE, connection).await.expect("cut off in time");
        drop(answer);
    });
    wait_until("it is counted", || server.shared.stats.slow_reads.value() == 1);
}

#[test]
fn a_panic_is_one_500_and_costs_nobody_else_anything() {
    let server = start(Settings::default());
    let mut bystander = server.connect();
    bystander.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    server.await_held(1);
    for _ in 0..4 {
        let answer = server.talk(b"GET /panic HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer:?}");
    }
    let answer = server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert!(answer.ends_with("GET /a"), "{answer:?}");
    server.handler.released.add_permits(1);
    read_answer(&mut bystander, "held");
    assert_eq!(server.shared.stats.panics.value(), 4);
}

/// A drain that closes idle connections at once.
fn whole(span: Duration) -> Drain {
    Drain { span, grace: Duration::ZERO, handed_over: false }
}

#[test]
fn a_drain_finishes_what_is_under_way_and_then_ends() {
    let server = start(Settings::default());
    let mut held = server.connect();
    held.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    server.await_held(1);
    let mut idle = server.connect();
    idle.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    read_answer(&mut idle, "GET /a");

    server.workers.drain(whole(DEADLINE));
    assert_eq!(read_to_end(&mut idle), "", "an idle connection is closed");
    wait_until("nobody listens", || TcpStream::connect(server.address).is_err());
    assert!(!server.workers.ended());
    server.handler.released.add_permits(1);
    let answer = read_to_end(&mut held);
    assert!(answer.contains("connection: close") && answer.ends_with("held"), "{answer:?}");
    server.workers.join();
}

#[test]
fn what_came_behind_the_last_answer_of_a_drain_does_not_take_that_back() {
    for round in 0..20 {
        let server = start(Settings::default());
        let mut held = server.connect();
        held.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        server.await_held(1);
        server.workers.drain(whole(DEADLINE));
        wait_until("nobody listens", || TcpStream::connect(server.address).is_err());
        held.write_all(b"GET /behind HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        server.handler.released.add_permits(1);
        let mut answer = String::new();
        held.read_to_string(&mut answer).expect("an end in order, no reset");
        assert!(answer.contains("connection: close") && answer.ends_with("held"), "round {round}: {answer:?}");
        drop(held);
        server.workers.join();
    }
}

#[test]
fn a_drain_that_runs_out_of_time_cuts_off() {
    let server = start(Settings::default());
    let mut held = server.connect();
    held.write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    server.await_held(1);
    server.workers.drain(whole(Duration::from_millis(100)));
    server.workers.join();
    assert_eq!(read_to_end(&mut held), "");
}

#[test]
fn connections_above_the_bound_get_503_and_those_within_live_on() {
    let server = start(Settings { connections: 2, ..Settings::default() });
    let mut within: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut within {
        stream.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        read_answer(stream, "GET /a");
    }
    let mut above = server.connect();
    assert!(read_to_end(&mut above).starts_with("HTTP/1.1 503 "));
    wait_until("it is counted", || server.shared.stats.refused_total.value() == 1);
    for stream in &mut within {
        stream.write_all(b"GET /b HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        read_answer(stream, "GET /b");
    }
    within.pop();
    wait_until("one has left", || server.shared.bounds.open() == 1);
    let mut next = server.connect();
    next.write_all(b"GET /c HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    read_answer(&mut next, "GET /c");
}

#[test]
fn the_proxy_protocol_is_believed_from_trusted_peers_only() {
    let trusted = Settings {
        proxy_protocol: true,
        trusted_proxies: ["127.0.0.0/8".parse().expect("a network")].into_iter().collect(),
        connections_per_address: Some(1),
        ..Settings::default()
    };
    let server = start(trusted.clone());
    let request = "GET /peer HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    for line in ["PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n", "PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n"] {
        let answer = server.talk(format!("{line}{request}").as_bytes());
        assert!(answer.ends_with("192.0.2.7:4711"), "{answer:?}");
        wait_until("it has left", || server.shared.bounds.open() == 0);
    }
    assert_eq!(server.talk(request.as_bytes()), "", "the header is required");
    wait_until("it is counted", || server.shared.stats.proxy_header_failures.value() == 1);

    let server = start(Settings { trusted_proxies: NetSet::default(), ..trusted });
    assert_eq!(server.talk(format!("PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n{request}").as_bytes()), "");
    wait_until("it is counted", || server.shared.stats.proxy_header_failures.value() == 1);
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..DEADLINE.as_millis() / 5 {
        if reached() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not in time: {what}");
}

/// Far above what any of these takes.
const DEADLINE: Duration = Duration::from_secs(20);
