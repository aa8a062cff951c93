//! Memory that idle connections gave up, for the next that reads a request.
//!
//! A gateway has many connections and works for few at a time. The memory that was used last is
//! used first: it is still in the processor's cache.

use std::cell::RefCell;

use crate::buffer::ReadBuffer;
use tollgate_http1::Output;
use tollgate_http1::request::Reader;

/// The memory of a connection between two requests.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) input: ReadBuffer,
    pub(super) output: Output,
    pub(super) heads: Option<Box<Reader>>,
}

impl Spare {
    /// Memory that another connection of this worker gave up.
    pub(super) fn take() -> Option<Self> {
        SPARE.with_borrow_mut(Vec::pop)
    }

    /// Keeps it for another connection of this worker, unless there is enough.
    pub(super) fn keep(mut self) {
        self.output.begin(false);
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_MAX {
                spare.push(self);
            }
        });
    }
}

/// Whether a connection with these buffers has no more memory than most.
pub(super) fn is_usual(input: &ReadBuffer, output: &Output) -> bool {
    input.is_small() && output.capacity() <= OUTPUT_MAX
}

/// The most that a worker keeps, about 10 KiB each. A connection needs one from a request's first byte
/// to the end of the response.
const SPARE_MAX: usize = 256;
/// The usual largest size of a block for output, in bytes.
const OUTPUT_MAX: usize = 16 * 1024;

thread_local! {
    static SPARE: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare(capacity: usize) -> Spare {
        let mut output = Output::new();
        output.flat().reserve_exact(capacity);
        Spare {
            input: ReadBuffer::new(),
            output,
            heads: None,
        }
    }

    #[test]
    fn spare_memory_used_last_is_used_first_and_there_is_not_more_than_enough() {
        assert!(Spare::take().is_none());
        for capacity in 1..SPARE_MAX + 10 {
            spare(capacity).keep();
        }
        let taken: Vec<usize> = std::iter::from_fn(Spare::take)
            .map(|spare| spare.output.capacity())
            .collect();
        let kept: Vec<usize> = (1..=SPARE_MAX).rev().collect();
        assert_eq!(taken, kept);
    }

    #[test]
    fn spare_memory_begins_empty() {
        let mut used = spare(100);
        used.output.flat().extend_from_slice(b"a response");
        used.output.wrote(10);
        used.output.flushed();
        used.keep();
        let mut taken = Spare::take().expect("what was kept");
        assert!(taken.output.is_done());
        assert_eq!(*taken.output.flat(), b"");
    }
}
