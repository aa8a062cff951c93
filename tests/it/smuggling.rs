//! Requests behind requests on one connection, each of which two parties could read in two ways: what the upstream saw is
//! exactly what the caller was answered, and nothing behind what was refused is a request.

use crate::harness::{Connection, Gateway, Reply, Upstream};

/// Says what it saw, so that an answer tells which request it is to.
fn telling() -> Upstream {
    Upstream::start(|seen| Reply::new(200, &[("x-saw", &said(&seen.head, seen.body.len()))], "ok"))
}

fn said(head: &str, body: usize) -> String {
    let mut words = head.split(' ');
    format!(
        "{} {} {body}",
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default()
    )
}

fn in_front_of(upstream: &Upstream) -> Gateway {
    with_patience(upstream, "1s")
}

fn with_patience(upstream: &Upstream, span: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         timeouts = {{ header_read = \"{span}\", body_idle = \"{span}\", keep_alive = \"{span}\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        upstream.url()
    ))
}

/// The answers until the connection ends: what the upstream saw, or else the status.
fn answers(connection: &mut Connection) -> Vec<String> {
    let mut all = Vec::new();
    while let Ok(answer) = connection.try_answer("GET") {
        all.push(
            answer
                .header("x-saw")
                .map_or_else(|| answer.status.to_string(), str::to_owned),
        );
        if answer.header("connection") == Some("close") {
            break;
        }
    }
    all
}

/// A request that ends its connection in order.
const LAST: &str = "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

fn seen(upstream: &Upstream, from: usize) -> Vec<String> {
    upstream.seen()[from..]
        .iter()
        .map(|seen| said(&seen.head, seen.body.len()))
        .collect()
}

fn post(fields: &str, body: &str) -> String {
    format!("POST /x HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n{body}")
}

#[test]
fn smuggling_unambiguous_request_passes_and_the_next_begins_at_its_end() {
    let upstream = telling();
    let gateway = in_front_of(&upstream);
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    let (both, alone): (&[&str], &[&str]) = (&["POST /x 5", "GET /last 0"], &["POST /x 5"]);
    let cases: Vec<(&str, String, &[&str])> = vec![
        ("a length", post("Content-Length: 5", "hello"), both),
        (
            "a length with a zero in front and blanks around",
            post("Content-Length: \t05 ", "hello"),
            both,
        ),
        ("chunks", post("Transfer-Encoding: chunked", chunks), both),
        (
            "a coding in other letters",
            post("tRANSFER-eNCODING:\tCHUNKED ", chunks),
            both,
        ),
        (
            "extensions of chunks",
            post(
                "Transfer-Encoding: chunked",
                "5;a;b=c;d=\"e\\\"f\"\r\nhello\r\n0 ;g=h\r\n\r\n",
            ),
            both,
        ),
        (
            "an extension that looks like an end",
            post("Transfer-Encoding: chunked", "5;0;=\r\nhello\r\n0\r\n\r\n"),
            both,
        ),
        (
            "chunks within a chunk",
            post(
                "Transfer-Encoding: chunked",
                "1f\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n\r\n0\r\n\r\n",
            ),
            &["POST /x 31", "GET /last 0"],
        ),
        (
            "trailers",
            post(
                "Transfer-Encoding: chunked",
                "5\r\nhello\r\n0\r\nContent-Length: 9\r\nHost: y\r\nX-A: b\r\n\r\n",
            ),
            both,
        ),
        (
            "an empty line behind a body",
            post("Content-Length: 5", "hello\r\n"),
            both,
        ),
        (
            "empty lines before a request",
            format!("\r\n\r\n{}", post("Content-Length: 5", "hello")),
            both,
        ),
        (
            "framing that Connection lists",
            post(
                "Connection: Content-Length, Host\r\nContent-Length: 5",
                "hello",
            ),
            both,
        ),
        (
            "a coding that Connection lists",
            post(
                "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
                chunks,
            ),
            both,
        ),
        (
            "fields that nearly frame",
            post("Transfer_Encoding: chunked\r\nContent-Length: 5", "hello"),
            both,
        ),
        (
            "a length and chunks",
            post("Content-Length: 3\r\nTransfer-Encoding: chunked", chunks),
            alone,
        ),
        (
            "chunks and a length",
            post("Transfer-Encoding: chunked\r\nContent-Length: 300", chunks),
            alone,
        ),
        (
            "a GET with a body",
            "GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello".into(),
            &["GET /x 5", "GET /last 0"],
        ),
        (
            "a target that names another host",
            "GET http://y/x HTTP/1.1\r\nHost: x\r\n\r\n".into(),
            &["GET /x 0", "GET /last 0"],
        ),
        ("HTTP/1.0", "GET /x HTTP/1.0\r\n\r\n".into(), &["GET /x 0"]),
        (
            "HTTP/1.0 that goes on",
            "POST /x HTTP/1.0\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\nhello".into(),
            both,
        ),
        (
            "HTTP/1.0 of two minds",
            "GET /x HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n".into(),
            &["GET /x 0"],
        ),
        (
            "an upload that is the last",
            post("Connection: close\r\nContent-Length: 5", "hello"),
            alone,
        ),
        (
            "requests behind uploads",
            format!(
                "{}{}",
                post("Content-Length: 5", "hello"),
                post("Transfer-Encoding: chunked", chunks)
            ),
            &["POST /x 5", "POST /x 5", "GET /last 0"],
        ),
    ];
    for (what, bytes, expected) in cases {
        let (before, bytes) = (upstream.seen().len(), format!("{bytes}{LAST}"));
        let mut connection = gateway.connect();
        connection.send(&bytes);
        assert_eq!(answers(&mut connection), expected, "{what}");
        assert_eq!(seen(&upstream, before), expected, "{what}");
        // And however it is cut.
        for cut in [
            1,
            bytes.len() / 3,
            bytes.len() - LAST.len(),
            bytes.len() - LAST.len() + 1,
        ] {
            let mut connection = gateway.connect();
            connection.send(&bytes[..cut]);
            std::thread::yield_now();
            connection.send(&bytes[cut..]);
            assert_eq!(answers(&mut connection), expected, "{what}, cut at {cut}");
        }
    }
    for seen in upstream.seen() {
        let named = |name: &str| !seen.all(name).is_empty();
        assert!(
            !(named("transfer-encoding") && named("content-length")),
            "framed twice: {}",
            seen.head
        );
        assert!(
            !named("transfer_encoding") && !seen.head.contains("smuggled"),
            "{}",
            seen.head
        );
        assert!(seen.line() != "GET http://y/x HTTP/1.1", "{}", seen.head);
    }
}

#[test]
fn smuggling_bytes_after_a_refused_request_are_no_request() {
    let upstream = telling();
    let gateway = in_front_of(&upstream);
    let chunked = |body: &str| post("Transfer-Encoding: chunked", body);
    let get = |fields: &str| format!("GET /x HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
    let mut cases: Vec<(String, Vec<u8>)> = [
        ("a folded line", get("X-A: b\r\n c\r\n")),
        (
            "a folded line with a tab",
            get("X-A: b\r\n\tContent-Length: 5\r\n"),
        ),
        (
            "a fold before the first field",
            "GET /x HTTP/1.1\r\n Host: x\r\n\r\n".into(),
        ),
        (
            "bare LF behind the line",
            "GET /x HTTP/1.1\nHost: x\r\n\r\n".into(),
        ),
        ("bare LF behind a field", get("X-A: b\nX-C: d\r\n")),
        (
            "bare LF as the empty line",
            "GET /x HTTP/1.1\r\nHost: x\r\n\nX-A: b\r\n\r\n".into(),
        ),
        ("bare LF everywhere", "GET /x HTTP/1.1\nHost: x\n\n".into()),
        ("bare CR behind a field", get("X-A: b\rX-C: d\r\n")),
        ("CR CR LF", get("X-A: b\r\r\n")),
        ("a blank before the colon", get("Content-Length : 0\r\n")),
        (
            "a tab before the colon",
            get("Transfer-Encoding\t: chunked\r\n"),
        ),
        ("a field without a colon", get("X-A\r\n")),
        ("no name", get(": b\r\n")),
        (
            "lengths that agree",
            post("Content-Length: 5\r\nContent-Length: 5", "hello"),
        ),
        (
            "a list of lengths that agree",
            post("Content-Length: 5, 5", "hello"),
        ),
        ("two numbers", post("Content-Length: 5 5", "hello")),
        ("a length in hex", post("Content-Length: 0x5", "hello")),
        (
            "a length below nothing",
            post("Content-Length: -5", "hello"),
        ),
        (
            "a length with a fraction",
            post("Content-Length: 5.0", "hello"),
        ),
        ("an empty length", post("Content-Length:", "hello")),
        (
            "a length in other digits",
            post("Content-Length: \u{ff15}", "hello"),
        ),
        (
            "a length behind a vertical tab",
            post("Content-Length: \u{b}5", "hello"),
        ),
        (
            "a length that wraps to five",
            post("Content-Length: 18446744073709551621", "hello"),
        ),
        (
            "a coding with a parameter",
            post("Transfer-Encoding: chunked;q=1", "0\r\n\r\n"),
        ),
        (
            "a coding in quotes",
            post("Transfer-Encoding: \"chunked\"", "0\r\n\r\n"),
        ),
        (
            "a coding behind a form feed",
            post("Transfer-Encoding: \u{c}chunked", "0\r\n\r\n"),
        ),
        ("an empty coding", post("Transfer-Encoding:", "0\r\n\r\n")),
        (
            "a list that ends in a comma",
            post("Transfer-Encoding: chunked,", "0\r\n\r\n"),
        ),
        (
            "two codings in two fields",
            post(
                "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        (
            "a length and no coding known",
            post("Content-Length: 5\r\nTransfer-Encoding: x", "hello"),
        ),
        (
            "chunks over HTTP/1.0",
            chunked("5\r\nhello\r\n0\r\n\r\n").replace("HTTP/1.1", "HTTP/1.0"),
        ),
        ("no size", chunked("\r\nhello\r\n0\r\n\r\n")),
        ("a size behind a blank", chunked(" 5\r\nhello\r\n0\r\n\r\n")),
        ("a size with a prefix", chunked("0x5\r\nhello\r\n0\r\n\r\n")),
        (
            "a size with an underscore",
            chunked("1_0\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "a size that wraps to five",
            chunked("10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ),
        ("bare LF behind a size", chunked("5\nhello\r\n0\r\n\r\n")),
        ("bare CR behind a size", chunked("5\rhello\r\n0\r\n\r\n")),
        (
            "bare LF behind an extension",
            chunked("5;a\nhello\r\n0\r\n\r\n"),
        ),
        (
            "bare CR within an extension",
            chunked("5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "NUL within an extension",
            chunked("5;a\0\r\nhello\r\n0\r\n\r\n"),
        ),
        ("bare LF behind a chunk", chunked("5\r\nhello\n0\r\n\r\n")),
        (
            "a chunk shorter than it says",
            chunked("6\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "a chunk longer than it says",
            chunked("4\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "bare LF behind the last chunk",
            chunked("5\r\nhello\r\n0\n\r\n"),
        ),
        ("bare LF as the end", chunked("5\r\nhello\r\n0\r\n\n")),
        (
            "a folded trailer",
            chunked("5\r\nhello\r\n0\r\nX-A: b\r\n c\r\n\r\n"),
        ),
        (
            "a trailer with bare LF",
            chunked("5\r\nhello\r\n0\r\nX-A: b\n\r\n"),
        ),
        (
            "a trailer without a colon",
            chunked("5\r\nhello\r\n0\r\nX-A\r\n\r\n"),
        ),
        (
            "trailers without end",
            chunked(&format!(
                "5\r\nhello\r\n0\r\nX-A: {}\r\n\r\n",
                "b".repeat(20 << 10)
            )),
        ),
        (
            "extensions without end",
            chunked(&format!("5;{}\r\nhello\r\n0\r\n\r\n", "b".repeat(20 << 10))),
        ),
        ("two hosts", get("Host: x\r\n")),
        (
            "two hosts below a target that names one",
            "GET http://x/x HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n".into(),
        ),
        (
            "a target that names a user",
            "GET http://u@x/x HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        ),
        (
            "a target that names no host",
            "GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        ),
        (
            "a target of another kind",
            "GET ftp://x/x HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        ),
        ("no target", "GET HTTP/1.1\r\nHost: x\r\n\r\n".into()),
        ("two blanks", "GET  /x HTTP/1.1\r\nHost: x\r\n\r\n".into()),
        (
            "a tab for a blank",
            "GET\t/x HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        ),
        (
            "a blank behind the version",
            "GET /x HTTP/1.1 \r\nHost: x\r\n\r\n".into(),
        ),
        (
            "a version in small letters",
            "GET /x http/1.1\r\nHost: x\r\n\r\n".into(),
        ),
        (
            "a version with a zero in front",
            "GET /x HTTP/01.1\r\nHost: x\r\n\r\n".into(),
        ),
        (
            "a version with a zero behind",
            "GET /x HTTP/1.10\r\nHost: x\r\n\r\n".into(),
        ),
        ("no version", "GET /x\r\nHost: x\r\n\r\n".into()),
        (
            "a head beyond the bound",
            get(&format!("X-A: {}\r\n", "b".repeat(70 << 10))),
        ),
        ("fields beyond the bound", get(&"X-A: b\r\n".repeat(101))),
        (
            "a target beyond the bound",
            format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "b".repeat(17 << 10)),
        ),
    ]
    .into_iter()
    .map(|(what, bytes)| (what.to_owned(), bytes.into_bytes()))
    .collect();
    for byte in (0..=b' ').chain(0x7f..=0xff).chain(*b"\"(),/;<=>?@[\\]{}") {
        for text in [
            "GET /x HTTP/1.1\r\nHost: x\r\nX?A: b\r\n\r\n",
            "G?ET /x HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            let odd = text
                .bytes()
                .map(|each| if each == b'?' { byte } else { each })
                .collect();
            cases.push((format!("the byte {byte:#x} in {text:?}"), odd));
        }
    }
    for (what, mut bytes) in cases {
        let before = upstream.seen().len();
        bytes.extend_from_slice(LAST.as_bytes());
        let mut connection = gateway.connect();
        // It may be closed in the middle of this.
        let _ = connection.try_send(&bytes);
        let answers = answers(&mut connection);
        assert!(
            matches!(&answers[..], [status] if status.starts_with(['4', '5'])),
            "{what}: {answers:?}"
        );
        assert_eq!(seen(&upstream, before), Vec::<String>::new(), "{what}");
    }
    assert_eq!(gateway.get("/x").status, 200);
}

#[test]
fn smuggling_upstream_sees_exactly_the_requests_that_get_a_response() {
    let upstream = telling();
    let gateway = with_patience(&upstream, "100ms");
    let chunks = "5\r\nhello\r\n3;x=y\r\nhey\r\n0\r\nX-T: 1\r\n\r\n";
    let talk = [
        "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        post("Content-Length: 5", "hello"),
        post("Transfer-Encoding: chunked", chunks),
        "GET /4 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".to_owned(),
        LAST.to_owned(),
    ]
    .concat();
    let pieces: [&[u8]; 12] = [
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b" ",
        b"0\r\n\r\n",
        b"Content-Length: 9\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"GET /s HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0",
        b";",
    ];
    let mut dice = fastrand::Rng::with_seed(9112);
    let mut answered = 0;
    for round in 0..200 {
        let before = upstream.seen().len();
        let mut bytes = talk.clone().into_bytes();
        for _ in 0..dice.usize(1..4) {
            let at = dice.usize(..bytes.len());
            match dice.u8(..4) {
                0 => bytes[at] = dice.u8(..),
                1 => drop(bytes.drain(at..(at + dice.usize(1..9)).min(bytes.len()))),
                _ => drop(bytes.splice(at..at, pieces[dice.usize(..pieces.len())].iter().copied())),
            }
        }
        let mut connection = gateway.connect();
        let _ = connection.try_send(&bytes);
        let told: Vec<String> = answers(&mut connection)
            .into_iter()
            .filter(|told| told.contains(' '))
            .collect();
        let seen = seen(&upstream, before);
        // The last one may have been given up when its connection ended.
        let known = told.len();
        assert!(
            seen.len() <= known + 1 && seen[..known.min(seen.len())] == told,
            "round {round}: {seen:?}, {told:?}"
        );
        answered += told.len();
    }
    assert!(answered > 300, "{answered}");
    for seen in upstream.seen() {
        let head = seen.head.strip_suffix("\r\n\r\n").expect("a head");
        assert!(
            head.split("\r\n")
                .all(|line| !line.contains(['\r', '\n', '\0'])),
            "{head:?}"
        );
        assert!(
            head.split("\r\n")
                .skip(1)
                .all(|line| line.find(':').is_some_and(|at| at > 0)),
            "{head:?}"
        );
    }
}
