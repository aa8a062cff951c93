//! Which corrections of a failed call are sent again, when, and how a store recognises them.
//!
//! An SQL store writes the number of a call with corrections in the transaction that makes them. So
//! a call without a response is sent again with its number, and the store makes its corrections
//! once, whichever of the two reaches it. Redis keeps no such numbers: it executes a script that it
//! has received even when no gateway waits, so its corrections are never sent twice, and those
//! without a response are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{Adjust, Batch, CORRECTIONS_MAX, Correction, LaneState, Trouble};

/// How often a call without a response is sent again although the server refuses it.
const REFUSALS_MAX: u32 = 10;
/// The seconds between two warnings about units that may be wrong in the store.
const WARN_EVERY: u64 = 10;

/// How the store recognises the corrections of a call that is sent again.
#[derive(Debug, Default)]
pub(crate) struct Receipt {
    /// Greater than that of every earlier call of this gateway. Zero: the store keeps no receipts,
    /// or the call has no corrections.
    pub(crate) number: u64,
    /// Whether a commit of these corrections may be under way, or done.
    is_open: AtomicBool,
    made: AtomicBool,
    refusals: AtomicU32,
}

impl Receipt {
    /// The store's receipt is locked, and shows whether an earlier transaction `made` the corrections.
    /// If not, none will: it would still hold the lock.
    pub(crate) fn found(&self, made: bool) {
        self.made.store(made, Ordering::Relaxed);
        self.is_open.store(made, Ordering::Relaxed);
    }

    pub(crate) fn committing(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

impl Batch {
    /// The corrections that the store has not made yet.
    pub(crate) fn unmade_corrections(&self) -> &[(u32, Adjust)] {
        if self.receipt.made.load(Ordering::Relaxed) {
            &[]
        } else {
            &self.corrections
        }
    }

    /// Its corrections without heartbeats: the next one reports the places anew.
    fn into_corrections(self) -> Vec<Correction> {
        let corrections = self.corrections.into_iter();
        corrections
            .filter(|(_, adjust)| !matches!(adjust, Adjust::Hold(_)))
            .map(|(bucket, adjust)| {
                let (name, shape) = &self.buckets[bucket as usize];
                Correction::of(*name, Arc::clone(shape), adjust)
            })
            .collect()
    }
}

impl LaneState {
    pub(super) fn next_receipt(&self) -> u64 {
        self.receipts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The corrections of a call that failed, if the store has certainly made none of them.
    /// Otherwise the call is kept.
    pub(super) fn undone(&self, batch: Batch, trouble: &Trouble) -> Vec<Correction> {
        let certain = if batch.receipt.number > 0 {
            // An earlier call with this number may have made them.
            !batch.receipt.is_open.load(Ordering::Relaxed)
        } else {
            matches!(
                trouble,
                Trouble::Unfit(_) | Trouble::Refused(_) | Trouble::Moved(_)
            )
        };
        if certain {
            return batch.into_corrections();
        }
        let refused = matches!(trouble, Trouble::Refused(_) | Trouble::Corrupt(_));
        self.keep_unknown(batch, refused);
        Vec::new()
    }

    /// Keeps a call of which it is not known whether the store has made its corrections, to be sent
    /// again after the next heartbeat. Until then no other correction is sent.
    pub(super) fn keep_unknown(&self, mut batch: Batch, refused: bool) {
        // The next heartbeat reads the places anew.
        let corrections = &mut batch.corrections;
        corrections.retain(|(_, adjust)| !matches!(adjust, Adjust::Hold(_)));
        let count = batch.corrections.len();
        if count == 0 {
            return;
        }
        let refusals = &batch.receipt.refusals;
        let refusals = refusals.fetch_add(u32::from(refused), Ordering::Relaxed);
        let mut queue = self.queue.lock();
        let given_up = refusals >= REFUSALS_MAX || self.closed.load(Ordering::Relaxed);
        if batch.receipt.number == 0 || given_up || queue.unknown.is_some() {
            drop(queue);
            let counter = &self.counters.corrections_unconfirmed;
            counter.fetch_add(count as u64, Ordering::Relaxed);
            self.warn_of_lost("the store gave no response to them, and may have made them");
            return;
        }
        queue.unknown = Some(batch);
        queue.waits = true;
    }

    pub(super) fn keeps_unknown(&self) -> bool {
        self.queue.lock().unknown.is_some()
    }

    /// The call to be sent again, if it is time.
    pub(super) fn take_unknown(&self) -> Option<Batch> {
        let mut queue = self.queue.lock();
        if queue.waits && !self.closed.load(Ordering::Relaxed) {
            return None;
        }
        queue.unknown.take()
    }

    /// The corrections of a call were not made in time: the next calls are smaller.
    pub(super) fn corrections_late(&self) {
        let mut queue = self.queue.lock();
        queue.halvings = (queue.halvings + 1).min(CORRECTIONS_MAX.ilog2());
    }

    /// The corrections of a call were made: the next call may have more.
    pub(super) fn corrections_landed(&self) {
        let mut queue = self.queue.lock();
        queue.halvings = queue.halvings.saturating_sub(1);
    }

    pub(super) fn lose_corrections(&self, count: usize, why: &str) {
        if count > 0 {
            let counter = &self.counters.corrections_dropped;
            counter.fetch_add(count as u64, Ordering::Relaxed);
            self.warn_of_lost(why);
        }
    }

    pub(super) fn warn_of_lost(&self, why: &str) {
        let now = self.clock.now().as_micros() / 1_000_000;
        let last = self.warned.swap(now, Ordering::Relaxed);
        if now < last.saturating_add(WARN_EVERY) && last > 0 {
            self.warned.store(last, Ordering::Relaxed);
            return;
        }
        let counters = &self.counters;
        tracing::warn!(
            dropped = counters.corrections_dropped.load(Ordering::Relaxed),
            unconfirmed = counters.corrections_unconfirmed.load(Ordering::Relaxed),
            draws = counters.draws_unknown.load(Ordering::Relaxed),
            "the shared store may have charged another number of units: {why}"
        );
    }
}
