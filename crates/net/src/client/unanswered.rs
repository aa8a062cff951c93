//! A request without a response moves to another connection.

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use tollgate_http1::Output;
use tollgate_http1::request::{Limits, Reader};

use super::Client;

/// A request that was sent completely and may be sent again.
#[derive(Debug)]
pub struct Unanswered {
    write: Output,
    asks_head: bool,
    untouched: bool,
}

impl Unanswered {
    /// Whether the socket accepted no byte of it, so that the server cannot have read any. A byte
    /// that went into a TLS session counts as accepted.
    pub const fn is_untouched(&self) -> bool {
        self.untouched
    }

    /// Restores the request from its written bytes. Keeping a copy would cost every request;
    /// parsing the bytes costs only the few that are sent to another server.
    pub fn read_back(mut self) -> Option<Request<()>> {
        let limits = Limits {
            bytes: usize::MAX,
            fields: usize::MAX,
            target: usize::MAX,
        };
        let mut written = BytesMut::from(&self.write.flat()[..]);
        let head = Reader::new().read(&mut written, limits).ok()??;
        Some(Request::from_parts(head.parts, ()))
    }
}

impl<S, B> Client<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    /// Begins an exchange with a request that an earlier connection left unanswered.
    pub fn ask_again(&mut self, request: Unanswered) {
        self.begin(request.asks_head);
        self.write = request.write;
    }

    /// The request, to be sent again on another connection, if it was kept and no byte of a
    /// response was received.
    pub fn unanswered(mut self) -> Option<Unanswered> {
        let untouched = self.write.is_untouched();
        let asks_head = self.asks_head;
        (!self.heard && self.write.rewind()).then_some(Unanswered {
            write: self.write,
            asks_head,
            untouched,
        })
    }
}
