//! Passes interim responses (1xx) to a client of HTTP/1.1. It does not support HTTP/2, whose
//! library owns the stream and has no call for them.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, StatusCode};
use parking_lot::Mutex;

/// Receives interim responses for the client of one HTTP/1.1 connection. It is `Send`, because
/// hooks of the upstream's side must be; only one thread uses it.
#[derive(Clone, Debug)]
pub struct Interim {
    queue: Arc<Waiting>,
    /// The request they are for; later ones are dropped.
    request: u32,
    /// Headers that are not passed on.
    hidden: Vec<HeaderName>,
}

#[derive(Debug, Default)]
pub(super) struct Queue(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    request: AtomicU32,
    any: AtomicBool,
    bytes: Mutex<Vec<u8>>,
}

impl Queue {
    pub(super) fn interim(&self) -> Interim {
        Interim {
            queue: Arc::clone(&self.0),
            request: 0,
            hidden: Vec::new(),
        }
    }

    pub(super) fn begin(&self) {
        self.0.request.store(
            self.0.request.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        if self.waits() {
            self.take(&mut Vec::new());
        }
    }

    pub(super) fn waits(&self) -> bool {
        self.0.any.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn take(&self, out: &mut Vec<u8>) {
        self.0.any.store(false, Ordering::Relaxed);
        out.append(&mut self.0.bytes.lock());
    }
}

impl Interim {
    /// The same sender for the current request, without the headers `fields`.
    pub fn without<'n>(&self, fields: impl Iterator<Item = &'n HeaderName>) -> Self {
        let request = self.queue.request.load(Ordering::Relaxed);
        Self {
            queue: Arc::clone(&self.queue),
            request,
            hidden: fields.cloned().collect(),
        }
    }

    /// Sends an interim response to the current request. It is dropped if that request is over (RFC
    /// 9110 15.2 allows that), or if more than [`PENDING_MAX`] bytes wait.
    pub fn send(&self, status: StatusCode, mut headers: HeaderMap) {
        if !status.is_informational()
            || matches!(
                status,
                StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS
            )
        {
            return;
        }
        if self.request != self.queue.request.load(Ordering::Relaxed) {
            return;
        }
        for framing in [CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER] {
            headers.remove(framing);
        }
        for name in &self.hidden {
            headers.remove(name);
        }
        let mut head = Vec::with_capacity(256);
        // Writing to a growing buffer cannot fail.
        let _ = write!(
            head,
            "HTTP/1.1 {} {}\r\n",
            status.as_u16(),
            status.canonical_reason().unwrap_or_default()
        );
        for (name, value) in &headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let mut bytes = self.queue.bytes.lock();
        if bytes.len() + head.len() <= PENDING_MAX {
            bytes.extend_from_slice(&head);
            self.queue.any.store(true, Ordering::Relaxed);
        }
    }
}

/// The largest number of bytes of interim responses that may wait for a client that does not read.
const PENDING_MAX: usize = 16 << 10;
