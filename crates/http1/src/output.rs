//! The output buffer: copies short pieces into one block, and keeps long ones as they are.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

/// The bytes to be written, in order: short pieces copied into one block, long ones as they are.
#[derive(Debug, Default)]
pub struct Output {
    flat: Vec<u8>,
    /// The number of written bytes of `flat`.
    written: usize,
    /// The long pieces between parts of `flat`, each with the length of `flat` before it.
    queue: VecDeque<(usize, Bytes)>,
    /// The number of unwritten bytes of `queue`.
    queued: usize,
    /// Whether written bytes are kept, to be written again.
    kept: bool,
    /// Whether the transport may hold back bytes that it accepted.
    unflushed: bool,
}

impl Output {
    /// Creates an output that has no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a message and forgets written bytes. If `kept`, the message is kept until the next
    /// begins: [`Output::rewind`].
    pub fn begin(&mut self, kept: bool) {
        self.flat.clear();
        self.queue.clear();
        (self.written, self.queued) = (0, 0);
        self.kept = kept;
    }

    /// The block to which short pieces are appended.
    pub fn flat(&mut self) -> &mut Vec<u8> {
        if !self.kept && self.written == self.flat.len() && self.queue.is_empty() {
            self.flat.clear();
            self.written = 0;
        }
        &mut self.flat
    }

    /// Appends `bytes`, copied if they are short.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= COPIED {
            self.flat().extend_from_slice(&bytes);
        } else {
            self.queued += bytes.len();
            let behind = self.flat().len();
            self.queue.push_back((behind, bytes));
        }
    }

    /// The number of unwritten bytes.
    pub fn left(&self) -> usize {
        self.flat.len() - self.written + self.queued
    }

    /// Whether everything has been written and flushed.
    pub fn is_done(&self) -> bool {
        self.left() == 0 && !self.unflushed
    }

    /// Whether no byte of a kept message has been written.
    pub const fn is_untouched(&self) -> bool {
        self.kept && self.written == 0
    }

    /// Rewinds to [`Output::begin`], to write the message again. This works only for copied bytes
    /// of a kept message; returns whether it did.
    pub fn rewind(&mut self) -> bool {
        if self.kept && self.queue.is_empty() {
            self.written = 0;
        }
        self.kept && self.queue.is_empty()
    }

    /// Fills `slices` with the next bytes to write; returns the number of slices.
    pub fn slices<'s>(&'s self, slices: &mut [IoSlice<'s>; SLICES]) -> usize {
        let (mut count, mut at, mut whole) = (0, self.written, true);
        for (behind, bytes) in &self.queue {
            if count + 2 > SLICES {
                whole = false;
                break;
            }
            if *behind > at {
                slices[count] = IoSlice::new(&self.flat[at..*behind]);
                count += 1;
                at = *behind;
            }
            slices[count] = IoSlice::new(bytes);
            count += 1;
        }
        if whole && count < SLICES && at < self.flat.len() {
            slices[count] = IoSlice::new(&self.flat[at..]);
            count += 1;
        }
        count
    }

    /// The bytes to write, if they are one slice.
    pub fn single(&self) -> Option<&[u8]> {
        self.queue.is_empty().then(|| &self.flat[self.written..])
    }

    /// Records that the transport has been flushed.
    pub const fn flushed(&mut self) {
        self.unflushed = false;
    }

    /// Whether the transport may hold back bytes that it accepted.
    pub const fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Records that the transport accepted `wrote` bytes of [`Output::slices`].
    pub fn wrote(&mut self, wrote: usize) {
        self.unflushed = true;
        let mut left = wrote;
        while left > 0 {
            let until = self.queue.front().map_or(self.flat.len(), |first| first.0);
            let flat = left.min(until - self.written);
            self.written += flat;
            left -= flat;
            if let Some((_, bytes)) = self.queue.front_mut()
                && left > 0
            {
                let piece = left.min(bytes.len());
                bytes::Buf::advance(bytes, piece);
                self.queued -= piece;
                left -= piece;
                if bytes.is_empty() {
                    self.queue.pop_front();
                }
            } else if flat == 0 {
                debug_assert!(left == 0, "no socket writes more than it was given");
                break;
            }
        }
        // Otherwise the chunk sizes and short pieces of a long body would accumulate.
        if !self.kept && self.written >= PILE {
            self.flat.drain(..self.written);
            for (behind, _) in &mut self.queue {
                *behind -= self.written;
            }
            self.written = 0;
        }
    }

    /// The size of its memory in bytes, without the long pieces themselves.
    pub fn memory(&self) -> usize {
        self.flat.capacity() + self.queue.capacity() * size_of::<(usize, Bytes)>()
    }

    /// Frees its memory; everything must be written.
    pub fn release(&mut self) {
        if self.left() == 0 {
            *self = Self::default();
        }
    }
}

/// Pieces up to this size are cheaper to copy than to write as another slice.
pub const COPIED: usize = 2 * 1024;
/// The number of slices of one write.
pub const SLICES: usize = 32;
/// The number of written bytes that are kept before they are removed.
const PILE: usize = 8 * 1024;
