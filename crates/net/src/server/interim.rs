//! Passes interim responses (1xx) to a client of HTTP/1.1. It does not support HTTP/2, whose
//! library owns the stream and has no call for them.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::rc::Rc;

use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, StatusCode};
use tollgate_http1::head::write_fields;

/// Receives interim responses for the client of one HTTP/1.1 connection.
#[derive(Clone, Debug)]
pub struct Interim {
    queue: Rc<Waiting>,
    /// The request they are for; later ones are dropped.
    request: u32,
    /// Headers that are not passed on.
    hidden: Vec<HeaderName>,
}

#[derive(Debug, Default)]
pub(super) struct Queue(Rc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    request: Cell<u32>,
    bytes: RefCell<Vec<u8>>,
}

impl Queue {
    pub(super) fn interim(&self) -> Interim {
        Interim {
            queue: Rc::clone(&self.0),
            request: 0,
            hidden: Vec::new(),
        }
    }

    pub(super) fn begin(&self) {
        self.0.request.set(self.0.request.get().wrapping_add(1));
        self.0.bytes.borrow_mut().clear();
    }

    pub(super) fn waits(&self) -> bool {
        !self.0.bytes.borrow().is_empty()
    }

    #[cold]
    pub(super) fn take(&self, out: &mut Vec<u8>) {
        out.append(&mut self.0.bytes.borrow_mut());
    }
}

impl Interim {
    /// The same sender for the current request, without the headers `fields`.
    pub fn without<'n>(&self, fields: impl Iterator<Item = &'n HeaderName>) -> Self {
        Self {
            queue: Rc::clone(&self.queue),
            request: self.queue.request.get(),
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
        if self.request != self.queue.request.get() {
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
        write_fields(&mut head, &headers);
        head.extend_from_slice(b"\r\n");
        let mut bytes = self.queue.bytes.borrow_mut();
        if bytes.len() + head.len() <= PENDING_MAX {
            bytes.extend_from_slice(&head);
        }
    }
}

/// The largest number of bytes of interim responses that may wait for a client that does not read.
const PENDING_MAX: usize = 16 << 10;
