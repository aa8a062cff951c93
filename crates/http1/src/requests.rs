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
    /// The head of the request is refused.
    Head(BadHead),
    /// The body of the request is malformed.
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

    /// Gives up the reader of heads, with its memory, between two requests. Another connection can
    /// use it: it has no value of a header.
    ///
    /// `None`: it has begun to read, or has no memory yet.
    pub fn release(&mut self) -> Option<Box<Reader>> {
        let mut heads = self.heads.take_if(|heads| heads.is_at_start())?;
        heads.forget_values();
        Some(heads)
    }

    /// Whether it has a reader of heads.
    pub const fn has_reader(&self) -> bool {
        self.heads.is_some()
    }

    /// Uses a reader that another connection gave up. To be called if it has none.
    pub fn adopt(&mut self, heads: Option<Box<Reader>>) {
        debug_assert!(self.heads.is_none(), "it would forget what it has read");
        self.heads = heads;
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        bytes: 4096,
        fields: 16,
        target: 200,
    };

    fn read(requests: &mut Requests, text: &str) -> Option<Head> {
        let mut input = BytesMut::from(text);
        requests.read_head(&mut input, LIMITS).expect("well-formed")
    }

    #[test]
    fn requests_give_up_their_reader_only_between_two_heads() {
        let mut requests = Requests::new();
        assert!(requests.release().is_none(), "it has none yet");
        for begun in ["GET", "GET / HTTP/1.1\r\nhost: a\r\n", "\r\n", "\r"] {
            let mut requests = Requests::new();
            assert!(read(&mut requests, begun).is_none());
            assert!(requests.release().is_none(), "{begun:?} is not forgotten");
        }
        assert!(read(&mut requests, "GET /1 HTTP/1.1\r\nhost: a\r\n\r\n").is_some());
        assert!(requests.release().is_some());
        assert!(requests.release().is_none(), "it is given up once");
    }

    #[test]
    fn requests_with_the_reader_of_another_connection_read_only_their_own() {
        let (mut one, mut other) = (Requests::new(), Requests::new());
        for _ in 0..3 {
            read(
                &mut one,
                "GET /1 HTTP/1.1\r\nhost: a\r\nx-api-key: secret\r\n\r\n",
            );
        }
        other.adopt(one.release());
        let head = read(
            &mut other,
            "GET /2 HTTP/1.1\r\nhost: b\r\nx-api-key: mine\r\n\r\n",
        );
        let parts = head.expect("a whole head").parts;
        assert_eq!(parts.uri, "/2");
        assert_eq!(parts.headers["host"], "b");
        assert_eq!(parts.headers["x-api-key"], "mine");
        let head = read(&mut other, "GET /3 HTTP/1.1\r\naccept: c\r\n\r\n");
        let parts = head.expect("a whole head").parts;
        assert_eq!(parts.headers.len(), 1);
    }
}
