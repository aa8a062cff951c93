//! Bounds how far a response may run ahead of its HTTP/2 client.
//!
//! The protocol library takes a piece of a body whenever the client's window has room for a byte,
//! and holds one more while it waits. A client may announce a very large window and then read
//! nothing. This module therefore counts the unsent bytes of a stream's response, until the library
//! drops each piece.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Buf;

#[derive(Clone, Debug, Default)]
pub(super) struct Ahead(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    unsent: Cell<usize>,
    /// The largest piece so far: the next may be as large.
    largest: Cell<usize>,
    /// The task that waits until a piece was sent.
    waiting: RefCell<Option<Waker>>,
}

impl Ahead {
    /// Ready when there is room for one more piece.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let unsent = self.0.unsent.get();
        if unsent == 0 || unsent + self.0.largest.get() <= MOST {
            return Poll::Ready(());
        }
        *self.0.waiting.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }

    pub(super) fn count<D: Buf>(&self, data: D) -> Unsent<D> {
        let length = data.remaining();
        self.0.unsent.set(self.0.unsent.get() + length);
        self.0.largest.set(self.0.largest.get().max(length));
        Unsent {
            data,
            length,
            ahead: self.clone(),
        }
    }
}

/// A piece of a response that the protocol library holds.
#[derive(Debug)]
pub(crate) struct Unsent<D> {
    data: D,
    length: usize,
    ahead: Ahead,
}

impl<D: Buf> Buf for Unsent<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}

impl<D> Drop for Unsent<D> {
    fn drop(&mut self) {
        let inner = &self.ahead.0;
        inner
            .unsent
            .set(inner.unsent.get().saturating_sub(self.length));
        if let Some(waker) = inner.waiting.take() {
            waker.wake();
        }
    }
}

/// The largest number of bytes of one stream's response that may wait for its client. A larger
/// piece waits alone; no piece is larger than one read of an upstream.
const MOST: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_has_room_for_small_pieces_or_for_a_large_one() {
        let (ahead, context) = (Ahead::default(), Context::from_waker(Waker::noop()));
        let large = ahead.count(&[0; 66 * 1024][..]);
        assert!(ahead.poll_room(&context).is_pending());
        drop(large);
        let ahead = Ahead::default();
        let mut small = Vec::new();
        while ahead.poll_room(&context).is_ready() {
            small.push(ahead.count(&[0; 1024][..]));
        }
        assert_eq!(small.len(), 64);
        small.pop();
        assert!(ahead.poll_room(&context).is_ready());
    }
}
