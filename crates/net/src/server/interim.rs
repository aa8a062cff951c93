//! Interim answers (1xx) on their way to a caller of HTTP/1.1. Over HTTP/2 the library owns the stream, and has no call
//! for them.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, StatusCode};
use parking_lot::Mutex;

/// Takes interim answers for the caller of one HTTP/1.1 connection. `Send`, because hooks of the upstream's side must be;
/// one thread uses it.
#[derive(Clone, Debug)]
pub struct Interim {
    queue: Arc<Waiting>,
    /// The request they are for; what comes later is nobody's.
    request: u32,
    /// Fields that are not passed on.
    hidden: Vec<HeaderName>,
}

/// The connection's end of it.
#[derive(Debug, Default)]
pub(super) struct Queue(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// The request under way.
    request: AtomicU32,
    /// Whether there are bytes.
    any: AtomicBool,
    bytes: Mutex<Vec<u8>>,
}

impl Queue {
    /// What hands to this queue.
    pub(super) fn interim(&self) -> Interim {
        Interim {
            queue: Arc::clone(&self.0),
            request: 0,
            hidden: Vec::new(),
        }
    }

    /// A request begins: what was for the last one is dropped.
    pub(super) fn begin(&self) {
        self.0.request.store(
            self.0.request.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        if self.waits() {
            self.take(&mut Vec::new());
        }
    }

    /// Whether interim answers are to be written.
    pub(super) fn waits(&self) -> bool {
        self.0.any.load(Ordering::Relaxed)
    }

    /// Writes them to `out`.
    #[cold]
    pub(super) fn take(&self, out: &mut Vec<u8>) {
        self.0.any.store(false, Ordering::Relaxed);
        out.append(&mut self.0.bytes.lock());
    }
}

impl Interim {
    /// The same for the request under way, which passes `fields` not on.
    pub fn without<'n>(&self, fields: impl Iterator<Item = &'n HeaderName>) -> Self {
        let request = self.queue.request.load(Ordering::Relaxed);
        Self {
            queue: Arc::clone(&self.queue),
            request,
            hidden: fields.cloned().collect(),
        }
    }

    /// Sends an interim answer to the request that is awaited. It is dropped (as RFC 9110 15.2 has it for whoever is
    /// not there to take it) when that request is over, or when more than [`PENDING_MAX`] bytes wait.
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
        // Writing to bytes that grow cannot fail.
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

/// Bytes of interim answers that may wait for a caller who does not read.
const PENDING_MAX: usize = 16 << 10;
