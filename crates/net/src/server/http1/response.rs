//! How an answer stands on the wire: its head, and where its body ends (RFC 9112 4, 6).

use std::cell::{Cell, RefCell};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode, Version, response};

use crate::buffer::COPIED;
use crate::buffer::WriteBuffer;
use tollgate_http1::chunked::{CHUNK_END, write_end, write_size};
use tollgate_http1::head::{Framing, number};
use tollgate_http1::tokens;
use tollgate_http1::{BodyLength, Message, Verbatim};

/// The request that is answered, as far as that decides how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) version: Version,
    /// HEAD: the answer is a head.
    pub(super) head: bool,
    /// Whether the connection may outlive the answer.
    pub(super) persists: bool,
}

/// How an answer's body is written.
#[derive(Debug)]
pub(super) struct Plan {
    body: BodyLength,
    /// Nothing more of it comes.
    pub(super) ended: bool,
    /// What came is not the whole of it: the caller has to see that.
    pub(super) broken: bool,
    /// The connection outlives it.
    pub(super) persists: bool,
    /// The connection changes its protocol.
    pub(super) switches: bool,
}

impl Plan {
    /// Writes the head of an answer with `exact` bytes of body, where that is known; `verbatim`: fields that come before
    /// those of its table; `more` writes lines that come behind them.
    pub(super) fn begin(
        out: &mut Vec<u8>,
        head: &response::Parts,
        verbatim: Option<Verbatim>,
        more: impl FnOnce(&mut Vec<u8>),
        exact: Option<u64>,
        asked: Asked,
    ) -> Self {
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
        if status == StatusCode::OK && head.extensions.is_empty() {
            out.extend_from_slice(b"200 OK\r\n");
        } else {
            write_status(out, head);
        }
        let switches = status == StatusCode::SWITCHING_PROTOCOLS;
        let (mut persists, mut dated, mut given) = (asked.persists, false, None);
        if let Some(verbatim) = verbatim {
            out.extend_from_slice(&verbatim.lines);
            dated = verbatim.dated;
            if let Some(via) = &verbatim.via {
                out.extend_from_slice(b"via: ");
                out.extend_from_slice(via.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
        for (name, value) in &head.headers {
            if *name == CONTENT_LENGTH {
                given = number(value.as_bytes());
                continue;
            } else if *name == CONNECTION && !switches {
                // What ends here is ours to say.
                persists &=
                    !tokens(value.as_bytes()).any(|token| token.eq_ignore_ascii_case(b"close"));
                continue;
            } else if *name == TRANSFER_ENCODING {
                continue;
            } else if *name == DATE {
                dated = true;
            }
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        more(out);
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
        let body = BodyLength::of(message, asked.version, framing)
            .expect("HTTP/1.0 is not told of chunks");
        let said = match body {
            BodyLength::Chunked => {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                None
            }
            BodyLength::UntilClose | BodyLength::Unknown => {
                persists = false;
                None
            }
            // What a head alone says of a body is that of another response's (RFC 9110 8.6).
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
            write_date(out);
        }
        out.extend_from_slice(b"\r\n");
        Self {
            body,
            ended: body == BodyLength::None,
            broken: false,
            persists,
            switches,
        }
    }

    /// Takes a piece of the body; `last`: it is the last.
    pub(super) fn data(&mut self, out: &mut WriteBuffer, piece: Bytes, last: bool) {
        match &mut self.body {
            BodyLength::Exactly(left) => {
                let length = piece.len() as u64;
                if length > *left {
                    // What was promised is kept; more would be the next answer.
                    out.push(piece.slice(..usize::try_from(*left).unwrap_or(0)));
                    (self.ended, self.broken) = (true, true);
                    return;
                }
                *left -= length;
                // Its owner need not be asked whether there is more.
                self.ended = *left == 0;
                if !piece.is_empty() {
                    out.push(piece);
                }
            }
            BodyLength::Chunked if !piece.is_empty() => {
                write_size(out.flat(), piece.len());
                out.push(piece);
                out.flat().extend_from_slice(CHUNK_END);
            }
            BodyLength::Chunked => {}
            // Not a byte may follow: it would be read as the next response.
            BodyLength::None => {
                (self.ended, self.broken) = (true, self.broken || !piece.is_empty())
            }
            BodyLength::UntilClose | BodyLength::Unknown => {
                if !piece.is_empty() {
                    out.push(piece);
                }
            }
        }
        if last && !self.ended {
            self.end(out, None);
        }
    }

    /// The body has ended, with `trailers`, which only chunks can carry.
    pub(super) fn end(&mut self, out: &mut WriteBuffer, trailers: Option<&HeaderMap>) {
        self.ended = true;
        match self.body {
            BodyLength::Exactly(left) => self.broken = left > 0,
            BodyLength::Chunked => write_end(out.flat(), trailers),
            BodyLength::None | BodyLength::UntilClose | BodyLength::Unknown => {}
        }
    }

    /// The body broke off.
    pub(super) const fn fail(&mut self) {
        (self.ended, self.broken) = (true, true);
    }

    /// Whether the end of the connection is all that says where the body ends.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.body == BodyLength::UntilClose
    }
}

#[cold]
fn write_status(out: &mut Vec<u8>, head: &response::Parts) {
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.push(b' ');
    match head.extensions.get::<hyper::ext::ReasonPhrase>() {
        Some(reason) => out.extend_from_slice(reason.as_bytes()),
        // A reason says nothing, but something stands there since ever.
        None => out.extend_from_slice(
            head.status
                .canonical_reason()
                .unwrap_or("<none>")
                .as_bytes(),
        ),
    }
    out.extend_from_slice(b"\r\n");
}

fn write_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes the Date field, which is made once a second (RFC 9110 6.6.1).
pub(super) fn write_date(out: &mut Vec<u8>) {
    let now = unix_seconds();
    DATE_LINE.with_borrow_mut(|line| {
        if DATED.replace(now) != now {
            let moment = UNIX_EPOCH + Duration::from_secs(now);
            line.clear();
            line.extend_from_slice(b"date: ");
            line.extend_from_slice(httpdate::fmt_http_date(moment).as_bytes());
            line.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(line);
    });
}

thread_local! {
    static DATED: Cell<u64> = const { Cell::new(0) };
    static DATE_LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Seconds since 1970: a Date knows nothing finer.
#[expect(
    clippy::disallowed_methods,
    reason = "Date tells the time of day; nothing is decided by it"
)]
fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Enough for most heads.
const HEAD_ROOM: usize = 512;
