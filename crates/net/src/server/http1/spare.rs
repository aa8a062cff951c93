//! Memory that idle connections gave up, for the next that reads a request.
//!
//! A gateway has many connections and works for few at a time. The memory that was used last is
//! used first: it is still in the processor's cache.

use std::cell::RefCell;

use crate::buffer::ReadBuffer;
use tollgate_http1::Output;
use tollgate_http1::request::Reader;

/// The buffers that another connection of this worker gave up.
pub(super) fn take_buffers() -> Option<(ReadBuffer, Output)> {
    BUFFERS.with_borrow_mut(Vec::pop)
}

/// Keeps empty buffers for another connection of this worker, if they have the usual size and there
/// are not enough.
pub(super) fn keep_buffers(input: ReadBuffer, mut output: Output) {
    if !is_usual(&input, &output) {
        return;
    }
    output.begin(false);
    BUFFERS.with_borrow_mut(|buffers| {
        if buffers.len() < BUFFERS_MAX {
            buffers.push((input, output));
        }
    });
}

/// Whether buffers are no larger than those of most connections.
pub(super) fn is_usual(input: &ReadBuffer, output: &Output) -> bool {
    input.is_small() && output.capacity() <= OUTPUT_MAX
}

/// The reader of heads that another connection of this worker gave up.
pub(super) fn take_reader() -> Option<Box<Reader>> {
    READERS.with_borrow_mut(Vec::pop)
}

/// Keeps a reader of heads for another connection of this worker, if there are not enough.
pub(super) fn keep_reader(reader: Box<Reader>) {
    READERS.with_borrow_mut(|readers| {
        if readers.len() < READERS_MAX {
            readers.push(reader);
        }
    });
}

/// The most buffers that a worker keeps, about 10 KiB each. A connection needs them from a request's
/// first byte to the end of the response.
const BUFFERS_MAX: usize = 256;
/// The usual largest size of a block for output, in bytes.
const OUTPUT_MAX: usize = 16 * 1024;
/// The most readers of heads that a worker keeps, about 3 KiB each. A connection keeps its own until it
/// rests, because it knows the names of its client's headers.
const READERS_MAX: usize = 256;

thread_local! {
    static BUFFERS: RefCell<Vec<(ReadBuffer, Output)>> = const { RefCell::new(Vec::new()) };
    #[expect(clippy::vec_box, reason = "they move from one connection to the next in their boxes")]
    static READERS: RefCell<Vec<Box<Reader>>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(capacity: usize) {
        let mut output = Output::new();
        output.flat().reserve_exact(capacity);
        keep_buffers(ReadBuffer::new(), output);
    }

    #[test]
    fn spare_buffers_used_last_are_used_first_and_there_are_not_more_than_enough() {
        assert!(take_buffers().is_none());
        (1..BUFFERS_MAX + 10).for_each(keep);
        keep(OUTPUT_MAX + 1);
        let taken: Vec<usize> = std::iter::from_fn(take_buffers)
            .map(|(_, output)| output.capacity())
            .collect();
        let kept: Vec<usize> = (1..=BUFFERS_MAX).rev().collect();
        assert_eq!(taken, kept);
        keep(OUTPUT_MAX + 1);
        assert!(take_buffers().is_none(), "they are larger than usual");
    }

    #[test]
    fn spare_buffers_begin_empty() {
        let mut output = Output::new();
        output.flat().extend_from_slice(b"a response");
        output.wrote(10);
        output.flushed();
        keep_buffers(ReadBuffer::new(), output);
        let (_, mut output) = take_buffers().expect("what was kept");
        assert!(output.is_done());
        assert_eq!(*output.flat(), b"");
    }

    #[test]
    fn spare_readers_are_not_more_than_enough() {
        (0..READERS_MAX + 10).for_each(|_| keep_reader(Box::default()));
        assert_eq!(std::iter::from_fn(take_reader).count(), READERS_MAX);
    }
}
