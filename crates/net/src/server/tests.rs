//! The server on real sockets.

mod by_path;
mod draining;
mod http1;
mod timeouts;
mod running;
mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};

use super::Settings;
use running::{read_answer, read_to_end, run, start, wait_until};
use tollgate_policy::identity::address::NetSet;

#[test]
fn a_connection_serves_many_requests_one_after_another_and_pipelined() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    for i in 0..3 {
        write!(stream, "GET /{i} HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        assert!(read_answer(&mut stream, &format!("GET /{i}")).starts_with("HTTP/1.1 200"));
    }
    let pipelined: String = (0..5)
        .map(|i| format!("GET /p{i} HTTP/1.1\r\nhost: a\r\n\r\n"))
        .collect();
    stream.write_all(pipelined.as_bytes()).expect("sent");
    for i in 0..5 {
        read_answer(&mut stream, &format!("GET /p{i}"));
    }
    assert_eq!(server.observed("opened"), 1);
    assert_eq!(server.shared.bounds.open(), 1);
}

#[test]
fn http2_with_prior_knowledge_is_spoken_on_the_same_port() {
    let server = start(Settings::default());
    run(async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .expect("connected");
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
            .await
            .expect("HTTP/2 is spoken");
        tokio::spawn(connection);
        for body in ["one", "two"] {
            let request = Request::post("http://a/echo")
                .body(Full::<Bytes>::from(body))
                .expect("a request");
            let answer = sender.send_request(request).await.expect("answered");
            assert_eq!(answer.version(), http::Version::HTTP_2);
            assert_eq!(
                answer
                    .into_body()
                    .collect()
                    .await
                    .expect("a body")
                    .to_bytes(),
                body
            );
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
    stream
        .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
        .expect("sent"); // empty SETTINGS
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("SETTINGS");
    assert_eq!(head[3], 4, "the first frame is SETTINGS");
}

#[test]
fn oversized_heads_are_refused() {
    let server = start(Settings {
        header_bytes: 10_000,
        headers: 10,
        target_bytes: 100,
        ..Settings::default()
    });
    let many: String = (0..11).map(|i| format!("x-{i}: y\r\n")).collect();
    let long = "y".repeat(20_000);
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), "431"),
        (
            format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"),
            "431",
        ),
        (
            format!(
                "GET /{} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
                &long[..100]
            ),
            "414",
        ),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n".to_owned(), "400"),
        ("\u{16}\u{3}\u{1}".to_owned(), "400"),
    ] {
        let answer = server.talk(request.as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{status}: {answer:?}"
        );
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("application/problem+json"), "{answer:?}");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{answer:?}"
        );
        let problem: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(problem["status"].to_string(), status);
    }
    wait_until("all are counted", || {
        let reasons = [
            "head_too_large",
            "target_too_long",
            "malformed",
            "tls_on_plain_port",
        ];
        reasons.map(|reason| server.observed(reason)) == [2, 1, 1, 1]
    });
}

#[test]
fn refusal_of_a_head_arrives_whatever_bytes_follow() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nx : y\r\n\r\n")
        .expect("sent");
    stream
        .write_all(&vec![b'x'; 8 << 20])
        .expect("it is listened to for a while");
    let answer = read_answer(&mut stream, "");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
}

#[test]
fn a_client_that_leaves_while_no_task_reads_or_writes_is_seen_to_leave() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    stream
        .write_all(b"GET /hangs HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    read_answer(&mut stream, "3\r\nabc\r\n");
    drop(stream);
    wait_until("it has gone", || server.shared.bounds.open() == 0);
    let mut stream = server.connect();
    stream
        .write_all(b"POST /half HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n")
        .expect("sent");
    for _ in 0..2 {
        stream.write_all(b"abc").expect("sent");
        server.await_held(1);
    }
    drop(stream);
    wait_until("it has gone", || server.shared.bounds.open() == 0);
}

#[test]
fn empty_response_of_the_handler_is_not_changed() {
    let server = start(Settings::default());
    let answer = server.talk(b"GET /empty HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert!(
        answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("\r\n\r\n"),
        "{answer:?}"
    );
}

#[test]
fn early_response_reaches_a_client_that_continues_sending() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    write!(
        stream,
        "POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 8000000\r\n\r\n"
    )
    .expect("sent");
    // All of it, although the answer is there long before.
    stream
        .write_all(&vec![b'x'; 8_000_000])
        .expect("read to the end, not reset");
    let answer = read_to_end(&mut stream);
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("too much"),
        "{answer:?}"
    );
}

#[test]
fn a_panic_is_one_500_and_costs_no_other_request_anything() {
    let server = start(Settings::default());
    let mut bystander = server.connect();
    bystander
        .write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    server.await_held(1);
    for _ in 0..4 {
        let answer = server.talk(b"GET /panic HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer:?}");
    }
    let answer = server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert!(answer.ends_with("GET /a"), "{answer:?}");
    server.handler.released.add_permits(1);
    read_answer(&mut bystander, "held");
    assert_eq!(server.observed("panicked"), 4);
}

#[test]
fn http2_heads_above_the_bounds_are_refused() {
    let server = start(Settings {
        headers: 3,
        target_bytes: 10,
        ..Settings::default()
    });
    run(async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .expect("connected");
        let (mut sender, connection) = h2::client::handshake(stream)
            .await
            .expect("HTTP/2 is spoken");
        tokio::spawn(connection);
        for (target, fields, status) in [
            ("http://a/echo", 3, 200),
            ("http://a/echo-echo-echo", 0, 414),
            ("http://a/echo", 4, 431),
        ] {
            let mut request = Request::get(target);
            for field in 0..fields {
                request = request.header(format!("x-{field}"), "a");
            }
            let request = request.body(()).expect("a request");
            let (answer, _) = sender.send_request(request, true).expect("sent");
            let answer = answer.await.expect("answered");
            assert_eq!(answer.status(), status, "{target} {fields}");
        }
    });
    let reasons = ["target_too_long", "head_too_large"];
    assert_eq!(reasons.map(|reason| server.observed(reason)), [1, 1]);
}

#[test]
fn http2_panic_upon_head_is_a_500_without_data() {
    let server = start(Settings::default());
    run(async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .expect("connected");
        let (mut sender, connection) = h2::client::handshake(stream)
            .await
            .expect("HTTP/2 is spoken");
        tokio::spawn(connection);
        let request = Request::head("http://a/panic").body(()).expect("a request");
        let (answer, _) = sender.send_request(request, true).expect("sent");
        let answer = answer.await.expect("answered");
        assert_eq!(answer.status(), 500);
        assert!(answer.headers().contains_key("content-length"));
        assert!(answer.into_body().data().await.is_none());
    });
}

#[test]
fn connections_above_the_bound_get_503_and_those_within_live_on() {
    let server = start(Settings {
        connections: 2,
        ..Settings::default()
    });
    let mut within: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut within {
        stream
            .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
            .expect("sent");
        read_answer(stream, "GET /a");
    }
    let mut above = server.connect();
    assert!(read_to_end(&mut above).starts_with("HTTP/1.1 503 "));
    wait_until("it is counted", || server.observed("connections") == 1);
    for stream in &mut within {
        stream
            .write_all(b"GET /b HTTP/1.1\r\nhost: a\r\n\r\n")
            .expect("sent");
        read_answer(stream, "GET /b");
    }
    within.pop();
    wait_until("one has left", || server.shared.bounds.open() == 1);
    let mut next = server.connect();
    next.write_all(b"GET /c HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    read_answer(&mut next, "GET /c");
}

#[test]
fn the_proxy_protocol_is_believed_from_trusted_peers_only() {
    let trusted = Settings {
        proxy_protocol: true,
        trusted_proxies: ["127.0.0.0/8".parse().expect("a network")]
            .into_iter()
            .collect(),
        connections_per_address: Some(1),
        ..Settings::default()
    };
    let server = start(trusted.clone());
    let request = "GET /peer HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    for line in [
        "PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n",
    ] {
        let answer = server.talk(format!("{line}{request}").as_bytes());
        assert!(answer.ends_with("192.0.2.7:4711"), "{answer:?}");
        wait_until("it has left", || server.shared.bounds.open() == 0);
    }
    // The bound is of the address that the header names.
    let mut held = server.connect();
    let begun = "PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\nGET /a HTTP/1.1\r\nhost: a\r\n\r\n";
    held.write_all(begun.as_bytes()).expect("sent");
    read_answer(&mut held, "GET /a");
    assert_eq!(server.talk(begun.as_bytes()), "", "one is open");
    drop(held);
    wait_until("it has left", || server.shared.bounds.open() == 0);
    assert_eq!(
        server.talk(request.as_bytes()),
        "",
        "the header is required"
    );
    wait_until("it is counted", || server.observed("proxy_header") == 1);

    let server = start(Settings {
        trusted_proxies: NetSet::default(),
        ..trusted
    });
    assert_eq!(
        server.talk(format!("PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n{request}").as_bytes()),
        ""
    );
    wait_until("it is counted", || server.observed("proxy_header") == 1);
}
