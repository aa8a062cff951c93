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
    heads: Reader,
    body: BodyReader,
    /// The head of a request has been read, and its end has not.
    open: bool,
    /// The request that was read last is the last.
    last: bool,
}

/// Why no more requests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// The head is refused.
    Head(BadHead),
    /// The body is malformed.
    Body(Malformed),
}

impl Requests {
    /// At the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event out of `input`; `None` when more must be read first, or the last request has ended. `input` is
    /// that of the last call, and perhaps more behind it.
    ///
    /// # Errors
    /// Why no more requests are read.
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

    /// Takes the head of the next request, whose body is read next; `None` when it has not come whole.
    ///
    /// # Errors
    /// When it is refused; `input` still begins with it.
    pub fn read_head(
        &mut self,
        input: &mut BytesMut,
        limits: Limits,
    ) -> Result<Option<Head>, BadHead> {
        let head = self.heads.read(input, limits)?;
        if let Some(head) = &head {
            self.body = BodyReader::new(head.body);
        }
        Ok(head)
    }

    /// The body of the request whose head was read last.
    pub const fn body(&mut self) -> &mut BodyReader {
        &mut self.body
    }

    /// How far that body has been read.
    pub const fn body_state(&self) -> &BodyReader {
        &self.body
    }

    /// Nothing more of that body is read.
    pub fn abandon_body(&mut self) {
        if !self.body.is_done() {
            self.body = BodyReader::new(BodyLength::Unknown);
        }
    }

    /// Takes a table that is of no more use to another, for the next head.
    pub fn reuse(&mut self, headers: HeaderMap) {
        self.heads.reuse(headers);
    }

    /// Gives its memory back; to be called between two requests.
    pub fn release(&mut self) {
        self.heads = Reader::new();
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
