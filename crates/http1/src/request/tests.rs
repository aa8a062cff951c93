//! Heads: what is read, what is refused, and that it makes no difference how the bytes come.

use bytes::BytesMut;
use http::Version;

use crate::BodyLength;
use crate::request::{BadHead, Head, Limits, Reader};

const LIMITS: Limits = Limits {
    bytes: 4096,
    fields: 16,
    target: 200,
};

/// What a head came to, in a form that can be compared.
type Summary = Result<Option<String>, BadHead>;

fn summary(outcome: Result<Option<Head>, BadHead>) -> Summary {
    outcome.map(|head| {
        head.map(
            |Head {
                 parts,
                 body,
                 persists,
                 expects,
             }| {
                let http::request::Parts {
                    method,
                    uri,
                    version,
                    headers,
                    ..
                } = parts;
                format!("{method} {uri} {version:?} {headers:?} {body:?} {persists} {expects}")
            },
        )
    })
}

/// Feeds `pieces` one after the other; what came of them, and what is left.
fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (Summary, Vec<u8>) {
    let (mut reader, mut input) = (Reader::new(), BytesMut::new());
    let mut outcome = Ok(None);
    for piece in pieces {
        input.extend_from_slice(piece);
        if matches!(outcome, Ok(None)) {
            outcome = summary(reader.read(&mut input, LIMITS));
        }
    }
    (outcome, input.to_vec())
}

fn whole(text: &str) -> Summary {
    read([text.as_bytes()]).0
}

/// Heads of every kind, good and bad. What is bad is so by itself, not by what is missing.
fn corpus() -> Vec<String> {
    let long = "a".repeat(300);
    let many: String = (0..17).map(|n| format!("x-{n}: v\r\n")).collect();
    let mut all: Vec<String> = [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "\r\n\r\nGET /x?y HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET http://a/b HTTP/1.1\r\nHOST: a\r\nX-A:\t 1 \t\r\nx-a: 2\r\nempty:\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-Continue\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: \u{e4}\r\n\r\n",
        // Refused.
        "\u{16}\u{3}\u{1}",
        " GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET / x HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET\t/ HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /\r\n\r\n",
        "NONSENSE\r\n\r\n",
        "G\u{e4}T / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.2\r\n\r\n",
        "GET / http/1.1\r\n\r\n",
        "GET / HTTP/1.1 \r\nhost: a\r\n\r\n",
        "GET / HTTP/1.1\nhost: a\n\n",
        "GET / HTTP/1.1\r\nhost: a\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\r\n\r\n",
        "GET / HTTP/1.1\r\nx: a\r\n b\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.1\r\n x: a\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nbad name: a\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n: a\r\n\r\n",
        "GET / HTTP/1.1\r\nx: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nx: a\rb\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        "POST / HTTP/1.1\r\ncontent-length: 1, 1\r\n\r\nx",
        "POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\nx",
        "POST / HTTP/1.1\r\ncontent-length:\r\n\r\nx",
        "POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\nx",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: x\r\n\r\n0\r\n\r\n",
        "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "\rGET / HTTP/1.1\r\nhost: a\r\n\r\n",
    ]
    .map(str::to_owned)
    .to_vec();
    all.push(format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"));
    all.push(format!("GET /{long}"));
    all.push(format!(
        "GET /{} HTTP/1.1\r\nhost: a\r\n\r\n",
        "a".repeat(5000)
    ));
    all.push(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(5000)));
    all.push(format!("GET / HTTP/1.1\r\n{many}\r\n"));
    all.push("A".repeat(5000));
    all
}

#[test]
fn a_head_is_the_same_however_its_bytes_are_cut() {
    let mut dice = fastrand::Rng::with_seed(11);
    for text in corpus() {
        let bytes = text.as_bytes();
        let (expected, left) = read([bytes]);
        let (bytewise, rest) = read(bytes.chunks(1));
        assert_eq!(bytewise, expected, "byte by byte: {text:?}");
        if expected.as_ref().is_ok_and(Option::is_some) {
            assert_eq!(rest, left, "{text:?}");
        }
        for cut in 0..=bytes.len().min(600) {
            assert_eq!(
                read([&bytes[..cut], &bytes[cut..]]).0,
                expected,
                "cut at {cut}: {text:?}"
            );
        }
        for _ in 0..20 {
            let mut cuts: Vec<usize> = (0..3).map(|_| dice.usize(..=bytes.len())).collect();
            cuts.sort_unstable();
            let pieces = [
                &bytes[..cuts[0]],
                &bytes[cuts[0]..cuts[1]],
                &bytes[cuts[1]..cuts[2]],
                &bytes[cuts[2]..],
            ];
            assert_eq!(read(pieces).0, expected, "cut at {cuts:?}: {text:?}");
        }
    }
}

#[test]
fn ambiguous_head_is_refused() {
    let (mut good, mut bad) = (0, 0);
    for text in corpus() {
        match whole(&text) {
            Ok(Some(_)) => good += 1,
            Ok(None) => panic!("neither whole nor refused: {text:?}"),
            Err(_) => bad += 1,
        }
    }
    assert_eq!((good, bad), (12, corpus().len() - 12));
    let refused = |text: &str| whole(text).expect_err(text);
    assert_eq!(refused("GET / HTTP/2.0\r\n\r\n"), BadHead::Version);
    assert_eq!(refused("GET / HTTP/1.9x\r\n\r\n"), BadHead::Malformed);
    assert_eq!(
        refused(&format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(200))),
        BadHead::TargetTooLong
    );
    assert_eq!(
        refused(&format!("GET /{}", "a".repeat(5000))),
        BadHead::TargetTooLong
    );
    assert_eq!(
        refused(&format!("GET / HTTP/1.1\r\nx: {}", "a".repeat(5000))),
        BadHead::TooLarge
    );
    assert!(whole(&format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(199))).is_ok());
}

#[test]
fn a_body_ends_where_its_head_says() {
    let framed = |text: &str| {
        let mut input = BytesMut::from(text);
        let head = Reader::new()
            .read(&mut input, LIMITS)
            .expect("well-formed")
            .expect("whole");
        (
            head.body,
            head.persists,
            head.parts.version,
            head.parts.headers.len(),
        )
    };
    let one = Version::HTTP_11;
    assert_eq!(
        framed("GET / HTTP/1.1\r\n\r\n"),
        (BodyLength::None, true, one, 0)
    );
    assert_eq!(
        framed("GET / HTTP/1.1\r\nconnection: x, Close\r\n\r\n"),
        (BodyLength::None, false, one, 1)
    );
    assert_eq!(
        framed("GET / HTTP/1.0\r\n\r\n"),
        (BodyLength::None, false, Version::HTTP_10, 0)
    );
    assert_eq!(
        framed("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"),
        (BodyLength::None, true, Version::HTTP_10, 1)
    );
    assert_eq!(
        framed("GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"),
        (BodyLength::None, true, one, 1)
    );
    assert_eq!(
        framed("GET / HTTP/1.1\r\ncontent-length: 7\r\n\r\n"),
        (BodyLength::Exactly(7), true, one, 1)
    );
    assert_eq!(
        framed("GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"),
        (BodyLength::Chunked, true, one, 1)
    );
    let both = "GET / HTTP/1.1\r\ncontent-length: 7\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(
        framed(both),
        (BodyLength::Chunked, false, one, 1),
        "the length is gone, the connection ends"
    );
    for coding in [
        "gzip",
        "identity",
        "chunked, chunked",
        "chunked\r\ntransfer-encoding: chunked",
        "",
    ] {
        let text = format!("GET / HTTP/1.1\r\ntransfer-encoding: {coding}\r\n\r\n");
        assert_eq!(framed(&text).0, BodyLength::Unknown, "{coding:?}");
        assert!(!framed(&text).1, "{coding:?}");
    }
    assert_eq!(
        framed("GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n").0,
        BodyLength::Unknown
    );
}

#[test]
fn no_bytes_upset_the_reader() {
    let mut dice = fastrand::Rng::with_seed(5);
    let corpus = corpus();
    for round in 0..4000 {
        let mut bytes = corpus[dice.usize(..corpus.len())].clone().into_bytes();
        for _ in 0..dice.usize(1..6) {
            let at = dice.usize(..=bytes.len());
            match dice.u8(..4) {
                0 if at < bytes.len() => bytes[at] = dice.u8(..),
                1 => bytes.truncate(at),
                2 => bytes.insert(at, b"\r\n :\0"[dice.usize(..5)]),
                _ => bytes.extend((0..dice.usize(..40)).map(|_| dice.u8(..))),
            }
        }
        let expected = read([&bytes[..]]).0;
        let size = dice.usize(1..50);
        let pieces = read(bytes.chunks(size)).0;
        // More may be known of a head that is not whole when it came in fewer pieces, but never something else.
        assert_eq!(pieces, expected, "round {round}, {}", bytes.escape_ascii());
    }
}

#[test]
fn head_expects_only_where_a_body_follows_and_the_client_knows_interim_responses() {
    for (version, length, expects) in [
        ("1.1", "content-length: 5\r\n", true),
        ("1.1", "transfer-encoding: chunked\r\n", true),
        ("1.1", "content-length: 0\r\n", false),
        ("1.1", "", false),
        ("1.0", "content-length: 5\r\n", false),
    ] {
        let text =
            format!("POST / HTTP/{version}\r\nhost: a\r\n{length}expect: 100-continue\r\n\r\n");
        let read = Reader::new().read(&mut BytesMut::from(&text[..]), LIMITS);
        let head = read.expect("well-formed").expect("whole");
        assert_eq!(head.expects, expects, "{text:?}");
    }
}

#[test]
fn http1_target_with_characters_that_no_uri_has_is_read_as_browsers_send_it() {
    for (target, uri) in [
        ("/x?filter={\"a\":1}", "/x?filter={%22a%22:1}"),
        ("/<a>`?b=<c>", "/%3Ca%3E%60?b=%3Cc%3E"),
        ("/x?a=|^\\{}[]'", "/x?a=|^\\{}[]'"),
        ("/%22?a=%22\"", "/%22?a=%22%22"),
    ] {
        let read = whole(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let read = read.expect("a head").expect("whole");
        assert!(
            read.starts_with(&format!("GET {uri} HTTP/1.1")),
            "{target}: {read}"
        );
    }
    for target in [
        "/x?a\t=\"",
        "/x?a=\"\u{1}",
        "/x?a=\"\u{7f}",
        "http://a\"/x",
        "x?\"",
    ] {
        let read = whole(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(read, Err(BadHead::Malformed), "{target:?}");
    }
}
