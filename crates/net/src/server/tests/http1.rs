//! HTTP/1 on the wire: requests behind requests, bodies cut anywhere, and what is no request at all.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use super::running::{DEADLINE, read_answer, read_to_end, start, wait_until};
use crate::server::Settings;

/// Requests of every framing, one behind the other; the last one ends the connection.
const TALK: &str = "GET /1 HTTP/1.1\r\nhost: a\r\n\r\n\
    POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\ntwo\
    HEAD /3 HTTP/1.1\r\nhost: a\r\n\r\n\
    POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nfo\r\n2\r\nur\r\n0\r\nx-sum: 1\r\n\r\n\
    GET /stream HTTP/1.1\r\nhost: a\r\n\r\n\
    GET /6 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n\
    GET /stream HTTP/1.0\r\nconnection: keep-alive\r\n\r\n";

/// What came, without the dates.
fn undated(text: &str) -> String {
    text.split_inclusive("\r\n")
        .filter(|line| !line.starts_with("date: "))
        .collect()
}

#[test]
fn http1_responses_come_in_order_with_any_cut_of_the_bytes() {
    let server = start(Settings::default());
    let expected = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nGET /1\
        HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntwo\
        HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n\
        HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfour\
        HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\nabc\r\n0\r\n\r\n\
        HTTP/1.0 200 OK\r\ncontent-length: 6\r\nconnection: keep-alive\r\n\r\nGET /6\
        HTTP/1.0 200 OK\r\nconnection: close\r\n\r\nabcabc";
    assert_eq!(undated(&server.talk(TALK.as_bytes())), expected);
    for cut in 1..TALK.len() {
        let mut stream = server.connect();
        stream.set_nodelay(true).expect("set");
        stream.write_all(&TALK.as_bytes()[..cut]).expect("sent");
        std::thread::yield_now();
        stream.write_all(&TALK.as_bytes()[cut..]).expect("sent");
        assert_eq!(undated(&read_to_end(&mut stream)), expected, "cut at {cut}");
    }
    let mut stream = server.connect();
    stream.set_nodelay(true).expect("set");
    for byte in TALK.as_bytes() {
        stream.write_all(&[*byte]).expect("sent");
    }
    assert_eq!(undated(&read_to_end(&mut stream)), expected, "byte by byte");
}

/// Idle connections of a worker share memory: requests of several that come in pieces, one beside the other, stay apart.
#[test]
fn http1_connections_that_share_memory_keep_their_requests_apart() {
    let server = start(Settings::default());
    let mut streams: Vec<_> = (0..20).map(|_| server.connect()).collect();
    let mut dice = fastrand::Rng::with_seed(7);
    for round in 0..50 {
        let mut order: Vec<usize> = (0..streams.len()).collect();
        dice.shuffle(&mut order);
        let asked: Vec<(String, String)> = (0..streams.len())
            .map(|place| {
                let body = format!("{round}.{place}.{}", "b".repeat(dice.usize(..3000)));
                let (length, key) = (body.len(), "k".repeat(dice.usize(1..200)));
                let head = format!(
                    "POST /echo HTTP/1.1\r\nhost: a\r\nx-key-{}: {key}\r\ncontent-length: {length}",
                    place % 3
                );
                (format!("{head}\r\n\r\n{body}"), body)
            })
            .collect();
        let cuts: Vec<usize> = asked
            .iter()
            .map(|(text, _)| dice.usize(..text.len()))
            .collect();
        for &place in &order {
            streams[place]
                .write_all(&asked[place].0.as_bytes()[..cuts[place]])
                .expect("sent");
        }
        dice.shuffle(&mut order);
        for &place in &order {
            streams[place]
                .write_all(&asked[place].0.as_bytes()[cuts[place]..])
                .expect("sent");
            read_answer(&mut streams[place], &asked[place].1);
        }
    }
}

#[test]
fn an_unread_body_is_skipped_where_it_is_there_and_ends_its_connection_where_not() {
    let server = start(Settings::default());
    let early = "POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n";
    let last = "GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answer = server.talk(format!("{early}five{last}").as_bytes());
    assert!(
        answer.contains("too much") && answer.ends_with("GET /last"),
        "{answer}"
    );
    let mut stream = server.connect();
    stream.write_all(early.as_bytes()).expect("sent");
    let answer = read_answer(&mut stream, "too much");
    assert!(
        answer.contains("\r\nconnection: close\r\n"),
        "it is told: {answer}"
    );
    stream
        .write_all(format!("five{last}").as_bytes())
        .expect("it is listened to for a while");
    assert_eq!(read_to_end(&mut stream), "");
    // Told not to send its body yet, a client may send something else: the bytes alone do not tell which it is.
    let head = early.replace("host: a", "host: a\r\nexpect: 100-continue");
    let answer = server.talk(format!("{head}{last}").as_bytes());
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("too much"),
        "{answer}"
    );
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
}

#[test]
fn http1_response_unlike_its_length_is_the_last_on_its_connection() {
    let server = start(Settings::default());
    let ask = |path: &str| {
        let last = "GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        undated(&server.talk(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n{last}").as_bytes()))
    };
    let last = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nGET /last";
    assert_eq!(
        ask("/says/6"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcabc{last}")
    );
    assert_eq!(
        ask("/says/9"),
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabcabc",
        "it looks truncated"
    );
    assert_eq!(
        ask("/says/4"),
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabca",
        "the rest would be an answer"
    );
    // A piece without bytes is no last chunk.
    assert_eq!(
        ask("/hollow"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{last}")
    );
    assert_eq!(
        ask("/unchanged"),
        format!("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n{last}")
    );
}

#[test]
fn http1_0_client_gets_no_100_continue() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    stream
        .write_all(b"POST /echo HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        .expect("sent");
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("set");
    assert!(stream.read(&mut [0]).is_err(), "nothing is said");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream.write_all(b"two").expect("sent");
    let answer = read_to_end(&mut stream);
    assert!(
        answer.starts_with("HTTP/1.0 200 ") && answer.ends_with("\r\n\r\ntwo"),
        "{answer}"
    );
}

#[test]
fn http1_early_response_to_the_last_request_ends_before_its_body() {
    // Only the body's own deadline would end it otherwise.
    let server = start(Settings {
        body_idle: Duration::from_secs(600),
        ..Settings::default()
    });
    let mut stream = server.connect();
    let head = "POST /aside HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 6\r\n\r\n";
    stream
        .write_all(format!("{head}abc").as_bytes())
        .expect("sent");
    assert!(read_to_end(&mut stream).ends_with("read on"));
    stream.write_all(b"def").expect("the server reads it");
    wait_until("it has ended", || server.shared.bounds.open() == 0);
}

#[test]
fn a_body_read_after_an_early_response_has_time_as_long_as_it_arrives() {
    let server = start(Settings {
        body_idle: Duration::from_secs(3),
        ..Settings::default()
    });
    let head = "POST /aside HTTP/1.1\r\nhost: a\r\ncontent-length: 30\r\n\r\n";
    let mut stream = server.connect();
    stream.write_all(head.as_bytes()).expect("sent");
    read_answer(&mut stream, "read on");
    // Longer in all than it may stand still.
    stream
        .set_read_timeout(Some(Duration::from_millis(120)))
        .expect("set");
    for byte in 0..30 {
        assert!(
            stream.read(&mut [0]).is_err(),
            "nothing is said after {byte} bytes"
        );
        stream.write_all(b"x").expect("it is open");
    }
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream
        .write_all(b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    read_answer(&mut stream, "GET /next");
    // One that stands still is not waited for.
    stream
        .write_all(format!("{head}xxx").as_bytes())
        .expect("sent");
    read_answer(&mut stream, "read on");
    assert_eq!(read_to_end(&mut stream), "");
}

#[test]
fn http1_bytes_after_a_refused_head_are_never_a_request() {
    let server = start(Settings::default());
    for bad in [
        "GET /\r\n\r\n",
        "GET / HTTP/1.1\nhost: a\n\n",
        "GET / HTTP/1.1\r\nx : y\r\n\r\n",
        "GET / HTTP/1.1\r\nx: y\r\n z\r\n\r\n",
        "GET / HTTP/3.0\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        "POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\nx",
    ] {
        let answer =
            server.talk(format!("{bad}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes());
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{bad:?}: {answer}");
        assert!(
            answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.1 505 "),
            "{bad:?}: {answer}"
        );
        assert!(
            answer.contains("\r\nconnection: close\r\n") && !answer.contains("smuggled"),
            "{bad:?}: {answer}"
        );
    }
    // If the end of a body is not known, the response to its request is the last.
    for unclear in [
        "transfer-encoding: gzip",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
    ] {
        for path in ["/a", "/echo"] {
            let text = format!(
                "POST {path} HTTP/1.1\r\nhost: a\r\n{unclear}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
            );
            let answer = server.talk(text.as_bytes());
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
            assert!(
                !answer.contains("smuggled") && !answer.contains("GET"),
                "{answer}"
            );
        }
    }
    // Nor is anything behind a body that is malformed.
    let text = "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxGET /smuggled HTTP/1.1\r\n\r\n";
    assert!(!server.talk(text.as_bytes()).contains("smuggled"));
}

#[test]
fn garbage_is_refused_or_ends_its_connection() {
    let server = start(Settings {
        header_read: Duration::from_millis(300),
        ..Settings::default()
    });
    let mut dice = fastrand::Rng::with_seed(3);
    for round in 0..300 {
        let length = dice.usize(1..400);
        let mut bytes: Vec<u8> = (0..length).map(|_| dice.u8(..)).collect();
        if dice.bool() {
            let at = dice.usize(..length);
            bytes.splice(at..at, b"GET / HTTP/1.1\r\n".iter().copied());
        }
        let mut stream = server.connect();
        // It may be closed in the middle of this.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let answer = read_to_end(&mut stream);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "round {round}: {answer}"
        );
    }
    for round in 0..600 {
        let mut bytes = TALK.as_bytes().to_vec();
        for _ in 0..dice.usize(1..5) {
            let at = dice.usize(..bytes.len());
            match dice.u8(..3) {
                0 => bytes[at] = dice.u8(..),
                1 => bytes.insert(at, b"\r\n :;0"[dice.usize(..6)]),
                _ => drop(bytes.drain(at..(at + dice.usize(1..9)).min(at + (bytes.len() - at)))),
            }
        }
        let mut stream = server.connect();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let answer = read_to_end(&mut stream);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1."),
            "round {round}: {answer}"
        );
    }
    assert_eq!(server.observed("panicked"), 0);
    assert!(
        server
            .talk(b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .ends_with("GET /a")
    );
}

#[test]
fn http1_pipelined_requests_are_bounded() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    stream
        .write_all(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    server.await_held(1);
    stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .expect("set");
    let ahead = b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n".repeat(1 << 12);
    let mut sent = 0;
    while let Ok(written) = stream.write(&ahead) {
        sent += written;
        assert!(
            sent < 64 << 20,
            "read without end while one request is answered"
        );
    }
    server.handler.released.add_permits(1);
    read_answer(&mut stream, "held");
    read_answer(&mut stream, "GET /a");
}

#[test]
fn http1_0_response_without_its_end_is_visibly_truncated() {
    let server = start(Settings::default());
    let answer = server.talk(b"GET /broken HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(answer.ends_with("3\r\nabc\r\n"), "no last chunk: {answer}");
    let mut stream = server.connect();
    stream
        .write_all(b"GET /broken HTTP/1.0\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    assert!(
        end.is_err(),
        "a reset, since an end would look like the whole: {}",
        answer.escape_ascii()
    );
}

#[test]
fn http1_response_that_the_client_does_not_take_is_reported_as_unsent() {
    let server = start(Settings::default());
    let mut stream = server.connect();
    stream
        .write_all(b"GET /unsent HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    let mut byte = [0];
    stream.read_exact(&mut byte).expect("it begins");
    drop(stream);
    server.await_held(1);
}
