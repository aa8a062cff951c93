//! What passes while it comes, over HTTP/2: pieces, early answers, expectations, trailers, retries.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::duplex::over_http2;
use crate::forwarding::open;
use crate::harness::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Fate, Frames, HEADERS, RST_STREAM, WINDOW_UPDATE,
    block, frame, request,
};
use crate::harness::{Connection, Gateway, PATIENCE, Reply, Upstream, eventually};

/// An upstream whose one connection is played by `script`; its URL.
pub(crate) fn scripted(script: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        script(stream);
    });
    url
}

fn in_front_of(url: &str) -> Gateway {
    Gateway::start(&format!(
        "[[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\n"
    ))
}

/// Reads until what came ends with `end`.
pub(crate) fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(end.as_bytes()) {
        stream.read_exact(&mut byte).expect("more");
        all.push(byte[0]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads frames until one of stream 1 has data.
fn next_piece(frames: &mut Frames) -> Vec<u8> {
    loop {
        let (kind, _, stream, payload) = frames.frame().expect("in time").expect("it is open");
        if kind == DATA && stream == 1 && !payload.is_empty() {
            return payload;
        }
    }
}

#[test]
fn events_pass_one_by_one_as_they_come() {
    let (go, gone) = mpsc::channel::<()>();
    let url = scripted(move |mut stream| {
        until(&mut stream, "\r\n\r\n");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("sent");
        for _ in 0..3 {
            gone.recv_timeout(PATIENCE).expect("asked for");
            stream.write_all(b"9\r\ndata: 1\n\n\r\n").expect("sent");
        }
        stream.write_all(b"0\r\n\r\n").expect("sent");
    });
    let gateway = in_front_of(&url);
    let mut frames = Frames::open(gateway.address(), &[]);
    frames.ask(1, "GET", "/", &[("accept", "text/event-stream")]);
    for _ in 0..3 {
        // Nothing more comes before this one has arrived.
        go.send(()).expect("it listens");
        assert_eq!(next_piece(&mut frames), b"data: 1\n\n");
    }
    assert!(frames.fate(1).ended);
}

#[test]
fn http2_early_response_passes_while_the_body_streams_and_closes_the_stream() {
    let url = scripted(|mut stream| {
        until(&mut stream, "first\r\n");
        stream
            .write_all(b"HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno")
            .expect("sent");
        let _ = stream.read(&mut [0]);
    });
    let gateway = in_front_of(&url);
    let mut frames = Frames::open(gateway.address(), &[]);
    frames.send(frame(HEADERS, END_HEADERS, 1, request("POST", "/", &[])));
    frames.send(frame(DATA, 0, 1, b"first"));
    let fate = frames.fate(1);
    assert_eq!(
        (fate.status, fate.body.as_slice()),
        (Some(403), &b"no"[..]),
        "{fate:?}"
    );
    // What is still sent is no error of the connection (RFC 9113 8.1).
    let _ = frames.try_send(frame(DATA, END_STREAM, 1, b"second"));
    assert!(
        frames
            .try_send(frame(RST_STREAM, 0, 1, 8_u32.to_be_bytes()))
            .is_ok()
    );
}

/// A POST with these `fields` to an HTTP/2 upstream that answers at once and then reads on, and what its caller does
/// `behind` it; what became of its stream.
fn answered_early(fields: &str, behind: impl FnOnce(&mut Connection)) -> Fate {
    let (go, gone) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel::<Fate>();
    let url = scripted(move |stream| {
        // The window of a stream is 10 bytes.
        let mut frames = Frames::accepted(stream, (4, 10));
        let answer = |of| {
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                of,
                block(&[(":status", "204")]),
            )
        };
        // By the second request the first one's connection knows how small it is.
        for (of, first) in [(1, HEADERS), (3, DATA)] {
            while frames
                .frame()
                .expect("in time")
                .map(|(kind, _, stream, _)| (kind, stream))
                != Some((first, of))
            {}
            frames.send(answer(of));
        }
        gone.recv_timeout(PATIENCE).expect("the answer passes");
        frames.send(frame(WINDOW_UPDATE, 0, 3, 10_000_u32.to_be_bytes()));
        tell.send(frames.fate(3)).expect("awaited");
        while let Ok(Some((kind, _, of, _))) = frames.frame() {
            if kind == HEADERS {
                frames.send(answer(of));
            }
        }
    });
    let gateway = Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"{url}\"]\nhttp2 = true\n[[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n"
    ));
    let mut connection = gateway.connect();
    assert_eq!(connection.request("GET", "/first", &[]).status, 204);
    let chunk = format!("64\r\n{}\r\n", "x".repeat(100));
    let head =
        format!("POST /early HTTP/1.1\r\nHost: x\r\n{fields}Transfer-Encoding: chunked\r\n\r\n");
    connection.send(format!("{head}{}", chunk.repeat(5)));
    assert_eq!(connection.answer("POST").status, 204);
    go.send(()).expect("it listens");
    connection.send(format!("{chunk}0\r\n\r\n"));
    let fate = told.recv_timeout(PATIENCE).expect("in time");
    behind(&mut connection);
    fate
}

#[test]
fn http2_early_response_leaves_the_upstream_the_whole_body_or_no_end() {
    let fate = answered_early("", |connection| {
        assert_eq!(
            connection.request("GET", "/next", &[]).status,
            204,
            "the connection goes on behind the body"
        );
    });
    // The first ten bytes came before the answer.
    assert_eq!((fate.body.len(), fate.ended), (590, true), "{fate:?}");
}

#[test]
fn http2_early_response_to_the_last_request_cuts_no_upload_short() {
    let fate = answered_early("Connection: close\r\n", |connection| {
        assert!(
            connection.is_closed(),
            "nothing comes behind the last answer"
        );
    });
    assert_eq!((fate.body.len(), fate.ended), (590, true), "{fate:?}");
}

#[test]
fn an_expectation_is_met_here_and_goes_no_further() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let mut frames = Frames::open(gateway.address(), &[]);
    let head = request(
        "POST",
        "/",
        &[("expect", "100-continue"), ("content-length", "4")],
    );
    frames.send(frame(HEADERS, END_HEADERS, 1, head));
    frames.send(frame(DATA, END_STREAM, 1, b"body"));
    assert_eq!(frames.fate(1).status, Some(200));
    assert_eq!(upstream.last().body, b"body");
}

#[test]
fn trailers_of_http1_reach_an_http2_client() {
    let upstream = Upstream::start(|_| {
        let answer = "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n";
        Reply::Bytes(answer.into())
    });
    let gateway = Gateway::start(&open(&upstream));
    let mut frames = Frames::open(gateway.address(), &[]);
    frames.ask(1, "GET", "/", &[("te", "trailers")]);
    let Fate {
        status,
        body,
        trailers,
        ended,
        ..
    } = frames.fate(1);
    assert_eq!(
        (status, body.as_slice(), trailers, ended),
        (Some(200), &b"ok"[..], 1, true)
    );
}

#[test]
fn http2_headers_that_claim_an_address_are_replaced_and_cookies_joined() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let mut frames = Frames::open(gateway.address(), &[]);
    let claims = [
        ("x-forwarded-for", "1.1.1.1"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
    ];
    let more = [
        ("x_forwarded_for", "1.1.1.1"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-kept", "yes"),
    ];
    frames.ask(1, "GET", "/a?b=%2F", &[&claims[..], &more].concat());
    assert_eq!(frames.fate(1).status, Some(200));
    let seen = upstream.last();
    assert_eq!(seen.line(), "GET /a?b=%2F HTTP/1.1");
    assert_eq!(
        (
            seen.header("x-forwarded-for"),
            seen.header("x-forwarded-proto")
        ),
        (Some("127.0.0.1"), Some("http"))
    );
    assert_eq!(
        (seen.header("cookie"), seen.header("x-kept")),
        (Some("a=1; b=2"), Some("yes"))
    );
    assert_eq!(seen.header("host"), Some("localhost"));
    assert!(!seen.head.contains("1.1.1.1"), "{}", seen.head);
}

#[test]
fn a_connection_that_is_stale_at_reuse_costs_a_get_nothing_and_a_post_is_never_sent_twice() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    // Every second request of a connection is read, and the connection closed without a byte.
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, counted) = (stream.expect("a connection"), Arc::clone(&counted));
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            std::thread::spawn(move || {
                for number in 0..2 {
                    let mut byte = [0];
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        if stream.read_exact(&mut byte).is_err() {
                            return;
                        }
                        head.push(byte[0]);
                    }
                    counted.fetch_add(1, Ordering::SeqCst);
                    if number == 0 {
                        stream
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                            .expect("sent");
                    }
                }
            });
        }
    });
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\n"
    ));
    let mut frames = Frames::open(gateway.address(), &[]);
    let mut ask = |stream: u32, method: &str| {
        frames.ask(stream, method, "/", &[]);
        frames.fate(stream).status
    };
    assert_eq!(ask(1, "GET"), Some(200));
    assert_eq!(ask(3, "GET"), Some(200), "sent again on a fresh connection");
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    assert_eq!(
        ask(5, "POST"),
        Some(502),
        "the fresh one is stale in its turn"
    );
    eventually("it was sent once", || requests.load(Ordering::SeqCst) == 4);
    assert_eq!(ask(7, "POST"), Some(200));
    assert_eq!(requests.load(Ordering::SeqCst), 5);
}

#[test]
fn http2_trailers_with_a_pseudo_header_reset_only_their_stream() {
    let upstream = Upstream::hello();
    for target in ["builtin:echo", &upstream.url()] {
        let gateway = in_front_of(target);
        for (what, trailers) in [
            ("alone", block(&[(":path", "/other")])),
            (
                "before others",
                block(&[(":authority", "other"), ("x-sum", "1")]),
            ),
            ("by its index", vec![0x84]),
            ("of an answer", vec![0x88]),
        ] {
            let mut frames = Frames::open(gateway.address(), &[]);
            frames.send(frame(HEADERS, END_HEADERS, 1, request("POST", "/", &[])));
            frames.send(frame(DATA, 0, 1, "x"));
            frames.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers));
            // Right behind it, in the same read.
            frames.ask(3, "GET", "/", &[]);
            let fate = frames.fate(1);
            assert_eq!(
                (fate.reset, fate.goaway),
                (Some(1), None),
                "{target}, {what}: {fate:?}"
            );
            frames.ask(5, "GET", "/", &[("x-a", "b")]);
            let fate = frames.fate(5);
            assert_eq!(
                (fate.status, fate.ended),
                (Some(200), true),
                "{target}, {what}: {fate:?}"
            );
        }
        let mut frames = Frames::open(gateway.address(), &[]);
        frames.send(frame(HEADERS, END_HEADERS, 1, request("POST", "/", &[])));
        frames.send(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            block(&[(":other", "1")]),
        ));
        assert!(
            frames.fate(1).is_refused(),
            "{target}: an unknown one ends the connection"
        );
        let mut frames = Frames::open(gateway.address(), &[]);
        frames.send(frame(HEADERS, END_HEADERS, 1, request("POST", "/", &[])));
        frames.send(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            block(&[("x-sum", "1")]),
        ));
        assert_eq!(
            frames.fate(1).status,
            Some(200),
            "{target}: other trailers pass"
        );
    }
    let requests = upstream.seen();
    assert!(
        requests
            .iter()
            .all(|seen| !seen.head.starts_with("POST") || seen.trailers == ["x-sum: 1"]),
        "{requests:?}"
    );
}

/// An upstream of HTTP/1.1 whose answer begins when the body has come, a piece every 100 ms; its address.
fn slowly() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            std::thread::spawn(move || {
                until(&mut stream, "body");
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 20\r\nconnection: close\r\n\r\n";
                let mut sent = stream.write_all(head.as_bytes());
                for _ in 0..20 {
                    std::thread::park_timeout(Duration::from_millis(100));
                    sent = sent.and_then(|()| stream.write_all(b"."));
                }
                // The gateway may break off, which is what is tested.
                let _ = sent.and_then(|()| stream.read(&mut [0; 64]));
            });
        }
    });
    address
}

/// The same over HTTP/2, one connection.
fn slowly_over_http2() -> SocketAddr {
    over_http2(async |mut body, mut respond| {
        while let Some(Ok(piece)) = body.data().await {
            let _ = body.flow_control().release_capacity(piece.len());
        }
        let mut answer = respond
            .send_response(http::Response::new(()), false)
            .expect("sent");
        for piece in 0..20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if answer.send_data(".".into(), piece == 19).is_err() {
                return;
            }
        }
    })
}

fn timed(upstream: &str, http2: bool, timeouts: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         [upstreams.app]\nservers = [\"{upstream}\"]\nhttp2 = {http2}\ntimeouts = {{ {timeouts} }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n"
    ))
}

const TRAILED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                       4\r\nbody\r\n0\r\nx-sum: 1\r\n\r\n";

#[test]
fn http2_response_in_progress_survives_a_late_end_of_its_request() {
    for (upstream, http2) in [(slowly(), false), (slowly_over_http2(), true)] {
        let gateway = timed(
            &format!("http://{upstream}"),
            http2,
            "idle = \"1500ms\", response = \"1h\"",
        );
        let mut trailed = Connection::open(gateway.address());
        trailed.send(TRAILED);
        let answer = trailed.answer("POST");
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "...................."),
            "trailers, HTTP/2 upstream: {http2}"
        );
        for end in [
            frame(DATA, END_STREAM, 1, b""),
            frame(
                HEADERS,
                END_STREAM | END_HEADERS,
                1,
                block(&[("x-sum", "1")]),
            ),
        ] {
            let mut frames = Frames::open(gateway.address(), &[]);
            let head = request("POST", "/", &[("content-length", "4")]);
            frames.send(frame(HEADERS, END_HEADERS, 1, head));
            frames.send(frame(DATA, 0, 1, b"body"));
            std::thread::park_timeout(Duration::from_millis(50));
            frames.send(&end);
            let fate = frames.fate(1);
            assert_eq!(
                (fate.status, fate.ended, fate.body.as_slice()),
                (Some(200), true, &b"...................."[..]),
                "HTTP/2 upstream: {http2}: {fate:?}"
            );
        }
    }
}

#[test]
fn the_response_timeout_holds_after_a_request_with_trailers() {
    let url = scripted(|mut stream| {
        until(&mut stream, "body");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let gateway = timed(&url, false, "idle = \"1h\", response = \"200ms\"");
    let mut trailed = Connection::open(gateway.address());
    trailed.send(TRAILED);
    assert_eq!(trailed.answer("POST").status, 504);
}

#[test]
fn http2_own_response_to_head_has_no_data() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = {:?}\n\
         [[routes]]\nmatch = \"/text\"\nrespond = {{ status = 200, body = \"hello\" }}\n\
         [[routes]]\nmatch = \"/empty\"\nrespond = {{ status = 204, body = \"hello\" }}\n\
         [[routes]]\nmatch = \"/same\"\nrespond = {{ status = 304, body = \"hello\" }}\n\
         [[routes]]\nmatch = \"/echo\"\nupstream = \"builtin:echo\"\n",
        log.path()
    ));
    let asked = [
        ("HEAD", "/text", 200),
        ("GET", "/empty", 204),
        ("HEAD", "/empty", 204),
        ("GET", "/same", 304),
        ("HEAD", "/elsewhere", 404),
    ];
    for (method, path, status) in asked {
        let mut frames = Frames::open(gateway.address(), &[]);
        frames.ask(1, method, path, &[]);
        let fate = frames.fate(1);
        assert_eq!(
            (fate.status, fate.ended, fate.body.len()),
            (Some(status), true, 0),
            "{method} {path}"
        );
        let answer = gateway.request(method, path, &[]);
        let length = answer.header("content-length").map(str::to_owned);
        assert_eq!(answer.status, status);
        match path {
            "/text" => assert_eq!(length.as_deref(), Some("5")),
            "/empty" => assert_eq!(length, None),
            _ => {}
        }
    }
    // A HEAD with a body that the echo would send back.
    let mut frames = Frames::open(gateway.address(), &[]);
    let head = request("HEAD", "/echo", &[("content-length", "4")]);
    frames.send(frame(HEADERS, END_HEADERS, 1, head));
    frames.send(frame(DATA, END_STREAM, 1, b"body"));
    let fate = frames.fate(1);
    assert_eq!((fate.status, fate.body.len()), (Some(200), 0), "{fate:?}");
    // A target longer than allowed: refused before the gateway sees it.
    let head = request("HEAD", &format!("/{}", "a".repeat(20_000)), &[]);
    let (first, rest) = head.split_at(16_000);
    let mut frames = Frames::open(gateway.address(), &[]);
    frames.send(frame(HEADERS, END_STREAM, 1, first));
    frames.send(frame(CONTINUATION, END_HEADERS, 1, rest));
    let fate = frames.fate(1);
    assert_eq!(
        (fate.status, fate.ended, fate.body.len()),
        (Some(414), true, 0),
        "{fate:?}"
    );
    gateway.shutdown();
    let log = std::fs::read_to_string(log.path()).expect("a log");
    assert!(
        log.contains("/text") && !log.contains("client_left"),
        "{log}"
    );
}
