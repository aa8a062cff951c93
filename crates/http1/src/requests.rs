//! The requests of one connection, one after the other, as a server reads them.

use bytes::BytesMut;
use http::HeaderMap;

use crate::request::{BadHead, Head, Limits, Reader};
use crate::{Body, BodyLength, BodyReader, Event, Malformed};

/// Reads requests.
///
/// ```
/// use bytes::BytesMut;
/// use tollgate_http1::request::Limits;
/// use tollgate_http1::{Event, Requests};
///
/// let limits = Limits { bytes: 4096, fields: 32, target: 512 };
/// let (mut requests, mut input) = (Requests::new(), BytesMut::from("PUT / HTTP/1.1\r\nhost: a\r\n"));
/// assert!(matches!(requests.read(&mut input, limits), Ok(None)), "more must come");
/// input.extend_from_slice(b"content-length: 2\r\n\r\nhi");
/// assert!(matches!(requests.read(&mut input, limits), Ok(Some(Event::Head(_)))));
/// assert!(matches!(requests.read(&mut input, limits), Ok(Some(Event::Data(data))) if data == "hi"));
/// assert!(matches!(requests.read(&mut input, limits), Ok(Some(Event::End))));
/// ```
#[derive(Debug, Default)]
pub struct Requests {
    /// Boxed, so that a connection which rests between two requests does without it.
    heads: Option<Box<Reader>>,
    body: BodyReader,
    /// Whether the head of a request has been read, but not its end.
    open: bool,
    /// Whether the request read last is the final one.
    last: bool,
}

/// The reason why no more requests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// The head is refused.
    Head(BadHead),
    /// The body is malformed.
    Body(Malformed),
}

impl Requests {
    /// Creates a reader at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event out of `input`; `None` if more must be read first, or the final request
    /// has ended. `input` must be that of the last call, possibly with more bytes appended.
    ///
    /// # Errors
    /// The reason why no more requests are read.
    pub fn read(
        &mut self,
        input: &mut BytesMut,
        limits: Limits,
    ) -> Result<Option<Event<Head>>, BadRequest> {
        if !self.open {
            if self.last || input.is_empty() {
                return Ok(None);
            }
            let head = self.read_head(input, limits).map_err(BadRequest::Head)?;
            if let Some(head) = &head {
                (self.open, self.last) = (true, !head.persists);
            }
            return Ok(head.map(Event::Head));
        }
        let event = Event::of(self.body.read(input).map_err(BadRequest::Body)?);
        self.open = !matches!(event, Some(Event::End));
        Ok(event)
    }

    /// Takes the head of the next request, whose body is read next; `None` if it is incomplete.
    ///
    /// # Errors
    /// If it is refused; `input` still begins with it.
    pub fn read_head(
        &mut self,
        input: &mut BytesMut,
        limits: Limits,
    ) -> Result<Option<Head>, BadHead> {
        let head = self.heads.get_or_insert_default().read(input, limits)?;
        if let Some(head) = &head {
            self.body = BodyReader::new(head.body);
        }
        Ok(head)
    }

    /// The body of the request whose head was read last.
    pub const fn body(&mut self) -> &mut BodyReader {
        &mut self.body
    }

    /// The state of that body.
    pub const fn body_state(&self) -> &BodyReader {
        &self.body
    }

    /// Discards the rest of that body.
    pub fn abandon_body(&mut self) {
        if !self.body.is_done() {
            self.body = BodyReader::new(BodyLength::Unknown);
        }
    }

    /// Takes an unused header table, to reuse it for the next head.
    pub fn reuse(&mut self, headers: HeaderMap) {
        if let Some(heads) = &mut self.heads {
            heads.reuse(headers);
        }
    }

    /// Frees its memory; to be called between two requests.
    pub fn release(&mut self) {
        self.heads = None;
    }
}

impl<H> Event<H> {
    pub(crate) fn of(body: Body) -> Option<Self> {
        match body {
            Body::Data(data) => Some(Self::Data(data)),
            Body::Trailers(trailers) => Some(Self::Trailers(trailers)),
            Body::End => Some(Self::End),
            Body::Needs(_) => None,
        }
    }
}

// Every idle connection has one.
const _: () = assert!(size_of::<Requests>() <= 64);
