//! Zeroed memory for packed tables, aligned to cache lines and given by the system only as it is touched.

use std::sync::atomic::AtomicU64;

use super::set::{Set, WORDS};

/// A fixed number of sets.
///
/// The allocator is asked for zeroed memory of ordinary alignment, which it takes from the system untouched; asked for
/// 64-byte alignment it would clear the pages itself and so occupy all of them at once. Hence a few spare words and an
/// offset.
#[derive(Debug)]
pub(crate) struct Sets {
    words: Box<[AtomicU64]>,
    offset: usize,
    count: usize,
}

impl Sets {
    pub(crate) fn new(count: usize) -> Self {
        let words = zeroed(count * WORDS + WORDS - 1);
        let offset = words.as_ptr().align_offset(size_of::<[AtomicU64; WORDS]>());
        // `align_offset` may refuse to answer; unaligned sets straddle lines but work.
        Self { words, offset: if offset < WORDS { offset } else { 0 }, count }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Set<'_, AtomicU64> {
        let (sets, _) = self.words[self.offset..].as_chunks::<WORDS>();
        Set::new(&sets[index])
    }
}

/// Zeroed words that the system provides when they are first written.
pub(crate) fn zeroed(words: usize) -> Box<[AtomicU64]> {
    bytemuck::zeroed_slice_box(words)
}
