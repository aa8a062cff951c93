//! What is to be written: short things copied one behind the other, long ones as they are.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

/// What is to be written, in its order: short things copied one behind the other, long ones as they are.
#[derive(Debug, Default)]
pub struct Output {
    flat: Vec<u8>,
    /// Bytes of `flat` that have been written.
    written: usize,
    /// What stands between two parts of `flat`: how much of that comes before it, and the bytes.
    queue: VecDeque<(usize, Bytes)>,
    /// Bytes of `queue` that are not written yet.
    queued: usize,
    /// What has been written is kept, to be written once more.
    kept: bool,
    /// The transport may hold back what it took.
    unflushed: bool,
}

impl Output {
    /// Without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a message, forgetting what was written. It is `kept` until the next begins: [`Output::rewind`].
    pub fn begin(&mut self, kept: bool) {
        self.flat.clear();
        self.queue.clear();
        (self.written, self.queued) = (0, 0);
        self.kept = kept;
    }

    /// Where the next bytes are written to that are to be copied.
    pub fn flat(&mut self) -> &mut Vec<u8> {
        if !self.kept && self.written == self.flat.len() && self.queue.is_empty() {
            self.flat.clear();
            self.written = 0;
        }
        &mut self.flat
    }

    /// Appends `bytes`, copied if they are few.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= COPIED {
            self.flat().extend_from_slice(&bytes);
        } else {
            self.queued += bytes.len();
            let behind = self.flat().len();
            self.queue.push_back((behind, bytes));
        }
    }

    /// Bytes not written yet.
    pub fn left(&self) -> usize {
        self.flat.len() - self.written + self.queued
    }

    /// Whether everything has been written, and the transport has sent it off.
    pub fn is_done(&self) -> bool {
        self.left() == 0 && !self.unflushed
    }

    /// Whether nothing of a message that is kept has been written.
    pub const fn is_untouched(&self) -> bool {
        self.kept && self.written == 0
    }

    /// Everything that was written since [`Output::begin`] is to be written once more. Only what was copied can be,
    /// and only if it was to be kept; whether that is so.
    pub fn rewind(&mut self) -> bool {
        if self.kept && self.queue.is_empty() {
            self.written = 0;
        }
        self.kept && self.queue.is_empty()
    }

    /// Fills `slices` with what is to be written next; how many it filled.
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

    /// What is to be written, if it is in one piece.
    pub fn single(&self) -> Option<&[u8]> {
        self.queue.is_empty().then(|| &self.flat[self.written..])
    }

    /// The transport has sent off what it took.
    pub const fn flushed(&mut self) {
        self.unflushed = false;
    }

    /// Whether the transport may hold back what it took.
    pub const fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// The transport took `wrote` bytes of [`Output::slices`].
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
        // A long body's chunk sizes and short pieces must not pile up behind it.
        if !self.kept && self.written >= PILE {
            self.flat.drain(..self.written);
            for (behind, _) in &mut self.queue {
                *behind -= self.written;
            }
            self.written = 0;
        }
    }

    /// Gives its memory back; to be called when everything is written.
    pub fn release(&mut self) {
        if self.left() == 0 {
            *self = Self::default();
        }
    }
}

/// Pieces this short are cheaper to copy than to write as one more slice.
pub const COPIED: usize = 2 * 1024;
/// Slices of one write.
pub const SLICES: usize = 32;
/// Bytes that are written and not forgotten yet.
const PILE: usize = 8 * 1024;
