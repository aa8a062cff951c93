//! The responses of one connection, one after the other, as a client reads them.

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode, Version};

use crate::body_length::has_no_body;
use crate::head::{Framing, status_line};
use crate::{Body, BodyLength, BodyReader, Bounds, Event, Lines, Malformed, Message, Verbatim};

/// Reads responses, each after [`Responses::expect`].
///
/// ```
/// use bytes::BytesMut;
/// use tollgate_http1::{Event, Responses};
///
/// let (mut responses, mut input) = (Responses::new(), BytesMut::from("HTTP/1.1 200 OK\r\n\r\nhi"));
/// responses.expect(false);
/// assert!(matches!(responses.read(&mut input), Ok(Some(Event::Head(head))) if head.parts.status == 200));
/// assert!(matches!(responses.read(&mut input), Ok(Some(Event::Data(data))) if data == "hi"));
/// // Nothing but the end of the connection says where this body ends.
/// assert!(matches!(responses.read(&mut input), Ok(None)));
/// assert_eq!(responses.end(), Ok(()));
/// assert!(!responses.persists());
/// ```
#[derive(Debug, Default)]
pub struct Responses {
    lines: Lines,
    /// Whether the head of a response is awaited.
    awaited: bool,
    body: BodyReader,
    /// Whether a response is expected or in progress, and its end has not been reported.
    open: bool,
    /// Whether the request is HEAD: its response has no body, whatever its headers say.
    to_head: bool,
    /// Whether the connection ends with the response.
    ends: bool,
    /// The time for which the server keeps the connection, as the last response states it.
    idle_timeout: Option<u64>,
    interim: u16,
    /// Whether an interim response announced a body, so that the end of the message is unknown.
    interim_body: bool,
    /// The header table for the next response.
    spare: HeaderMap,
    /// Whether the headers may stay unparsed.
    may_be_verbatim: bool,
    /// The unparsed headers, and the framing that they announce.
    verbatim: Option<(Verbatim, Framing)>,
}

/// The head of a response, including an interim one (1xx).
#[derive(Debug)]
pub struct Head {
    /// The version, the status and the headers.
    pub parts: Parts,
    /// The reason phrase, if it is not the usual one.
    pub reason: Option<Bytes>,
}

impl Head {
    /// Whether another head follows for the same request. 101 is final: the connection changes its protocol.
    pub fn is_interim(&self) -> bool {
        self.parts.status.is_informational() && !self.switches()
    }

    /// Whether the connection changes its protocol.
    pub fn switches(&self) -> bool {
        self.parts.status == StatusCode::SWITCHING_PROTOCOLS
    }
}

impl Responses {
    /// Creates a reader at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that a request was sent, with the method HEAD (`to_head`) or another: its response
    /// is read next.
    pub fn expect(&mut self, to_head: bool) {
        debug_assert!(!self.is_under_way(), "one response after the other");
        self.to_head = to_head;
        (self.awaited, self.open) = (true, true);
        self.lines.reset();
        (self.may_be_verbatim, self.verbatim) = (false, None);
        (self.interim, self.interim_body) = (0, false);
    }

    /// Allows the headers to stay unparsed: if none of them must be inspected, they are not in the
    /// head but in [`Responses::take_verbatim`].
    pub const fn allow_verbatim(&mut self) {
        self.may_be_verbatim = true;
    }

    /// The response headers, if they were not parsed; those in the head come after them.
    pub fn take_verbatim(&mut self) -> Option<Verbatim> {
        self.verbatim.take().map(|(verbatim, _)| verbatim)
    }

    /// Takes the next event out of `input`; `None` if more must be read first, or none is expected.
    ///
    /// # Errors
    /// The reason why the response is malformed. The connection is unusable then.
    pub fn read(&mut self, input: &mut BytesMut) -> Result<Option<Event<Head>>, Malformed> {
        if self.awaited {
            return Ok(self.read_head(input)?.map(Event::Head));
        }
        if !self.open {
            return Ok(None);
        }
        let event = Event::of(self.body.read(input)?);
        self.open = !matches!(event, Some(Event::End));
        Ok(event)
    }

    /// Takes the next head out of `input`, of an interim response or of the final one, whose body
    /// is read next; `None` if it is incomplete.
    ///
    /// # Errors
    /// The reason why it is malformed.
    pub fn read_head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, Malformed> {
        let Some(length) = self.lines.find(input, HEAD)? else {
            // Refuse input that is not HTTP at once, without waiting for its end.
            let mut begun = input.iter().zip(b"HTTP/1.");
            return match begun.all(|(is, should)| is == should) {
                true => Ok(None),
                false => Err(Malformed::StartLine),
            };
        };
        if self.lines.is_empty() {
            return Err(Malformed::StartLine);
        }
        let mut bytes = input.split_to(length);
        let (version, status, reason) = status_line(self.lines.line(&bytes, 0))?;
        let usual = status.canonical_reason().map(str::as_bytes);
        let mut head = Head {
            parts: Response::new(()).into_parts().0,
            reason: (usual != Some(reason)).then(|| Bytes::copy_from_slice(reason)),
        };
        let parts = &mut head.parts;
        (parts.version, parts.status) = (version, status);
        parts.headers = std::mem::take(&mut self.spare);
        // Responses without a body, or with the length of another one's, are the exception.
        let usual = version == Version::HTTP_11
            && status.as_u16() >= 200
            && !self.to_head
            && !has_no_body(status);
        if self.may_be_verbatim && usual {
            self.verbatim = self.lines.verbatim(&mut bytes);
        }
        if self.verbatim.is_none() {
            self.lines.fields(&bytes.freeze(), 1, &mut parts.headers)?;
        }
        self.lines.reset();
        if head.is_interim() {
            self.interim_body |=
                Framing::of(&head.parts.headers).map_or(true, Framing::announces_body);
            self.interim += 1;
            if self.interim > INTERIM {
                return Err(Malformed::TooManyInterim);
            }
        } else {
            self.begin_body(&head.parts)?;
        }
        Ok(Some(head))
    }

    /// Decides how the body after `head` is framed (RFC 9112 6.3).
    fn begin_body(&mut self, head: &Parts) -> Result<(), Malformed> {
        let framing = match &self.verbatim {
            Some((_, framing)) => *framing,
            None => Framing::of(&head.headers)?,
        };
        let message = Message::Response {
            status: head.status,
            to_head: self.to_head,
        };
        self.body = BodyReader::new(BodyLength::of(message, head.version, framing)?);
        self.awaited = false;
        self.idle_timeout = framing.idle_timeout;
        // A length together with chunks is used for request smuggling: use the chunks, and trust no
        // bytes after them. A body that is not allowed may still arrive, possibly late, and would
        // be read as the next response.
        self.ends |= !framing.persists(head.version)
            || (framing.chunked && framing.length.is_some())
            || head.status == StatusCode::SWITCHING_PROTOCOLS
            || self.interim_body
            || (message.is_head_alone() && framing.announces_body());
        Ok(())
    }

    /// Takes the next piece of the response's body.
    ///
    /// # Errors
    /// The reason why it is malformed.
    pub fn read_body(&mut self, input: &mut BytesMut) -> Result<Body, Malformed> {
        self.body.read(input)
    }

    /// Handles the end of the connection; everything that was read must have been taken.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]: the response is incomplete.
    pub fn end(&mut self) -> Result<(), Malformed> {
        self.ends = true;
        if self.awaited {
            return Err(Malformed::Truncated);
        }
        self.body.end()
    }

    /// For how many seconds the server keeps the connection while it is idle, if the last response
    /// said so (`Keep-Alive: timeout=N`).
    pub const fn idle_timeout(&self) -> Option<u64> {
        self.idle_timeout
    }

    /// Whether a response, or the rest of one, is awaited.
    pub const fn is_under_way(&self) -> bool {
        self.awaited || !self.body.is_done()
    }

    /// Whether another response can follow on the connection, according to the server.
    pub const fn persists(&self) -> bool {
        !self.ends
    }

    /// The number of remaining bytes of the body, if known.
    pub const fn left(&self) -> Option<u64> {
        if self.awaited {
            return None;
        }
        self.body.left()
    }

    /// The whole body of a response of known length, if it arrived with its head.
    pub fn take_whole(&mut self, input: &mut BytesMut) -> Option<Bytes> {
        self.body.take_whole(input)
    }

    /// Takes an unused header table, to reuse it for the next head.
    pub fn reuse(&mut self, mut headers: HeaderMap) {
        headers.clear();
        self.spare = headers;
    }

    /// Frees its memory; to be called between two responses.
    pub fn release(&mut self) {
        self.spare = HeaderMap::new();
        self.lines = Lines::new();
    }
}

/// The limits of a response's head. Some servers end lines with LF alone.
const HEAD: Bounds = Bounds {
    bytes: 64 * 1024,
    lines: 101,
    bare_lf: true,
};
/// The largest number of interim responses before a final one.
const INTERIM: u16 = 1000;
