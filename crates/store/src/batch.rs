//! Coalescing: what arrived while the last call was out goes in the next one.
//!
//! A shared store is a thread of its own with a queue in front. Requests on any worker put their claims on the queue
//! and await an answer; a *lane* (one connection, one call in flight) takes whatever is there, merges equal requests,
//! sends one call and hands the answers back. There is no timer in the way of a request: alone, it leaves at once.
//! (Under load the next call waits for those who were just told and ask again: `gather`.)
//!
//! **Exact.** Each request's moment is the call's, which lies between its arrival and its answer, so the promises of
//! one decision per call hold unchanged. The server decides and writes; it returns how each bucket stood *before* and
//! how many of each group of equal requests it granted. The answers are then worked out here by replaying the pure
//! core on those states, so that what a caller is told is worded by the specification and not by a translation of
//! it; a server that granted something else than the core would is counted, and believed only where it granted less.
//!
//! **Answered in time.** Every request carries a deadline; whatever the server does, it is answered by then. A lost
//! reply counts as charged: a charge is never sent twice.

mod attempts;
mod counters;
mod deliver;
mod flight;
mod gather;
mod lane;
mod outages;
mod owed;
mod replicas;
pub(crate) mod servers;
mod shared;
#[cfg(test)]
mod tests;
mod turns;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

pub use self::counters::{Counters, Health};
pub(crate) use self::deliver::decide;
pub(crate) use self::flight::fly_alone;
pub(crate) use self::lane::{lane, start};
pub(crate) use self::outages::Outages;
pub(crate) use self::servers::Servers;
pub(crate) use self::shared::{ServerPart, Shared};
use super::StoreError;
use super::wire_form::{Name, StoredState, WireForm};
use tollgate_limit::lease::Wish;
use tollgate_limit::{Change, Draw, Timestamp};

/// Requests taken into one call. A few times the largest useful vector; the rest wait for the next call.
pub(crate) const ASKS_MAX: usize = 1024;
/// Different requests (groups) in one call: bounds the time a script may hold the server.
pub(crate) const GROUPS_MAX: usize = 256;
/// Corrections in one call.
pub(crate) const CORRECTIONS_MAX: usize = 256;
/// Requests and corrections that may wait for a call; beyond, requests are told the store is not available.
pub(crate) const QUEUE_MAX: usize = 65_536;

/// One bucket a queued request draws from.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

/// The claims of one request.
pub(crate) type Wants = SmallVec<[Wanted; 2]>;

/// One queued request.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) wants: Wants,
    /// Whether it only looks.
    pub(crate) peek: bool,
    pub(crate) deadline: Timestamp,
    pub(crate) reply: Option<oneshot::Sender<Result<Draw, StoreError>>>,
}

/// A correction on its way to the store.
#[derive(Clone, Debug)]
pub(crate) struct Correction {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(crate) adjust: Adjust,
}

/// What a correction does to its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjust {
    /// What the caller asked for.
    Change(Change),
    /// A heartbeat: this gateway holds so many places of a concurrency limit.
    Hold(u64),
}

impl Adjust {
    /// Its number in scripts and statements, and its units.
    pub(crate) fn numbers(self) -> (i64, u64) {
        match self {
            Self::Change(Change::Charge { more }) => (1, more),
            Self::Change(Change::Refund { units } | Change::Withdraw { units, .. }) => (2, units),
            Self::Change(Change::Release { units }) => (3, units),
            Self::Hold(units) => (4, units),
        }
    }
}

/// One call: distinct buckets, corrections to them, then requests, decided in this order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) buckets: Vec<(Name, Arc<WireForm>)>,
    pub(crate) corrections: Vec<(u32, Adjust)>,
    pub(crate) groups: Vec<Group>,
    /// Leases given back, before the corrections: bucket, id, units left.
    pub(crate) returns: Vec<(u32, u64, u64)>,
    /// Leases wished for, after the requests.
    pub(crate) wishes: Vec<(u32, Wish)>,
}

/// `count` equal requests.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) parts: SmallVec<[Part; 2]>,
    pub(crate) count: u32,
}

/// One claim of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) bucket: u32,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

/// What a server said of a batch.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its clock when it decided.
    pub(crate) now: Timestamp,
    /// How each bucket stood before the requests and after the corrections; `None`: it had none, which is a full one.
    pub(crate) before: Vec<Option<StoredState>>,
    /// How many requests of each group were granted.
    pub(crate) granted: Vec<u32>,
    /// How many units were leased to each wish.
    pub(crate) leased: Vec<u64>,
    /// Buckets that cannot be read: whatever needs one of them fails, and nothing was drawn for it.
    pub(crate) unreadable: Vec<u32>,
}

impl Answer {
    /// The answer to a batch of requests alone, all of whose buckets could be read.
    pub(crate) fn to_requests(
        now: Timestamp,
        before: Vec<Option<StoredState>>,
        granted: Vec<u32>,
    ) -> Self {
        Self {
            now,
            before,
            granted,
            leased: Vec::new(),
            unreadable: Vec::new(),
        }
    }
}

/// Why a call brought no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection is gone: connect anew. What the server has done is not known.
    Lost(String),
    /// The server has answered that it is not one to write to, and did nothing: connect anew.
    Unfit(String),
    /// The server answered with an error; the connection stands.
    Refused(String),
    /// The server answered what cannot be.
    Corrupt(String),
    /// The server has sent us to another one, and nothing was done: that says nothing of the first.
    Moved(String),
    /// The server has sent us to another one, which was asked and brought no answer: that says nothing of the first.
    Astray(String),
}

impl Trouble {
    /// Why, in words.
    pub(crate) fn into_words(self) -> String {
        match self {
            Self::Lost(words)
            | Self::Unfit(words)
            | Self::Refused(words)
            | Self::Corrupt(words)
            | Self::Moved(words)
            | Self::Astray(words) => words,
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) words: String,
    /// It does not go away by itself: credentials or a setting are wrong, and the server is not to be asked often.
    pub(crate) lasting: bool,
}

impl From<String> for Obstacle {
    fn from(words: String) -> Self {
        Self {
            words,
            lasting: false,
        }
    }
}

impl Obstacle {
    /// One that somebody has to remove.
    pub(crate) fn lasting(words: String) -> Self {
        Self {
            words,
            lasting: true,
        }
    }
}

/// A way for a request that is alone to call by itself, without the store's thread.
pub(crate) trait InPlace: std::fmt::Debug + Send + Sync {
    /// The call of `ask`, which is answered by it; the request itself where there can be none now.
    fn call<'c>(
        &'c self,
        shared: &'c Shared,
        ask: Ask,
    ) -> Result<Pin<Box<dyn Future<Output = ()> + Send + 'c>>, Ask>;
}

/// A way to a server.
pub(crate) trait Link: 'static {
    /// A live connection.
    type Connection: 'static;

    /// Connects, greets and checks that the server may be written to.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Obstacle>>;

    /// Sends one batch and reads its answer. Dropped when nobody waits for it any more.
    fn call(
        &self,
        connection: &Self::Connection,
        batch: &Batch,
    ) -> impl Future<Output = Result<Answer, Trouble>>;

    /// Buckets that must be in different calls (a cluster's slots). One number: one call.
    fn part(&self, _name: &Name) -> u32 {
        0
    }

    /// Requests that should be in different calls, as one kind is decided faster than the other.
    fn lane_of(&self, _wants: &Wants) -> u32 {
        0
    }

    /// Whether the next call may leave before those who wait for the last are told its answer.
    fn overlaps(&self) -> bool {
        false
    }

    /// Whether a request may be in a call beside another one; nothing that holds places may.
    fn goes_beside(&self, _wants: &Wants) -> bool {
        false
    }

    /// What is to be done now and then with an idle connection: heartbeats, sweeping.
    fn housekeep(&self, connection: &Self::Connection)
    -> impl Future<Output = Result<(), Trouble>>;

    /// The span between two such turns.
    fn housekeep_every(&self) -> Duration;
}

/// Tells an asker.
fn answer(mut ask: Ask, outcome: Result<Draw, StoreError>) {
    if let Some(reply) = ask.reply.take() {
        // A caller that has gone needs no answer; what it was granted stays charged, which errs on the strict side.
        let _ = reply.send(outcome);
    }
}
