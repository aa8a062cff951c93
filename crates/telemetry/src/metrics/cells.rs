//! The counters of one worker. Only that worker writes them, so that an add needs no lock prefix and no line of
//! memory is fought over; a scrape reads them from another thread.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::codes::{CODES, code_index};
use super::histogram::{Histogram, OVERHEAD_BOUNDS, REQUEST_BOUNDS};
use super::slab::Slab;
use super::{Metrics, RouteSlot, UpstreamSlot};

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
        Self {
            cells,
            metrics,
            alone: PhantomData,
        }
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
    /// Adds another's counts to these. Callers take turns (the registry's lock).
    pub(super) fn absorb(&self, other: &Self) {
        other.routes.each(|slot, theirs| {
            let mine = self.routes.at(slot);
            absorb_all(&mine.codes, &theirs.codes);
            mine.duration.absorb(&theirs.duration);
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

/// What is counted per upstream.
#[derive(Debug)]
pub(super) struct UpstreamCells {
    pub(super) codes: [AtomicU64; CODES],
    pub(super) duration: Histogram<15>,
    pub(super) failures: ReasonCells,
}

impl Default for RouteCells {
    fn default() -> Self {
        Self {
            codes: [const { AtomicU64::new(0) }; CODES],
            duration: Histogram::new(REQUEST_BOUNDS),
        }
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

/// Counters by a fixed word. Rare events only: the word is looked for from the front.
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
    cell.store(
        cell.load(Ordering::Relaxed).wrapping_add(count),
        Ordering::Relaxed,
    );
}

fn absorb_all(mine: &[AtomicU64], theirs: &[AtomicU64]) {
    for (mine, theirs) in mine.iter().zip(theirs) {
        add(mine, theirs.load(Ordering::Relaxed));
    }
}

/// Fixed words of one kind; there are about thirty.
const REASONS_MAX: usize = 48;
