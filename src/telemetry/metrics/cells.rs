//! The counters of one worker. Only that worker writes them, so that an add needs no lock prefix and no line of
//! memory is fought over; a scrape reads them from another thread.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::histogram::{Histogram, OVERHEAD_BOUNDS, REQUEST_BOUNDS};
use super::{LimitSlot, Metrics, RouteSlot, UpstreamSlot};

/// What came of one limit for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its bucket paid.
    Allow,
    /// Its bucket could not pay, and the request was refused.
    Deny,
    /// Its bucket could not pay, but its refusals only count.
    ShadowDeny,
    /// The caller is exempt: the bucket was not asked.
    Bypass,
    /// The store was down and the limit admits then.
    FailOpen,
    /// The store was down and the limit refuses then.
    FailClosed,
    /// The store was down and this gateway's share admitted.
    LocalShare,
}

impl Outcome {
    /// Every outcome, in the order of their counters.
    pub const ALL: [Self; 7] =
        [Self::Allow, Self::Deny, Self::ShadowDeny, Self::Bypass, Self::FailOpen, Self::FailClosed, Self::LocalShare];

    /// The word of the `outcome` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
            Self::Bypass => "bypass",
            Self::FailOpen => "fail_open",
            Self::FailClosed => "fail_closed",
            Self::LocalShare => "local_share",
        }
    }
}

/// The counting end of one worker's counters. It stays on one thread: it can be sent, not shared.
#[derive(Debug)]
pub struct Worker {
    cells: Arc<WorkerCells>,
    metrics: Metrics,
    /// `Send` but not `Sync`: what makes "only that worker writes" a fact.
    alone: PhantomData<Cell<()>>,
}

impl Worker {
    pub(super) fn new(cells: Arc<WorkerCells>, metrics: Metrics) -> Self {
        Self { cells, metrics, alone: PhantomData }
    }

    /// A request on this route was answered with this status after `micros` microseconds.
    pub fn finished(&self, route: RouteSlot, status: u16, micros: u64) {
        let cells = self.cells.routes.at(route.0);
        add(&cells.codes[code_index(status)], 1);
        cells.duration.observe_alone(micros);
    }

    /// The gateway's own part of a request took `micros` microseconds.
    pub fn overhead(&self, micros: u64) {
        self.cells.overhead.observe_alone(micros);
    }

    /// What came of one limit for one request.
    pub fn decision(&self, limit: LimitSlot, outcome: Outcome) {
        add(&self.cells.limits.at(limit.0).outcomes[outcome as usize], 1);
    }

    /// What a limit and its candidate each said of one request.
    pub fn candidate(&self, limit: LimitSlot, live_allows: bool, candidate_allows: bool) {
        let index = usize::from(!live_allows) * 2 + usize::from(!candidate_allows);
        add(&self.cells.limits.at(limit.0).agreement[index], 1);
    }

    /// An upstream answered with this status, `micros` microseconds after the request was handed to it.
    pub fn upstream(&self, upstream: UpstreamSlot, status: u16, micros: u64) {
        let cells = self.cells.upstreams.at(upstream.0);
        add(&cells.codes[code_index(status)], 1);
        cells.duration.observe_alone(micros);
    }

    /// An upstream did not answer, for this reason (a fixed word).
    pub fn upstream_failed(&self, upstream: UpstreamSlot, reason: &'static str) {
        self.cells.upstreams.at(upstream.0).failures.count(reason);
    }

    /// The gateway itself answered in place of an upstream, for this reason (a fixed word).
    pub fn rejected(&self, reason: &'static str) {
        self.cells.rejections.count(reason);
    }

    /// What a stranger sent could not be read as a request, or broke off, for this reason (a fixed word).
    pub fn bad_request(&self, reason: &'static str) {
        self.cells.bad_requests.count(reason);
    }

    /// A connection was accepted.
    pub fn connection_opened(&self) {
        add(&self.cells.connections_opened, 1);
    }

    /// A connection that was accepted is closed.
    pub fn connection_closed(&self) {
        add(&self.cells.connections_closed, 1);
    }

    /// A connection was turned away, for this reason (a fixed word).
    pub fn connection_refused(&self, reason: &'static str) {
        self.cells.connections_refused.count(reason);
    }

    /// `accept` failed.
    pub fn accept_failed(&self) {
        add(&self.cells.accept_errors, 1);
    }

    /// Bytes of bodies that came in from callers and went out to them.
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

/// One worker's counters.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WorkerCells {
    pub(super) routes: Slab<RouteCells>,
    pub(super) limits: Slab<LimitCells>,
    pub(super) upstreams: Slab<UpstreamCells>,
    pub(super) overhead: Histogram<14>,
    pub(super) rejections: ReasonCells,
    pub(super) bad_requests: ReasonCells,
    pub(super) connections_refused: ReasonCells,
    pub(super) connections_opened: AtomicU64,
    pub(super) connections_closed: AtomicU64,
    pub(super) accept_errors: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
}

impl Default for WorkerCells {
    fn default() -> Self {
        Self {
            routes: Slab::default(),
            limits: Slab::default(),
            upstreams: Slab::default(),
            overhead: Histogram::new(OVERHEAD_BOUNDS),
            rejections: ReasonCells::default(),
            bad_requests: ReasonCells::default(),
            connections_refused: ReasonCells::default(),
            connections_opened: AtomicU64::new(0),
            connections_closed: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }
}

impl WorkerCells {
    /// Adds another's counts to these. Callers take turns (the registry's lock).
    pub(super) fn absorb(&self, other: &Self) {
        other.routes.each(|slot, theirs| {
            let mine = self.routes.at(slot);
            absorb_all(&mine.codes, &theirs.codes);
            mine.duration.absorb(&theirs.duration);
        });
        other.limits.each(|slot, theirs| {
            let mine = self.limits.at(slot);
            absorb_all(&mine.outcomes, &theirs.outcomes);
            absorb_all(&mine.agreement, &theirs.agreement);
        });
        other.upstreams.each(|slot, theirs| {
            let mine = self.upstreams.at(slot);
            absorb_all(&mine.codes, &theirs.codes);
            mine.duration.absorb(&theirs.duration);
            mine.failures.absorb(&theirs.failures);
        });
        self.overhead.absorb(&other.overhead);
        self.rejections.absorb(&other.rejections);
        self.bad_requests.absorb(&other.bad_requests);
        self.connections_refused.absorb(&other.connections_refused);
        for (mine, theirs) in [
            (&self.connections_opened, &other.connections_opened),
            (&self.connections_closed, &other.connections_closed),
            (&self.accept_errors, &other.accept_errors),
            (&self.received_bytes, &other.received_bytes),
            (&self.sent_bytes, &other.sent_bytes),
        ] {
            add(mine, theirs.load(Ordering::Relaxed));
        }
    }
}

/// What is counted per route.
#[derive(Debug)]
pub(super) struct RouteCells {
    pub(super) codes: [AtomicU64; CODES],
    pub(super) duration: Histogram<15>,
}

/// What is counted per limit.
#[derive(Debug, Default)]
pub(super) struct LimitCells {
    pub(super) outcomes: [AtomicU64; Outcome::ALL.len()],
    /// Both allow, only the candidate refuses, only the live one refuses, both refuse.
    pub(super) agreement: [AtomicU64; 4],
}

/// What is counted per upstream.
#[derive(Debug)]
pub(super) struct UpstreamCells {
    pub(super) codes: [AtomicU64; CODES],
    pub(super) duration: Histogram<15>,
    pub(super) failures: ReasonCells,
}

impl Default for RouteCells {
    fn default() -> Self {
        Self { codes: [const { AtomicU64::new(0) }; CODES], duration: Histogram::new(REQUEST_BOUNDS) }
    }
}

impl Default for UpstreamCells {
    fn default() -> Self {
        Self {
            codes: [const { AtomicU64::new(0) }; CODES],
            duration: Histogram::new(REQUEST_BOUNDS),
            failures: ReasonCells::default(),
        }
    }
}

/// Counters by slot, made in chunks when first touched, so that thousands of names cost nothing until they are used.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Box<[OnceLock<Box<Chunk<T>>>]>,
}

/// Aligned to two cache lines (the prefetcher takes pairs): no chunk shares one with another worker's.
#[derive(Debug)]
#[repr(align(128))]
struct Chunk<T>([T; CHUNK]);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: (0..SLOTS_MAX / CHUNK).map(|_| OnceLock::new()).collect() }
    }
}

impl<T: Default> Slab<T> {
    pub(super) fn at(&self, slot: u32) -> &T {
        let slot = slot as usize;
        let chunk = &self.chunks[(slot / CHUNK) % (SLOTS_MAX / CHUNK)];
        let chunk = chunk.get_or_init(|| Box::new(Chunk(std::array::from_fn(|_| T::default()))));
        &chunk.0[slot % CHUNK]
    }

    /// Calls `with` on every slot of every chunk that was touched.
    pub(super) fn each(&self, mut with: impl FnMut(u32, &T)) {
        let mut slot = 0;
        for chunk in &self.chunks {
            match chunk.get() {
                Some(chunk) => {
                    for cells in &chunk.0 {
                        with(slot, cells);
                        slot += 1;
                    }
                }
                None => slot += CHUNK as u32,
            }
        }
    }
}

/// Counters by a fixed word. Rare events only: the word is looked for from the front.
#[derive(Debug)]
pub(super) struct ReasonCells {
    cells: [(OnceLock<&'static str>, AtomicU64); REASONS_MAX],
}

impl Default for ReasonCells {
    fn default() -> Self {
        Self { cells: [const { (OnceLock::new(), AtomicU64::new(0)) }; REASONS_MAX] }
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
        // More words than there is room for: the last one takes them, so that the sum stays right.
        if let Some((_, cell)) = self.cells.last() {
            add(cell, count);
        }
    }

    /// Every word that was counted.
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

/// Adds where nobody else does: a load and a store, no lock prefix.
#[inline]
pub(super) fn add(cell: &AtomicU64, count: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

fn absorb_all(mine: &[AtomicU64], theirs: &[AtomicU64]) {
    for (mine, theirs) in mine.iter().zip(theirs) {
        add(mine, theirs.load(Ordering::Relaxed));
    }
}

/// The counter of a status: its own when it is registered with IANA (and 499, a caller that went away), else its
/// class's.
fn code_index(status: u16) -> usize {
    CODE_INDEX.get(usize::from(status)).copied().map_or(CODES - 1, usize::from)
}

/// The `code` label of a counter.
pub(super) fn code_label(index: usize) -> String {
    match KNOWN_CODES.get(index) {
        Some(code) => code.to_string(),
        None => format!("{}xx", index - KNOWN_CODES.len()),
    }
}

const CODE_INDEX: [u8; 600] = {
    let mut table = [0; 600];
    let mut status = 0;
    while status < table.len() {
        // The class, until a code of its own is found.
        let mut index = KNOWN_CODES.len() + status / 100;
        let mut known = 0;
        while known < KNOWN_CODES.len() {
            if KNOWN_CODES[known] as usize == status {
                index = known;
            }
            known += 1;
        }
        assert!(index < 256);
        #[expect(clippy::cast_possible_truncation, reason = "checked in the line above")]
        {
            table[status] = index as u8;
        }
        status += 1;
    }
    table
};

/// One per known code and one per class, 0 to 5 (0: no status at all).
pub(super) const CODES: usize = KNOWN_CODES.len() + 6;

const KNOWN_CODES: [u16; 64] = [
    100, 101, 103, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 307, 308, 400, 401,
    402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425, 426,
    428, 429, 431, 451, 499, 500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511, 520, 529,
];

/// Names of one kind that get counters of their own; later ones count as `_other`.
pub(super) const SLOTS_MAX: usize = 16_384;

/// Slots made at once.
const CHUNK: usize = 16;

/// Fixed words of one kind; there are about thirty.
const REASONS_MAX: usize = 48;
