//! The counters of one worker. Only that worker writes them, so that an add needs no lock prefix
//! and causes no contention on a cache line; a scrape reads them from another thread.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::codes::{CODES, code_index};
use super::histogram::{Histogram, OVERHEAD_BOUNDS, REQUEST_BOUNDS};
use super::slab::Slab;
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

    /// Counts a request that limits of this route refused and a later target of it took.
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

    /// Counts a missing response of an upstream, with the reason (a fixed word).
    pub fn upstream_failed(&self, upstream: UpstreamSlot, reason: &'static str) {
        self.cells.upstreams.at(upstream.0).failures.count(reason);
    }

    /// Counts a response of the gateway in place of an upstream, with the reason (a fixed word).
    pub fn rejected(&self, reason: &'static str) {
        self.cells.rejections.count(reason);
    }

    /// Counts input that could not be parsed as a request, or broke off, with the reason (a fixed
    /// word).
    pub fn bad_request(&self, reason: &'static str) {
        self.cells.bad_requests.count(reason);
    }

    /// Counts an accepted connection.
    pub fn connection_opened(&self) {
        add(&self.cells.connections_opened, 1);
    }

    /// Counts a refused connection, with the reason (a fixed word).
    pub fn connection_refused(&self, reason: &'static str) {
        self.cells.connections_refused.count(reason);
    }

    /// Counts a failure of `accept`.
    pub fn accept_failed(&self) {
        add(&self.cells.accept_errors, 1);
    }

    /// Counts the bytes of bodies received from clients and sent to them.
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

/// The counters of a route.
#[derive(Debug, Default)]
pub(super) struct RouteCells {
    pub(super) responses: ResponseCells,
    pub(super) passed_on: AtomicU64,
}

/// The counters of an upstream.
#[derive(Debug, Default)]
pub(super) struct UpstreamCells {
    pub(super) responses: ResponseCells,
    pub(super) failures: ReasonCells,
}

/// The counters of responses, by status, and their durations.
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
        // There are more words than slots: the last slot counts them, so that the sum stays
        // correct.
        if let Some((_, cell)) = self.cells.last() {
            add(cell, count);
        }
    }

    /// Calls `with` for every counted word.
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
