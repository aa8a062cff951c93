//! One policy for HTTP/1.1 and HTTP/2: what is ambiguous or forged is refused on both, reaches no upstream, and is
//! counted; what is allowed arrives the same by both.

use crate::forwarding::open;
use crate::harness::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, PING, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, request,
};
use crate::harness::{Gateway, Reply, Upstream, eventually};

/// A request and what follows it, as HTTP/2 frames on stream 1.
fn http2(gateway: &Gateway, head: &[u8], body: Option<&[u8]>) -> crate::harness::frames::Fate {
    let mut connection = Frames::open(gateway.address(), &[]);
    let end = if body.is_none() { END_STREAM } else { 0 };
    connection.send(frame(HEADERS, END_HEADERS | end, 1, head));
    if let Some(body) = body {
        // The connection may be gone by now.
        let _ = connection.try_send(frame(DATA, END_STREAM, 1, body));
    }
    connection.fate(1)
}

fn counted(gateway: &Gateway, prefix: &str) -> u64 {
    let metrics = gateway.admin_get("/metrics").text();
    let lines = metrics.lines().filter(|line| line.starts_with(prefix));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[test]
fn http2_requests_that_http1_would_read_differently_are_refused_and_counted() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let pseudo = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/"),
    ];
    let with = |more: &[(&str, &str)]| block(&[&pseudo[..], more].concat());
    let without = |name: &str| {
        block(
            &pseudo
                .iter()
                .copied()
                .filter(|(known, _)| *known != name)
                .collect::<Vec<_>>(),
        )
    };
    let heads: Vec<(&str, Vec<u8>)> = vec![
        ("CR LF in a value", with(&[("x-a", "a\r\nx-injected: 1")])),
        ("LF in a value", with(&[("x-a", "a\nx-injected: 1")])),
        ("CR in a value", with(&[("x-a", "a\rb")])),
        ("NUL in a value", with(&[("x-a", "a\0b")])),
        ("a blank before a value", with(&[("x-a", " a")])),
        ("a tab behind a value", with(&[("x-a", "a\t")])),
        ("CR LF in a name", with(&[("x-a\r\nx-injected", "1")])),
        ("a blank in a name", with(&[("x a", "1")])),
        ("a colon in a name", with(&[("x:a", "1")])),
        ("an upper-case name", with(&[("X-A", "1")])),
        ("an empty name", with(&[("", "1")])),
        ("NUL in a name", with(&[("x\0a", "1")])),
        (
            "transfer-encoding",
            with(&[("transfer-encoding", "chunked")]),
        ),
        ("connection", with(&[("connection", "close")])),
        ("keep-alive", with(&[("keep-alive", "1")])),
        ("proxy-connection", with(&[("proxy-connection", "close")])),
        ("upgrade", with(&[("upgrade", "h2c")])),
        ("te other than trailers", with(&[("te", "gzip")])),
        ("a length without a body", with(&[("content-length", "5")])),
        (
            "two lengths",
            with(&[("content-length", "0"), ("content-length", "5")]),
        ),
        ("a length with a sign", with(&[("content-length", "+0")])),
        (
            "a length beyond all numbers",
            with(&[("content-length", "99999999999999999999999")]),
        ),
        ("another host", with(&[("host", "evil")])),
        (
            "two hosts",
            with(&[("host", "localhost"), ("host", "localhost")]),
        ),
        ("no authority", without(":authority")),
        ("no path", without(":path")),
        ("no scheme", without(":scheme")),
        ("no method", without(":method")),
        ("two paths", with(&[(":path", "/b")])),
        (
            "a pseudo-field behind a field",
            block(&[&pseudo[..3], &[("x-a", "1")], &pseudo[3..]].concat()),
        ),
        ("an unknown pseudo-field", with(&[(":foo", "1")])),
        ("a pseudo-field of answers", with(&[(":status", "200")])),
        (
            "a status line in the method",
            request("GET / HTTP/1.1\r\nx-injected: 1\r\n\r\n", "/", &[]),
        ),
        (
            "a status line in the path",
            request("GET", "/ HTTP/1.1\r\nx-injected: 1\r\n\r\n", &[]),
        ),
        ("a path without a slash", request("GET", "a", &[])),
        ("an empty path", request("GET", "", &[])),
        ("a star that is no OPTIONS", request("GET", "*", &[])),
        ("an unknown expectation", with(&[("expect", "x")])),
        (
            "CONNECT",
            block(&[(":method", "CONNECT"), (":authority", "a:80")]),
        ),
    ];
    let authorities = ["u@localhost", "a/b", "a b", "a:99999", "a\r\nx: y", "[::1"];
    let forged = authorities.map(|authority| {
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", authority),
            (":path", "/"),
        ];
        (authority, block(&fields))
    });
    for (what, head) in heads.into_iter().chain(forged) {
        let before = counted(&gateway, "tollgate_bad_requests_total{")
            + counted(&gateway, "tollgate_http2_errors_total{")
            + counted(&gateway, "tollgate_rejections_total{");
        let fate = http2(&gateway, &head, None);
        assert!(fate.is_refused(), "{what}: {fate:?}");
        if let Some(status) = fate.status {
            assert_eq!(
                fate.json()["status"],
                status,
                "{what}: an answer is a problem document"
            );
        }
        eventually(what, || {
            counted(&gateway, "tollgate_bad_requests_total{")
                + counted(&gateway, "tollgate_http2_errors_total{")
                + counted(&gateway, "tollgate_rejections_total{")
                > before
        });
    }
    for (what, length) in [
        ("a length above the body's", "10"),
        ("a length below the body's", "2"),
    ] {
        let fate = http2(
            &gateway,
            &with(&[("content-length", length)]),
            Some(b"abcde"),
        );
        assert!(fate.is_refused(), "{what}: {fate:?}");
    }
    for seen in upstream.seen() {
        // Such a request may have begun; it never came to its end.
        assert!(
            !seen.head.contains("x-injected") && seen.body.len() < 5,
            "{seen:?}"
        );
    }
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn http1_requests_that_two_parties_would_read_differently_are_refused() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let post =
        |fields: &str, body: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n{body}");
    let get = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n");
    let cases = [
        (
            "two codings",
            post("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"),
        ),
        (
            "chunked twice",
            post("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"),
        ),
        (
            "two fields",
            post(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        ("identity", post("Transfer-Encoding: identity", "")),
        (
            "a coding with an empty element",
            post("Transfer-Encoding: ,chunked", "0\r\n\r\n"),
        ),
        ("an unknown coding", post("Transfer-Encoding: x", "")),
        (
            "a coding behind a vertical tab",
            post("Transfer-Encoding: \u{b}chunked", "0\r\n\r\n"),
        ),
        (
            "a blank before the colon",
            post("Transfer-Encoding : chunked", "0\r\n\r\n"),
        ),
        (
            "two lengths",
            post("Content-Length: 1\r\nContent-Length: 2", "ab"),
        ),
        ("a list of lengths", post("Content-Length: 1, 2", "ab")),
        ("a length with a sign", post("Content-Length: +1", "a")),
        ("a length in hex", post("Content-Length: 0x1", "a")),
        (
            "a length beyond all numbers",
            post("Content-Length: 99999999999999999999", "a"),
        ),
        (
            "a chunk's size with a sign",
            post("Transfer-Encoding: chunked", "+1\r\na\r\n0\r\n\r\n"),
        ),
        (
            "a chunk's size beyond all numbers",
            post(
                "Transfer-Encoding: chunked",
                "fffffffffffffffff\r\na\r\n0\r\n\r\n",
            ),
        ),
        (
            "a chunk without its end",
            post("Transfer-Encoding: chunked", "1\r\nab\r\n0\r\n\r\n"),
        ),
        (
            "a coding over HTTP/1.0",
            "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(),
        ),
        (
            "a folded line",
            get("GET / HTTP/1.1", "Host: x\r\nX-A: a\r\n b\r\n"),
        ),
        (
            "a bare CR",
            get("GET / HTTP/1.1", "Host: x\r\nX-A: a\rb\r\n"),
        ),
        ("NUL", get("GET / HTTP/1.1", "Host: x\r\nX-A: a\0b\r\n")),
        (
            "a blank in a name",
            get("GET / HTTP/1.1", "Host: x\r\nX A: b\r\n"),
        ),
        ("no name", get("GET / HTTP/1.1", "Host: x\r\n: b\r\n")),
        ("no host", get("GET / HTTP/1.1", "X-A: b\r\n")),
        ("two hosts", get("GET / HTTP/1.1", "Host: x\r\nHost: x\r\n")),
        ("a user in the host", get("GET / HTTP/1.1", "Host: u@x\r\n")),
        ("a path in the host", get("GET / HTTP/1.1", "Host: x/y\r\n")),
        (
            "a blank in the host",
            get("GET / HTTP/1.1", "Host: x y\r\n"),
        ),
        ("CONNECT", get("CONNECT a:80 HTTP/1.1", "Host: a:80\r\n")),
        (
            "a blank in the target",
            get("GET /a b HTTP/1.1", "Host: x\r\n"),
        ),
        (
            "a target without a slash",
            get("GET a HTTP/1.1", "Host: x\r\n"),
        ),
        (
            "HTTP/1.1 with another number",
            get("GET / HTTP/1.9x", "Host: x\r\n"),
        ),
        ("HTTP/3 in clear text", get("GET / HTTP/3.0", "Host: x\r\n")),
        (
            "an unknown expectation",
            get("GET / HTTP/1.1", "Host: x\r\nExpect: x\r\n"),
        ),
    ];
    for (what, bytes) in cases {
        let mut connection = gateway.connect();
        connection.send(bytes);
        let answer = connection.answer("GET");
        assert!(matches!(answer.status, 400..=599), "{what}: {answer:?}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json"),
            "{what}"
        );
        assert_eq!(answer.json()["status"], answer.status, "{what}");
        assert!(
            connection.is_closed() || answer.status == 417 || answer.status == 400,
            "{what}: {answer:?}"
        );
    }
    // A body that breaks in the middle may have begun; no request was ever made of what stood in it.
    assert!(
        upstream.seen().iter().all(|seen| seen.body.is_empty()),
        "{:?}",
        upstream.seen()
    );
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn frames_that_break_the_rules_end_their_connection_only() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let mut bystander = gateway.connect();
    let (zero, most) = (0_u32.to_be_bytes(), 0x7fff_ffff_u32.to_be_bytes());
    let setting = |identifier: u16, value: u32| {
        [&identifier.to_be_bytes()[..], &value.to_be_bytes()].concat()
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "data on a stream that was not opened",
            frame(DATA, 0, 7, b"x"),
        ),
        ("data on the connection", frame(DATA, 0, 0, b"x")),
        (
            "a stream with an even number",
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                2,
                request("GET", "/", &[]),
            ),
        ),
        (
            "a stream that goes back",
            [
                frame(HEADERS, 5, 9, request("GET", "/", &[])),
                frame(HEADERS, 5, 3, b"\x82"),
            ]
            .concat(),
        ),
        (
            "a push",
            frame(PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2, 0x82]),
        ),
        ("a window of nothing more", frame(WINDOW_UPDATE, 0, 0, zero)),
        (
            "a window beyond all",
            [
                frame(WINDOW_UPDATE, 0, 0, most),
                frame(WINDOW_UPDATE, 0, 0, most),
            ]
            .concat(),
        ),
        ("settings of five bytes", frame(SETTINGS, 0, 0, b"abcde")),
        ("settings on a stream", frame(SETTINGS, 0, 1, b"")),
        (
            "an acknowledgement with a payload",
            frame(SETTINGS, 1, 0, setting(3, 1)),
        ),
        ("push set to five", frame(SETTINGS, 0, 0, setting(2, 5))),
        (
            "an initial window beyond all",
            frame(SETTINGS, 0, 0, setting(4, 0x8000_0000)),
        ),
        ("frames of one byte", frame(SETTINGS, 0, 0, setting(5, 1))),
        ("a ping of seven bytes", frame(PING, 0, 0, b"1234567")),
        ("a ping on a stream", frame(PING, 0, 1, b"12345678")),
        ("a goaway on a stream", frame(GOAWAY, 0, 1, [0; 8])),
        ("a reset of nothing", frame(RST_STREAM, 0, 0, zero)),
        ("a reset of an idle stream", frame(RST_STREAM, 0, 99, zero)),
        (
            "a continuation of nothing",
            frame(CONTINUATION, END_HEADERS, 1, b""),
        ),
        (
            "a block that another frame cuts",
            [frame(HEADERS, 0, 11, b"\x82"), frame(PING, 0, 0, [0; 8])].concat(),
        ),
        (
            "padding beyond the frame",
            frame(HEADERS, END_HEADERS | 8, 11, b"\xff"),
        ),
        (
            "an index without an entry",
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                11,
                b"\xff\xff\xff\xff\x7f",
            ),
        ),
        ("a priority of four bytes", frame(PRIORITY, 0, 11, zero)),
        (
            "a frame beyond the bound",
            frame(PING, 0, 0, vec![0; 70 << 10]),
        ),
        (
            "no HTTP/2 at all",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3),
        ),
    ];
    for (what, bytes) in cases {
        let before = counted(&gateway, "tollgate_http2_errors_total{");
        let mut connection = Frames::open(gateway.address(), &[]);
        connection.ask(1, "GET", "/", &[]);
        assert_eq!(connection.fate(1).status, Some(200), "{what}");
        let _ = connection.try_send(bytes);
        // A frame of another kind may only cost its stream, which is then reset.
        let _ = connection.try_send(frame(SETTINGS, 0, 0, b""));
        eventually(what, || {
            counted(&gateway, "tollgate_http2_errors_total{") > before
        });
        assert_eq!(bystander.request("GET", "/", &[]).status, 200, "{what}");
    }
}

#[test]
fn priorities_that_depend_on_themselves_do_no_harm() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let mut connection = Frames::open(gateway.address(), &[]);
    // Deprecated (RFC 9113 5.3.2): a circle, an idle stream as parent, exclusive, all before and after the request.
    for (stream, parent) in [(3_u32, 5_u32), (5, 3), (7, 1001), (9, 0x8000_0000)] {
        connection.send(frame(
            PRIORITY,
            0,
            stream,
            [&parent.to_be_bytes()[..], &[255]].concat(),
        ));
    }
    connection.ask(1, "GET", "/", &[]);
    assert_eq!(connection.fate(1).status, Some(200));
}

#[test]
fn trailers_of_http2_that_forge_framing_or_routing_are_not_forwarded() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    for trailers in [
        block(&[(":path", "/forged"), ("x-good", "1")]),
        block(&[
            ("content-length", "99"),
            ("host", "forged"),
            ("x-good", "1"),
        ]),
        block(&[("transfer-encoding", "chunked")]),
        block(&[
            ("authorization", "forged"),
            ("cookie", "forged"),
            ("x-forwarded-for", "forged"),
        ]),
    ] {
        let mut connection = Frames::open(gateway.address(), &[]);
        connection.send(frame(HEADERS, END_HEADERS, 1, request("POST", "/", &[])));
        connection.send(frame(DATA, 0, 1, b"x"));
        connection.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers));
        let fate = connection.fate(1);
        assert!(fate.is_refused() || fate.status == Some(200), "{fate:?}");
    }
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| !seen.head.contains("forged")),
        "{:?}",
        upstream.seen()
    );
}

#[test]
fn response_splitting_is_502_over_both_versions() {
    for (what, head) in [
        (
            "a bare CR in a value",
            "HTTP/1.1 200 OK\r\nx-a: a\rx-injected: 1\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "NUL in a value",
            "HTTP/1.1 200 OK\r\nx-a: a\0b\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "a folded line",
            "HTTP/1.1 200 OK\r\nx-a: a\r\n x-injected: 1\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "a blank before the colon",
            "HTTP/1.1 200 OK\r\ncontent-length : 0\r\n\r\n",
        ),
        (
            "a bare CR in the reason",
            "HTTP/1.1 200 O\rK\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 5\r\n\r\n",
        ),
        (
            "a length that is none",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        ),
        (
            "an unknown coding",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: x\r\n\r\n",
        ),
        (
            "a coding twice",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "a status that is none",
            "HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "a switch that was not asked for",
            "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        ),
        ("HTTP/0.9", "hello"),
    ] {
        let upstream = Upstream::start(move |_| Reply::Close(head.as_bytes().to_vec()));
        let gateway = Gateway::start(&open(&upstream));
        let answer = gateway.request("POST", "/", &[("Content-Length", "0")]);
        assert_eq!(
            (answer.status, answer.json()["status"].as_u64()),
            (502, Some(502)),
            "{what}"
        );
        let fate = http2(&gateway, &request("POST", "/", &[]), None);
        assert_eq!(
            (fate.status, fate.json()["status"].as_u64()),
            (Some(502), Some(502)),
            "{what}: {fate:?}"
        );
    }
}

#[test]
fn truncated_response_is_visible_over_both_versions() {
    for head in [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
    ] {
        let upstream = Upstream::start(move |_| Reply::Close(head.as_bytes().to_vec()));
        let gateway = Gateway::start(&open(&upstream));
        let answer = gateway.get("/");
        assert!(answer.truncated && answer.text() == "half", "{answer:?}");
        let fate = http2(&gateway, &request("GET", "/", &[]), None);
        assert!(
            fate.reset.is_some_and(|code| code != 0) && !fate.ended,
            "a reset and no end: {fate:?}"
        );
        assert_eq!(fate.body, b"half");
    }
}

#[test]
fn bodyless_responses_have_no_body_over_both_versions() {
    let upstream = Upstream::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/204") => Reply::Bytes(b"HTTP/1.1 204 No\r\n\r\n".to_vec()),
        Some("/304") => {
            Reply::Bytes(b"HTTP/1.1 304 No\r\ncontent-length: 5\r\netag: \"a\"\r\n\r\n".to_vec())
        }
        _ => Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".to_vec()),
    });
    let gateway = Gateway::start(&open(&upstream));
    let mut connection = gateway.connect();
    let mut frames = Frames::open(gateway.address(), &[]);
    for (number, (method, path, status)) in [
        ("HEAD", "/", 200),
        ("GET", "/204", 204),
        ("GET", "/304", 304),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = connection.request(method, path, &[]);
        assert_eq!((answer.status, answer.truncated), (status, false), "{path}");
        let stream = u32::try_from(number).expect("few") * 2 + 1;
        frames.ask(stream, method, path, &[]);
        let fate = frames.fate(stream);
        assert!(
            fate.status == Some(status) && fate.ended && fate.body.is_empty(),
            "{path}: {fate:?}"
        );
    }
    // Whatever stood behind those answers would be the next one's.
    assert_eq!(connection.request("HEAD", "/", &[]).status, 200);
}

#[test]
fn a_range_passes_both_ways_over_both_versions() {
    let upstream = Upstream::start(|seen| {
        let range = seen.header("range").unwrap_or("none").to_owned();
        Reply::new(
            206,
            &[("content-range", "bytes 1-2/9"), ("accept-ranges", "bytes")],
            range,
        )
    });
    let gateway = Gateway::start(&open(&upstream));
    let answer = gateway.request("GET", "/", &[("Range", "bytes=1-2"), ("If-Range", "\"a\"")]);
    assert_eq!((answer.status, answer.text().as_str()), (206, "bytes=1-2"));
    assert_eq!(answer.header("content-range"), Some("bytes 1-2/9"));
    let fate = http2(
        &gateway,
        &request("GET", "/", &[("range", "bytes=1-2")]),
        None,
    );
    assert_eq!(
        (fate.status, fate.body.as_slice()),
        (Some(206), &b"bytes=1-2"[..])
    );
}

/// A gateway that admits one request at a time.
fn one_place(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "[limits.places]\nin_flight = 1\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"places\"]\n",
        upstream.url()
    ))
}

/// Waits until the one place is free, while the upstream says nothing.
fn place_becomes_free(gateway: &Gateway, upstream: &Upstream) {
    eventually("the place is free", || {
        let mut connection = gateway.connect();
        connection.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        // Admitted, it waits for the upstream: only a refusal has a response.
        upstream.seen().len() == 2
            || connection
                .try_answer_within(std::time::Duration::from_millis(50))
                .is_none()
    });
}

#[test]
fn an_http2_client_that_resets_its_stream_takes_its_request_along() {
    let upstream = Upstream::start(|_| Reply::Silence);
    let gateway = one_place(&upstream);
    let mut frames = Frames::open(gateway.address(), &[]);
    frames.ask(1, "GET", "/held", &[]);
    eventually("it arrives", || upstream.seen().len() == 1);
    assert_eq!(gateway.get("/").status, 429, "the one place is taken");
    frames.send(frame(RST_STREAM, 0, 1, 8_u32.to_be_bytes()));
    place_becomes_free(&gateway, &upstream);
}

#[test]
fn client_gone_after_pipelined_requests_frees_its_place() {
    let upstream = Upstream::start(|_| Reply::Silence);
    let gateway = one_place(&upstream);
    let mut client = gateway.connect();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it arrives", || upstream.seen().len() == 1);
    assert_eq!(gateway.get("/").status, 429, "the one place is taken");
    drop(client);
    place_becomes_free(&gateway, &upstream);
}

#[test]
fn every_test_of_the_coverage_table_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    let mut folders = vec![root.join("src"), root.join("crates"), root.join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&std::fs::read_to_string(path).expect("text"));
            }
        }
    }
    let table = std::fs::read_to_string(root.join("tests/WIRE.md")).expect("the table");
    let rows = table
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut names = 0;
    for row in rows {
        // The first cell is prose.
        for name in row
            .split('|')
            .skip(2)
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        {
            let found = sources.contains(&format!("fn {name}()"));
            assert!(found, "tests/WIRE.md names `{name}`, which is no test");
            names += 1;
        }
    }
    assert!(names > 80, "{names}");
}
