//! Memory that idle connections lend to the others of their worker.
//!
//! A gateway has many connections and works for few at a time. The memory that was used last is
//! used first: it is still in the processor's cache.

use std::cell::RefCell;
use std::io;
use std::mem;
use std::task::{Context, Poll};

use super::core::Core;
use crate::buffer::ReadBuffer;
use tollgate_http1::Output;
use tollgate_http1::request::Reader;

impl Core {
    /// Reads the beginning of the next request. While nothing comes, other connections use the
    /// buffers of this one, unless they are larger than usual.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.has_no_memory()
            && self.output.is_done()
            && let Some(buffers) = take_buffers()
        {
            (self.input, self.output) = buffers;
        }
        if !self.requests.has_reader() {
            self.requests.adopt(take_reader());
        }
        let read = self.poll_fill(cx, 0);
        if !matches!(read, Poll::Ready(Ok(1..))) && is_usual(&self.input, &self.output) {
            self.give_up_buffers();
        }
        read
    }

    /// Gives up its memory, as far as it is not in use. What is larger than usual is freed.
    pub(super) fn release(&mut self) {
        self.give_up_buffers();
        if let Some(reader) = self.requests.release() {
            keep_reader(reader);
        }
    }

    fn give_up_buffers(&mut self) {
        if self.input.is_empty() && self.output.is_done() {
            keep_buffers(mem::take(&mut self.input), mem::take(&mut self.output));
        }
    }
}

fn take_buffers() -> Option<(ReadBuffer, Output)> {
    BUFFERS.with_borrow_mut(Vec::pop)
}

fn keep_buffers(input: ReadBuffer, output: Output) {
    if !is_usual(&input, &output) {
        return;
    }
    BUFFERS.with_borrow_mut(|buffers| {
        if buffers.len() < BUFFERS_MAX {
            buffers.push((input, output));
        }
    });
}

fn is_usual(input: &ReadBuffer, output: &Output) -> bool {
    input.is_of_usual_size() && output.memory() <= OUTPUT_MAX
}

fn take_reader() -> Option<Box<Reader>> {
    READERS.with_borrow_mut(Vec::pop)
}

fn keep_reader(reader: Box<Reader>) {
    READERS.with_borrow_mut(|readers| {
        if readers.len() < READERS_MAX {
            readers.push(reader);
        }
    });
}

/// The most buffers that a worker keeps, at most 24 KiB for a connection. They are not freed: as
/// many were in use at the same time once.
const BUFFERS_MAX: usize = 256;
/// The usual largest size of an output buffer, in bytes.
const OUTPUT_MAX: usize = 8 * 1024;
/// The most readers of heads that a worker keeps, of a few KiB each. A connection keeps its own until
/// it rests, because it knows the names of its client's headers.
const READERS_MAX: usize = 256;

thread_local! {
    static BUFFERS: RefCell<Vec<(ReadBuffer, Output)>> = const { RefCell::new(Vec::new()) };
    #[expect(clippy::vec_box, reason = "they move from one connection to the next in their boxes")]
    static READERS: RefCell<Vec<Box<Reader>>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests;
