//! The counters of one worker. Only that worker writes them, so that an add needs no lock prefix
//! and causes no contention on a cache line; a scrape reads them from another thread.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::histogram::{Histogram, OVERHEAD_BOUNDS, REQUEST_BOUNDS};
use super::{Metrics, RouteSlot, UpstreamSlot};

/// The writing end of one worker's counters. It can be sent to another thread, but not shared.
#[derive(Debug)]
pub struct Worker {
    cells: Arc<WorkerCells>,
    metrics: Metrics,
    /// `Send` but not `Sync`, which guarantees that only one worker writes.
    alone: PhantomData<Cell<()>>,
}

impl Worker {
    pub(super) fn new(cells: Arc<WorkerCells>, metrics: Metrics) -> Self {
        Self {
            cells,
            metrics,
            alone: PhantomData,
        }
    }

    /// Counts a request on this route, with the status of its response and its duration of `micros`
    /// microseconds.
    pub fn finished(&self, route: RouteSlot, status: u16, micros: u64) {
        let cells = self.cells.routes.at(route.0);
        cells.responses.count(status, micros);
    }

    pub fn passed_on(&self, route: RouteSlot) {
        add(&self.cells.routes.at(route.0).passed_on, 1);
    }

    /// Counts the gateway's own part of a request, `micros` microseconds.
    pub fn overhead(&self, micros: u64) {
        self.cells.overhead.observe_alone(micros);
    }

    /// Counts an upstream's response with this status, `micros` microseconds after the request was
    /// sent to it.
    pub fn upstream(&self, upstream: UpstreamSlot, status: u16, micros: u64) {
        let cells = self.cells.upstreams.at(upstream.0);
        cells.responses.count(status, micros);
    }

    /// The reason is a fixed word.
    pub fn upstream_failed(&self, upstream: UpstreamSlot, reason: &'static str) {
        self.cells.upstreams.at(upstream.0).failures.count(reason);
    }

    pub fn rejected(&self, reason: &'static str) {
        self.cells.rejections.count(reason);
    }

    /// Counts input that could not be parsed as a request, or broke off.
    pub fn bad_request(&self, reason: &'static str) {
        self.cells.bad_requests.count(reason);
    }

    pub fn connection_opened(&self) {
        add(&self.cells.connections_opened, 1);
    }

    pub fn connection_refused(&self, reason: &'static str) {
        self.cells.connections_refused.count(reason);
    }

    pub fn accept_failed(&self) {
        add(&self.cells.accept_errors, 1);
    }

    pub fn bytes(&self, received: u64, sent: u64) {
        add(&self.cells.received_bytes, received);
        add(&self.cells.sent_bytes, sent);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.metrics.retire(&self.cells);
    }
}

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WorkerCells {
    pub(super) routes: Slab<RouteCells>,
    pub(super) upstreams: Slab<UpstreamCells>,
    pub(super) overhead: Histogram<14>,
    pub(super) rejections: ReasonCells,
    pub(super) bad_requests: ReasonCells,
    pub(super) connections_refused: ReasonCells,
    pub(super) connections_opened: AtomicU64,
    pub(super) accept_errors: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
}

impl Default for WorkerCells {
    fn default() -> Self {
        Self {
            routes: Slab::default(),
            upstreams: Slab::default(),
            overhead: Histogram::new(OVERHEAD_BOUNDS),
            rejections: ReasonCells::default(),
            bad_requests: ReasonCells::default(),
            connections_refused: ReasonCells::default(),
            connections_opened: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }
}

impl WorkerCells {
    /// Adds another's counts to these. The registry's lock serialises the calls.
    pub(super) fn absorb(&self, other: &Self) {
        other.routes.each(|slot, theirs| {
            let mine = self.routes.at(slot);
            mine.responses.absorb(&theirs.responses);
            add(&mine.passed_on, theirs.passed_on.load(Ordering::Relaxed));
        });
        other.upstreams.each(|slot, theirs| {
            let mine = self.upstreams.at(slot);
            mine.responses.absorb(&theirs.responses);
            mine.failures.absorb(&theirs.failures);
        });
        self.overhead.absorb(&other.overhead);
        self.rejections.absorb(&other.rejections);
        self.bad_requests.absorb(&other.bad_requests);
        self.connections_refused.absorb(&other.connections_refused);
        for (mine, theirs) in [
            (&self.connections_opened, &other.connections_opened),
            (&self.accept_errors, &other.accept_errors),
            (&self.received_bytes, &other.received_bytes),
            (&self.sent_bytes, &other.sent_bytes),
        ] {
            add(mine, theirs.load(Ordering::Relaxed));
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct RouteCells {
    pub(super) responses: ResponseCells,
    pub(super) passed_on: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct UpstreamCells {
    pub(super) responses: ResponseCells,
    pub(super) failures: ReasonCells,
}

#[derive(Debug)]
pub(super) struct ResponseCells {
    pub(super) codes: [AtomicU64; CODES],
    pub(super) duration: Histogram<15>,
}

impl Default for ResponseCells {
    fn default() -> Self {
        Self {
            codes: [const { AtomicU64::new(0) }; CODES],
            duration: Histogram::new(REQUEST_BOUNDS),
        }
    }
}

impl ResponseCells {
    fn count(&self, status: u16, micros: u64) {
        add(&self.codes[code_index(status)], 1);
        self.duration.observe_alone(micros);
    }

    fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.codes.iter().zip(&other.codes) {
            add(mine, theirs.load(Ordering::Relaxed));
        }
        self.duration.absorb(&other.duration);
    }
}

/// Counters by a fixed word, found by linear search; for rare events only.
#[derive(Debug)]
pub(super) struct ReasonCells {
    cells: [(OnceLock<&'static str>, AtomicU64); REASONS_MAX],
}

impl Default for ReasonCells {
    fn default() -> Self {
        Self {
            cells: [const { (OnceLock::new(), AtomicU64::new(0)) }; REASONS_MAX],
        }
    }
}

impl ReasonCells {
    fn count(&self, reason: &'static str) {
        self.add(reason, 1);
    }

    fn add(&self, reason: &'static str, count: u64) {
        for (word, cell) in &self.cells {
            if *word.get_or_init(|| reason) == reason {
                return add(cell, count);
            }
        }
        // There are more words than slots: the last slot counts the others.
        if let Some((_, cell)) = self.cells.last() {
            add(cell, count);
        }
    }

    pub(super) fn each(&self, mut with: impl FnMut(&'static str, u64)) {
        for (word, cell) in &self.cells {
            if let Some(word) = word.get() {
                with(word, cell.load(Ordering::Relaxed));
            }
        }
    }

    fn absorb(&self, other: &Self) {
        other.each(|word, count| self.add(word, count));
    }
}

/// Adds if no other thread writes: a load and a store, without a lock prefix.
#[inline]
pub(super) fn add(cell: &AtomicU64, count: u64) {
    cell.store(
        cell.load(Ordering::Relaxed).wrapping_add(count),
        Ordering::Relaxed,
    );
}

/// The number of fixed words of one kind; there are about thirty.
const REASONS_MAX: usize = 48;

/// Counters by slot, allocated in chunks on first use: unused names cost nothing.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Box<[OnceLock<Box<Chunk<T>>>]>,
}

/// Aligned to two cache lines (the prefetcher loads pairs), which no other worker shares.
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

const CHUNK: usize = 16;

/// The counter of a status: its own if it is registered with IANA (or is 499, for a client that
/// left), otherwise that of its class.
pub(super) fn code_index(status: u16) -> usize {
    let class = || KNOWN_CODES.len() + usize::from(status / 100).min(5);
    KNOWN_CODES
        .binary_search(&status)
        .unwrap_or_else(|_| class())
}

pub(super) fn code_label(index: usize) -> String {
    match KNOWN_CODES.get(index) {
        Some(code) => code.to_string(),
        None => format!("{}xx", index - KNOWN_CODES.len()),
    }
}

/// One per known code and one per class, 0 to 5 (0: no status).
pub(super) const CODES: usize = KNOWN_CODES.len() + 6;

/// The known codes in ascending order.
const KNOWN_CODES: [u16; 64] = [
    100, 101, 103, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305,
    307, 308, 400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416,
    417, 418, 421, 422, 423, 424, 425, 426, 428, 429, 431, 451, 499, 500, 501, 502, 503, 504, 505,
    506, 507, 508, 510, 511, 520, 529,
];
