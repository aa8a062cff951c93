//! Counters, indexed by slot.

use std::sync::OnceLock;

/// Counters by slot, allocated in chunks on first use, so that thousands of unused names cost
/// nothing.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Box<[OnceLock<Box<Chunk<T>>>]>,
}

/// Aligned to two cache lines (the prefetcher loads pairs): no chunk shares one with another
/// worker's.
#[derive(Debug)]
#[repr(align(128))]
struct Chunk<T>([T; CHUNK]);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            chunks: (0..SLOTS_MAX / CHUNK).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl<T: Default> Slab<T> {
    pub(super) fn at(&self, slot: u32) -> &T {
        let slot = slot as usize;
        let chunk = &self.chunks[(slot / CHUNK) % (SLOTS_MAX / CHUNK)];
        let chunk = chunk.get_or_init(|| Box::new(Chunk(std::array::from_fn(|_| T::default()))));
        &chunk.0[slot % CHUNK]
    }

    /// Calls `with` for every slot of every allocated chunk.
    pub(super) fn each(&self, mut with: impl FnMut(u32, &T)) {
        let chunks = (0..).step_by(CHUNK).zip(&self.chunks);
        for (first, chunk) in chunks {
            let cells = chunk.get().map_or(&[][..], |chunk| &chunk.0);
            (first..)
                .zip(cells)
                .for_each(|(slot, cells)| with(slot, cells));
        }
    }
}

/// The number of names of one kind that have their own counters; later ones count as `_other`.
pub(super) const SLOTS_MAX: usize = 16_384;

/// The number of slots in a chunk.
const CHUNK: usize = 16;
