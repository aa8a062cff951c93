//! Writes heads, and with them where their bodies end (RFC 9112 3, 4, 6).

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode, Version, response};

use crate::head::{Framing, number, write_header};
use crate::output::COPIED;
use crate::{BodyLength, BodyWriter, Message, Verbatim, tokens};

/// The body that follows a head to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The message has no body.
    None,
    /// The body has this many bytes.
    Exactly(u64),
    /// A body of unknown length.
    Unknown,
}

/// Writes the head of a request in HTTP/1.1; `more` writes lines after its headers. Framing headers
/// in `headers` are not written: `content` alone decides the framing.
pub fn request_head(
    out: &mut Vec<u8>,
    method: &Method,
    target: &str,
    headers: &HeaderMap,
    more: impl FnOnce(&mut Vec<u8>),
    content: Content,
) -> BodyWriter {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let mut has_length = false;
    for (name, value) in headers {
        if *name == CONTENT_LENGTH {
            has_length = true;
        } else if *name != TRANSFER_ENCODING {
            write_header(out, name.as_str(), value.as_bytes());
        }
    }
    more(out);
    let framing = Framing {
        chunked: content == Content::Unknown,
        length: match content {
            Content::Exactly(length) => Some(length),
            // Without Content-Length some servers wait for a body, or refuse the request.
            Content::None if has_length => Some(0),
            Content::None => {
                matches!(*method, Method::POST | Method::PUT | Method::PATCH).then_some(0)
            }
            Content::Unknown => None,
        },
        ..Framing::default()
    };
    let body =
        BodyLength::of(Message::Request, Version::HTTP_11, framing).expect("HTTP/1.1 has chunks");
    if framing.chunked {
        out.extend_from_slice(CHUNKED);
    } else if let Some(length) = framing.length {
        write_length(out, length);
    }
    out.extend_from_slice(b"\r\n");
    BodyWriter::new(body)
}

/// The properties of a request that decide the form of its response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseForm {
    /// The version of the request.
    pub version: Version,
    /// Whether it is HEAD, so that the response has no body.
    pub head: bool,
    /// Whether the connection may be used after the response.
    pub persists: bool,
}

/// How the rest of a response is written after its head.
#[derive(Debug)]
pub struct ResponseWriter {
    /// Writes the body of the response.
    pub body: BodyWriter,
    /// Whether the connection can be used after it.
    pub persists: bool,
    /// Whether the connection changes its protocol.
    pub switches: bool,
}

/// The parts of a response's head besides its status and its header table.
pub struct Extras<'e, M, D> {
    /// The reason phrase; `None`: the usual one.
    pub reason: Option<&'e [u8]>,
    /// Headers that come before those of its table.
    pub verbatim: Option<Verbatim>,
    /// Writes lines that come after them.
    pub more: M,
    /// Writes the Date line, if the response has none.
    pub date: D,
}

/// Writes the head of a response with `exact` bytes of body, if that is known.
pub fn response_head<M, D>(
    out: &mut Vec<u8>,
    head: &response::Parts,
    extras: Extras<'_, M, D>,
    exact: Option<u64>,
    asked: ResponseForm,
) -> ResponseWriter
where
    M: FnOnce(&mut Vec<u8>),
    D: FnOnce(&mut Vec<u8>),
{
    let status = head.status;
    // A small body follows in the same buffer.
    let copied = exact
        .and_then(|length| usize::try_from(length).ok())
        .filter(|length| *length <= COPIED);
    out.reserve(HEAD_ROOM + copied.unwrap_or(0));
    out.extend_from_slice(if asked.version == Version::HTTP_10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    if status == StatusCode::OK && extras.reason.is_none() {
        out.extend_from_slice(b"200 OK\r\n");
    } else {
        write_status(out, status, extras.reason);
    }
    let switches = status == StatusCode::SWITCHING_PROTOCOLS;
    let (mut persists, mut dated, mut given) = (asked.persists, false, None);
    if let Some(verbatim) = extras.verbatim {
        out.extend_from_slice(&verbatim.lines);
        dated = verbatim.dated;
        if let Some(via) = &verbatim.via {
            write_header(out, "via", via.as_bytes());
        }
    }
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH {
            given = number(value.as_bytes());
            continue;
        } else if *name == CONNECTION && !switches {
            // Hop-by-hop headers are written by this function.
            persists &= !tokens(value.as_bytes()).any(|token| token.eq_ignore_ascii_case(b"close"));
            continue;
        } else if *name == TRANSFER_ENCODING {
            continue;
        } else if *name == DATE {
            dated = true;
        }
        write_header(out, name.as_str(), value.as_bytes());
    }
    (extras.more)(out);
    let message = Message::Response {
        status,
        to_head: asked.head,
    };
    let length = exact.or(given);
    let chunked = length.is_none() && asked.version == Version::HTTP_11;
    let framing = Framing {
        chunked,
        length,
        ..Framing::default()
    };
    let body = BodyLength::of(message, asked.version, framing).expect("HTTP/1.0 knows no chunks");
    let said = match body {
        BodyLength::Chunked => {
            out.extend_from_slice(CHUNKED);
            None
        }
        BodyLength::UntilClose | BodyLength::Unknown => {
            persists = false;
            None
        }
        // Without a body these headers describe that of another response (RFC 9110 8.6).
        BodyLength::None if message.is_head_alone() => match status {
            StatusCode::NO_CONTENT | StatusCode::SWITCHING_PROTOCOLS => None,
            StatusCode::NOT_MODIFIED => given,
            _ => given.or(exact.filter(|length| *length > 0)),
        },
        BodyLength::None | BodyLength::Exactly(_) => length,
    };
    if let Some(length) = said {
        write_length(out, length);
    }
    if !switches {
        if !persists {
            out.extend_from_slice(b"connection: close\r\n");
        } else if asked.version == Version::HTTP_10 {
            out.extend_from_slice(b"connection: keep-alive\r\n");
        }
    }
    if !dated {
        (extras.date)(out);
    }
    out.extend_from_slice(b"\r\n");
    ResponseWriter {
        body: BodyWriter::new(body),
        persists,
        switches,
    }
}

#[cold]
fn write_status(out: &mut Vec<u8>, status: StatusCode, reason: Option<&[u8]>) {
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    // The reason phrase has no meaning, but clients expect one.
    let usual = || status.canonical_reason().unwrap_or("<none>").as_bytes();
    out.extend_from_slice(reason.unwrap_or_else(usual));
    out.extend_from_slice(b"\r\n");
}

fn write_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

const CHUNKED: &[u8] = b"transfer-encoding: chunked\r\n";
const HEAD_ROOM: usize = 512;
