//! Overrides of operators: for one key of a limit, and until a moment, other numbers, no limit, or a
//! block. Decides nothing; the limiter does.
//!
//! Those of shared limits are one document in the store, which all gateways watch: each obeys at once
//! where the store publishes changes, and otherwise with its next heartbeat. Those of limits in the
//! process are a file beside the state file, or only in memory where there is none. Every document is replaced as a whole, by compare-and-set.

mod change;
mod document;
mod files;
mod grant;
mod keeper;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_limit::{Limit, Placement, Timestamp};
use tollgate_store::clock::Clock;

pub(crate) use change::{Bucket, ChangeError, End, NewOverride};
pub use document::Setting;
pub(crate) use document::{Document, Entry, OVERRIDES_MAX, ours, theirs};

use files::{CacheFile, LocalFile};
pub(crate) use grant::{Grant, Granted};
use tollgate_gateway::Snapshot;

/// The overrides of a gateway. Clones share them.
#[derive(Clone)]
pub struct Overrides(Arc<Inner>);

struct Inner {
    current: Arc<arc_swap::ArcSwap<Snapshot>>,
    clock: Clock,
    file: Option<LocalFile>,
    /// The file of what the store told last.
    cache: Option<CacheFile>,
    known: Mutex<Documents>,
    /// Locked while a change of local overrides is written.
    writing: Mutex<()>,
    /// Locked while this gateway changes the store's document.
    changing: tokio::sync::Mutex<()>,
    /// Locked while a change is learnt and told, so that listeners hear of changes in their order.
    telling: Mutex<()>,
    listeners: Mutex<Vec<Listener>>,
    wake: tokio::sync::Notify,
}

type Listener = Box<dyn Fn(&Event) + Send + Sync>;

#[derive(Debug, Default)]
struct Documents {
    local: Document,
    shared: Document,
    /// By how much the store's clock is ahead of ours.
    ahead: i64,
}

/// A change of the overrides in force, wherever it was made.
#[derive(Clone, Debug)]
pub struct Event {
    /// Whether the override was set; otherwise it has ended.
    pub set: bool,
    /// Whether it ended because it was lifted.
    pub lifted: bool,
    pub one: InForce,
}

/// One override, with the moments by this gateway's clock.
#[derive(Clone, Debug)]
pub struct InForce {
    pub limit: String,
    pub placement: Placement,
    /// The bucket; `None`: another version's, which this one cannot read, or the block of a penalty.
    pub bucket: Option<u128>,
    pub key: String,
    pub name: String,
    pub setting: Setting,
    pub since: Timestamp,
    pub until: Timestamp,
    pub operator: String,
    pub reason: String,
    pub(crate) grants: Vec<Granted>,
}

impl Overrides {
    /// Calls `listener` with each change from now on. It must not wait.
    pub fn on_change(&self, listener: impl Fn(&Event) + Send + Sync + 'static) {
        self.0.listeners.lock().push(Box::new(listener));
    }

    /// The overrides that have not ended, in the order in which they were set.
    pub(crate) fn list(&self) -> Vec<InForce> {
        let (known, now) = (self.0.known.lock(), self.0.clock.now());
        known.ending(|until| until > now).collect()
    }

    pub(crate) fn find(&self, limit: &Limit, key: &[u8]) -> Option<InForce> {
        let bucket = self.0.current.load().limiter.bucket_hash(limit, key)?;
        let (known, now) = (self.0.known.lock(), self.0.clock.now());
        let document = known.of(limit.placement);
        let entry = document.find(&limit.name, bucket)?;
        let found = entry.by_our_clock(limit.placement, known.ahead_of(limit.placement));
        (found.until > now).then_some(found)
    }

    /// The document of those of limits in the process, for a process that takes over.
    pub(crate) fn handed_over(&self) -> String {
        self.0.known.lock().local.text()
    }

    /// The end that an override of a limit with this placement would have, by this gateway's clock.
    pub(crate) fn end(&self, placement: Placement, end: End) -> Timestamp {
        let ahead = self.0.known.lock().ahead_of(placement);
        match end {
            End::After(span) => self.0.clock.now().after(span),
            End::At(moment) => ours(moment, ahead),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.list().len()
    }
}

impl Documents {
    /// The overrides whose ends are as `when` wants them.
    fn ending(&self, when: impl Fn(Timestamp) -> bool + Copy) -> impl Iterator<Item = InForce> {
        PLACES.into_iter().flat_map(move |placement| {
            let ahead = self.ahead_of(placement);
            let entries = self.of(placement).overrides.iter();
            entries
                .filter(move |entry| when(ours(entry.until(), ahead)))
                .map(move |entry| entry.by_our_clock(placement, ahead))
        })
    }
}

/// The places of buckets, each with a document of its own.
const PLACES: [Placement; 2] = [Placement::Local, Placement::Shared];
