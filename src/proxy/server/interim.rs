//! Interim answers (1xx) on their way to a caller of HTTP/1.1.
//!
//! hyper's server sends none but `100 Continue`, and over HTTP/2 there is no way past it. Over HTTP/1.1 there is: while an
//! answer is awaited nothing else is written, so what is put between two of hyper's writes stands where it belongs.

use std::io::Write as _;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, StatusCode};

use super::state::State;
use crate::proxy::headers::strip_hop_by_hop;

/// Takes interim answers for the caller of one HTTP/1.1 connection.
#[derive(Clone, Debug)]
pub struct Interim {
    state: Arc<State>,
    /// Fields that are not passed on.
    hidden: Vec<HeaderName>,
}

impl Interim {
    pub(super) fn new(state: &Arc<State>) -> Self {
        Self { state: Arc::clone(state), hidden: Vec::new() }
    }

    /// The same, which passes `fields` not on.
    pub fn without<'n>(&self, fields: impl Iterator<Item = &'n HeaderName>) -> Self {
        Self { state: Arc::clone(&self.state), hidden: fields.cloned().collect() }
    }

    /// Sends an interim answer to the request that is awaited. It is dropped (as RFC 9110 15.2 has it for whoever is
    /// not there to take it) when an answer before it is not yet written, or when more than [`PENDING_MAX`] bytes wait.
    pub fn send(&self, status: StatusCode, headers: &HeaderMap) {
        if !status.is_informational() || matches!(status, StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS) {
            return;
        }
        let mut headers = headers.clone();
        strip_hop_by_hop(&mut headers);
        for framing in [CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER] {
            headers.remove(framing);
        }
        for name in &self.hidden {
            headers.remove(name);
        }
        let mut head = Vec::with_capacity(256);
        // Writing to bytes that grow cannot fail.
        let _ = write!(head, "HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
        for (name, value) in &headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        self.state.interject(&head, PENDING_MAX);
    }
}

/// Bytes of interim answers that may wait for a caller who does not read.
const PENDING_MAX: usize = 16 << 10;
