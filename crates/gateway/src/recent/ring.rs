//! The memory of each worker's requests: the oldest make room for new ones.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use tollgate_limit::KeyBytes;

#[derive(Debug, Default)]
pub(super) struct Rings {
    /// Bytes that all rings may take together; 0: nothing is recorded.
    pub(super) bytes: usize,
    pub(super) rings: Vec<Weak<Mutex<Ring>>>,
    /// Numbers of routes, limits and tiers by their words.
    pub(super) numbers: HashMap<Box<str>, u16>,
    /// The number of policies so far.
    pub(super) generation: u32,
}

/// The requests of one worker, in chunks: a reader takes the full ones without copying them.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) full: VecDeque<Arc<Vec<u64>>>,
    pub(super) open: Vec<u64>,
    /// Words of a chunk, and full chunks that are kept.
    chunk: usize,
    chunks: usize,
    /// Keys by their hash, each in the one place that its hash gives it.
    pub(super) keys: Vec<(u64, KeyBytes)>,
}

impl Rings {
    /// Empties every ring and divides the memory between them.
    pub(super) fn resize(&mut self) {
        self.rings.retain(|ring| ring.strong_count() > 0);
        let bytes = self.bytes / self.rings.len().max(1);
        for ring in self.rings.iter().filter_map(Weak::upgrade) {
            *ring.lock() = Ring::new(bytes);
        }
    }
}

impl Ring {
    /// A ring that takes at most `bytes`.
    pub(super) fn new(bytes: usize) -> Self {
        if bytes == 0 {
            return Self {
                full: VecDeque::new(),
                open: Vec::new(),
                chunk: 0,
                chunks: 0,
                keys: Vec::new(),
            };
        }
        let places = (bytes / 16 / size_of::<(u64, KeyBytes)>()).min(KEYS);
        let words = (bytes - places * size_of::<(u64, KeyBytes)>()) / size_of::<u64>();
        let chunk = (words / 8).min(CHUNK);
        Self {
            full: VecDeque::new(),
            open: Vec::with_capacity(chunk),
            chunk,
            chunks: (words / chunk.max(1)).saturating_sub(1),
            keys: vec![(0, KeyBytes::new()); places],
        }
    }

    pub(super) fn push(&mut self, request: &[u64]) {
        if self.open.len() + request.len() > self.chunk {
            if request.len() > self.chunk {
                return;
            }
            while self.full.len() >= self.chunks {
                self.full.pop_front();
            }
            let full = std::mem::replace(&mut self.open, Vec::with_capacity(self.chunk));
            self.full.push_back(Arc::new(full));
        }
        self.open.extend_from_slice(request);
    }

    /// Keeps a key beside its hash, so that a reader can name it.
    pub(super) fn name(&mut self, hash: u64, key: &KeyBytes) {
        let places = self.keys.len() as u64;
        if places == 0 || key.spilled() {
            return;
        }
        // A few keys per set, so that two keys seldom compete for one place.
        let sets = (places / WAYS as u64).max(1);
        let first = usize::try_from(hash % sets).unwrap_or(0) * WAYS;
        let end = self.keys.len().min(first + WAYS);
        let set = &mut self.keys[first..end];
        if set.iter().any(|(known, _)| *known == hash) {
            return;
        }
        let free = set.iter().position(|(known, _)| *known == 0);
        let replaced = usize::try_from(hash >> 32).unwrap_or(0) % set.len();
        set[free.unwrap_or(replaced)] = (hash, key.clone());
    }
}

/// Words of a chunk: 64 KiB.
const CHUNK: usize = 8 << 10;
/// Keys that a worker keeps to name callers.
const KEYS: usize = 1 << 10;
/// Keys of one set of that table.
const WAYS: usize = 8;
