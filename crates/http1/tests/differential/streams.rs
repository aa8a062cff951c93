//! Random streams of messages: bytes as strangers send them, and messages as this crate writes them.

use std::io::IoSlice;

use bytes::Bytes;
use fastrand::Rng;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use tollgate_http1::output::SLICES;
use tollgate_http1::write::{Content, Extras, ResponseForm, request_head, response_head};
use tollgate_http1::{BodyWriter, Output};

use crate::ours::Message;

/// What was written, and what was meant.
#[derive(Debug, Default)]
pub struct Written {
    pub bytes: Vec<u8>,
    pub messages: Vec<Message>,
    /// Responses: whether each is to a HEAD.
    pub heads: Vec<bool>,
}

const FRAMINGS: &[&str] = &[
    "",
    "content-length: 5\r\n",
    "Content-Length:5 \r\n",
    "content-length: 05\r\n",
    "transfer-encoding: chunked\r\n",
    "Transfer-Encoding: Chunked\r\n",
    "content-length: 5\r\ntransfer-encoding: chunked\r\n",
    "content-length: 0\r\n",
];

const ODD_FRAMINGS: &[&str] = &[
    "content-length: +5\r\n",
    "content-length: 0x5\r\n",
    "content-length: 5, 5\r\n",
    "content-length: 5\r\ncontent-length: 5\r\n",
    "content-length : 5\r\n",
    "content-length: 5_0\r\n",
    "content-length: 18446744073709551616\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "transfer-encoding: chunked, chunked\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding:\x0bchunked\r\n",
    "transfer-encoding: identity\r\n",
    " transfer-encoding: chunked\r\n",
];

const BODIES: &[&str] = &[
    "5\r\nhello\r\n0\r\n\r\n",
    "2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nx-sum: 1\r\n\r\n",
    "00\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n",
    "1\r\n\n\r\n000\r\n\r\n",
];

const ODD_BODIES: &[&str] = &[
    "5\nhello\r\n0\r\n\r\n",
    "5\r\nhello0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    "5;\n\r\nhello\r\n0\r\n\r\n",
    "fffffffffffffffff\r\n",
];

fn pick<'t>(dice: &mut Rng, usual: &[&'t str], odd: &[&'t str]) -> &'t str {
    if dice.u8(..8) == 0 {
        odd[dice.usize(..odd.len())]
    } else {
        usual[dice.usize(..usual.len())]
    }
}

/// One message: its head with a framing, and the body that goes with it, mostly.
fn message(dice: &mut Rng, start: &str) -> Vec<u8> {
    let framing = pick(dice, FRAMINGS, ODD_FRAMINGS);
    let mut text = start.as_bytes().to_vec();
    for line in [
        "host: a\r\n",
        "connection: keep-alive\r\n",
        "X-A:\tb \r\n",
        "x: \r\n",
    ] {
        if line.starts_with("host") || dice.u8(..4) == 0 {
            text.extend_from_slice(line.as_bytes());
        }
    }
    if dice.u8(..12) == 0 {
        text.extend_from_slice(b"connection: close\r\n");
    }
    text.extend_from_slice(framing.as_bytes());
    text.extend_from_slice(b"\r\n");
    if framing.to_ascii_lowercase().contains("chunked") {
        text.extend_from_slice(pick(dice, BODIES, ODD_BODIES).as_bytes());
    } else if framing.contains('5') {
        text.extend_from_slice(b"hello");
    }
    text
}

fn mutate(dice: &mut Rng, bytes: &mut Vec<u8>) {
    if dice.u8(..3) > 0 || bytes.is_empty() {
        return;
    }
    let at = dice.usize(..bytes.len());
    let byte = b"\r\n \t:;,+-0159aAx\"\0\x0b\x7f\xe4"[dice.usize(..21)];
    match dice.u8(..3) {
        0 => bytes[at] = byte,
        1 => bytes.insert(at, byte),
        _ => _ = bytes.remove(at),
    }
}

/// Requests as any client may send them.
pub fn requests(dice: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 0..dice.usize(1..5) {
        let method = ["GET", "POST", "PUT", "DELETE"][dice.usize(..4)];
        let version = if dice.u8(..10) == 0 { 0 } else { 1 };
        let start = format!("{method} /{index}?a=b HTTP/1.{version}\r\n");
        let mut message = message(dice, &start);
        mutate(dice, &mut message);
        bytes.append(&mut message);
    }
    bytes
}

/// Responses as any server may send them, and which of them are to a HEAD.
pub fn responses(dice: &mut Rng) -> (Vec<u8>, Vec<bool>) {
    let (mut bytes, mut heads) = (Vec::new(), Vec::new());
    for _ in 0..dice.usize(1..5) {
        let start = [
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 404 \r\n",
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.1 204 No Content\r\n",
            "HTTP/1.1 304 Not Modified\r\n",
            "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\n",
        ][dice.usize(..6)];
        let mut message = message(dice, start);
        mutate(dice, &mut message);
        bytes.append(&mut message);
        heads.push(dice.u8(..6) == 0);
    }
    (bytes, heads)
}

/// Requests as this crate writes them, on one connection.
pub fn written_requests(dice: &mut Rng) -> Written {
    let (mut out, mut written) = (Output::new(), Written::default());
    for index in 0..dice.usize(1..6) {
        let method = [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::OPTIONS,
        ][dice.usize(..5)]
        .clone();
        let mut headers = headers(dice);
        headers.insert("host", HeaderValue::from_static("a"));
        let body = body(dice);
        let content = match dice.u8(..3) {
            0 => Content::None,
            1 => Content::Exactly(body.len() as u64),
            _ => Content::Unknown,
        };
        // What the headers say of the framing is not to be believed.
        if dice.bool() {
            headers.insert("content-length", HeaderValue::from_static("3"));
        }
        let target = format!("/{index}");
        let writer = request_head(out.flat(), &method, &target, &headers, |_| (), content);
        let body = if content == Content::None {
            Vec::new()
        } else {
            body
        };
        write_body(dice, &mut out, writer, &body);
        written.messages.push(Message {
            what: target,
            body,
            ..Message::default()
        });
        take(&mut out, &mut written.bytes);
    }
    written
}

/// Responses as this crate writes them, on one connection; `old`: some to HTTP/1.0.
pub fn written_responses(dice: &mut Rng, old: bool) -> Written {
    let (mut out, mut written) = (Output::new(), Written::default());
    for _ in 0..dice.usize(1..6) {
        let status = [200, 200, 404, 503, 204, 304][dice.usize(..6)];
        let asked = ResponseForm {
            version: if old && dice.u8(..5) == 0 {
                Version::HTTP_10
            } else {
                Version::HTTP_11
            },
            head: dice.u8(..5) == 0,
            persists: dice.u8(..8) > 0,
        };
        let status = StatusCode::from_u16(status).expect("a status");
        let mut head = Response::new(()).into_parts().0;
        (head.status, head.headers) = (status, headers(dice));
        let body = body(dice);
        let exact = dice.bool().then_some(body.len() as u64);
        let extras = Extras {
            reason: dice.bool().then_some(&b"Whatever it says"[..]),
            verbatim: None,
            more: |_: &mut Vec<u8>| (),
            date: |out: &mut Vec<u8>| {
                out.extend_from_slice(b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n")
            },
        };
        let writer = response_head(out.flat(), &head, extras, exact, asked);
        let bodiless = asked.head || matches!(status.as_u16(), 204 | 304);
        let body = if bodiless { Vec::new() } else { body };
        write_body(dice, &mut out, writer.body, &body);
        written.messages.push(Message {
            what: status.to_string(),
            body,
            ..Message::default()
        });
        written.heads.push(asked.head);
        take(&mut out, &mut written.bytes);
        if !writer.persists {
            break;
        }
    }
    written
}

fn headers(dice: &mut Rng) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in [
        "x-a",
        "accept",
        "x-request-id",
        "transfer-encoding",
        "cookie",
    ] {
        if dice.u8(..3) == 0 {
            let value = ["a", "", "b, c=\"d\"", "chunked"][dice.usize(..4)];
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
    }
    headers
}

fn body(dice: &mut Rng) -> Vec<u8> {
    let length = [0, 1, 5, 300, 5000][dice.usize(..5)];
    (0..length).map(|_| b"\r\n0a5"[dice.usize(..5)]).collect()
}

fn write_body(dice: &mut Rng, out: &mut Output, mut writer: BodyWriter, body: &[u8]) {
    let mut left = body;
    while !writer.is_ended() {
        let (piece, rest) = left.split_at(dice.usize(..=left.len()));
        left = rest;
        if left.is_empty() && dice.bool() {
            writer.data(out, Bytes::copy_from_slice(piece), true);
        } else {
            writer.data(out, Bytes::copy_from_slice(piece), false);
            if left.is_empty() {
                writer.end(out, None);
            }
        }
    }
    assert!(!writer.is_broken());
}

/// Moves what is to be written to `bytes`.
fn take(out: &mut Output, bytes: &mut Vec<u8>) {
    while out.left() > 0 {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = out.slices(&mut slices);
        let wrote = slices[..count].iter().map(|slice| slice.len()).sum();
        slices[..count]
            .iter()
            .for_each(|slice| bytes.extend_from_slice(slice));
        out.wrote(wrote);
    }
}
