//! How long a connection may be slow, say nothing or not read, and what it keeps meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use super::running::{DEADLINE, read_answer, read_to_end, run, start, wait_until};
use crate::server::Settings;
use crate::worker::AWAKE_MAX;

#[test]
fn timeout_head_that_does_not_end_gets_408() {
    let server = start(Settings {
        header_read: Duration::from_secs(1),
        ..Settings::default()
    });
    // From the first byte on, and also where the connection has served a request before.
    let answer = server.talk(b"GET / HTTP/1.1\r\nhost: a\r\nx-slow: ");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    let mut stream = server.connect();
    stream
        .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    read_answer(&mut stream, "GET /a");
    stream.write_all(b"GET /b HTTP/1.1\r\n").expect("sent");
    let answer = read_to_end(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    // A caller that says nothing hears nothing.
    assert_eq!(read_to_end(&mut server.connect()), "");
    wait_until("all are counted", || server.observed("slow_head") == 3);
}

#[test]
fn bytes_that_drip_do_not_put_the_deadline_off() {
    let server = start(Settings {
        header_read: Duration::from_secs(1),
        ..Settings::default()
    });
    let mut stream = server.connect();
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("set");
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
    let server = start(Settings {
        keep_alive: Duration::from_millis(200),
        ..Settings::default()
    });
    let answer = server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(answer.ends_with("GET /a"), "{answer:?}");
    wait_until("it is counted", || {
        server.shared.stats.idle_closed.value() == 1
    });
}

#[test]
fn a_connection_that_rests_wakes_up_where_it_was() {
    let server = start(Settings {
        awake: Duration::from_millis(40),
        ..Settings::default()
    });
    let mut stream = server.connect();
    for round in 1..4 {
        stream
            .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTT")
            .expect("sent");
        read_answer(&mut stream, "GET /a");
        // A head that was begun belongs to a request: it is kept.
        stream.write_all(b"P/1.1\r\nhost: a\r\n\r\n").expect("sent");
        read_answer(&mut stream, "GET /b");
        wait_until("it rests", || server.shared.stats.rested.value() >= round);
    }
    // A body that no handler reads is never taken for a request: the connection does not outlive its response.
    let head = "POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 40\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    read_answer(&mut stream, "too much");
    let rested = server.shared.stats.rested.value();
    let mut other = server.connect();
    other
        .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    read_answer(&mut other, "GET /a");
    wait_until("the other rests", || {
        server.shared.stats.rested.value() > rested
    });
    stream
        .write_all(b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    assert!(!read_to_end(&mut stream).contains("smuggled"));

    // Resting is idle: it ends as idleness does, and in a drain.
    let server = start(Settings {
        awake: Duration::from_millis(40),
        keep_alive: Duration::from_millis(120),
        ..Settings::default()
    });
    server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    wait_until("its end is counted", || {
        server.shared.stats.idle_closed.value() == 1
    });
    assert_eq!(server.shared.stats.rested.value(), 1);
}

#[test]
fn of_many_idle_connections_only_a_few_keep_their_buffers() {
    // The two workers together keep as many.
    const KEPT_MOST: u64 = 2 * AWAKE_MAX as u64;
    // No connection's second ends while this test runs.
    let server = start(Settings {
        awake: Duration::from_secs(60),
        ..Settings::default()
    });
    let mut streams: Vec<TcpStream> = (0..KEPT_MOST + 16).map(|_| server.connect()).collect();
    for round in 1..=2 {
        for stream in &mut streams {
            // Two of them at once: the second must not be forgotten in the rest.
            stream
                .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n")
                .expect("sent");
            read_answer(stream, "GET /a");
            read_answer(stream, "GET /b");
        }
        wait_until("those too many rest", || {
            server.shared.stats.rested.value() >= round * 16
        });
    }
    assert!(
        server.shared.stats.rested.value() <= 2 * (KEPT_MOST / 2 + 16),
        "some stay awake"
    );
}

#[test]
fn a_connection_whose_last_request_had_a_body_rests_too() {
    let server = start(Settings {
        awake: Duration::from_millis(40),
        ..Settings::default()
    });
    let mut stream = server.connect();
    for round in 1..4 {
        let head = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n";
        stream
            .write_all(format!("{head}ab").as_bytes())
            .expect("sent");
        stream.write_all(b"cd").expect("sent");
        read_answer(&mut stream, "abcd");
        wait_until("it rests", || server.shared.stats.rested.value() >= round);
    }
}

#[test]
fn timeout_request_in_progress_is_not_idle() {
    let settings = Settings {
        keep_alive: Duration::from_millis(500),
        header_read: Duration::from_millis(500),
        body_idle: Duration::from_millis(500),
        ..Settings::default()
    };
    let server = start(settings);
    let mut stream = server.connect();
    stream
        .write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    server.await_held(1);
    // Another connection lives its idle life to the end meanwhile: proof that the deadlines run.
    server.talk(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
    server.handler.released.add_permits(1);
    read_answer(&mut stream, "held");
}

#[test]
fn a_caller_that_does_not_read_is_cut_off() {
    let server = start(Settings {
        body_idle: Duration::from_millis(200),
        ..Settings::default()
    });
    let mut stream = server.connect();
    stream
        .write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    wait_until("the caller is cut off", || {
        server.shared.stats.slow_reads.value() == 1
    });
}

#[test]
fn a_caller_whose_streams_have_no_window_is_cut_off() {
    let server = start(Settings {
        body_idle: Duration::from_millis(300),
        ..Settings::default()
    });
    run(async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .expect("connected");
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                .initial_stream_window_size(65_535)
                .handshake(io)
                .await
                .expect("HTTP/2 is spoken");
        let connection = tokio::spawn(connection);
        let request = Request::get("http://a/large")
            .body(Full::<Bytes>::default())
            .expect("a request");
        let answer = sender.send_request(request).await.expect("answered");
        // The answer's body is held and never read.
        let _ = tokio::time::timeout(DEADLINE, connection)
            .await
            .expect("cut off in time");
        drop(answer);
    });
    wait_until("it is counted", || {
        server.shared.stats.slow_reads.value() == 1
    });
}

#[test]
fn http2_response_not_read_is_polled_for_one_piece_only() {
    let server = start(Settings::default());
    run(async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .expect("connected");
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(1)
            .initial_connection_window_size(1 << 30);
        let (mut sender, mut connection) = builder
            .handshake::<_, Bytes>(stream)
            .await
            .expect("HTTP/2 is spoken");
        let mut pings = connection.ping_pong().expect("the first to ask");
        tokio::spawn(connection);
        let mut bodies = Vec::new();
        for _ in 0..10 {
            let request = Request::get("http://a/counted")
                .body(())
                .expect("a request");
            let (answer, _) = sender.send_request(request, true).expect("sent");
            let mut body = answer.await.expect("answered").into_body();
            assert_eq!(body.data().await.expect("a byte").expect("a byte"), "x");
            bodies.push(body);
        }
        pings.ping(h2::Ping::opaque()).await.expect("answered");
        assert_eq!(
            server.handler.held.available_permits(),
            bodies.len(),
            "a piece of 64 KiB each"
        );
    });
}
