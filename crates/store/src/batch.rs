//! Coalesces calls: requests that arrive while a call is in flight go in the next one.
//!
//! Requests on any worker put their claims on a queue and await a response. A *lane* (one
//! connection, one call in flight, on the store's thread) takes everything in the queue, merges
//! equal requests, sends one call and distributes the results. No timer delays a request: a single
//! request leaves immediately.
//!
//! **Exact.** The server decides each request at the moment of the call, and returns each bucket's
//! state *before* the call and how many of each group of equal requests it granted. The results are
//! then computed here by replaying the pure core on those states, so that the specification and not
//! a translation of it produces them. If the server granted a different number than the core would,
//! this is counted, and the server is believed only if it granted fewer.
//!
//! **In time.** Every request has a deadline and gets a result by then, whatever the server does.
//! The charge of a request that may have been made is never sent twice; what the server turns out
//! to have drawn for a request that was refused, or whose caller is gone, is given back
//! ([`unanswered`]). Corrections that got no response are in [`receipt`].

mod assemble;
mod attempts;
mod counters;
mod deliver;
pub(crate) mod documents;
mod flight;
mod lane;
mod outages;
mod owed;
mod places;
mod queue;
mod receipt;
mod replicas;
pub(crate) mod servers;
mod shared;
mod trouble;
mod unanswered;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

pub use self::counters::{Counters, Health, LeaseCounters};
pub(crate) use self::deliver::decide;
pub(crate) use self::documents::{NewDocument, Origin, StoredDocument};
#[cfg(any(test, feature = "redis"))]
pub(crate) use self::flight::STRAGGLES;
pub(crate) use self::lane::{lane, start};
pub(crate) use self::outages::Outages;
pub(crate) use self::receipt::Receipt;
pub(crate) use self::servers::Servers;
pub(crate) use self::shared::{LaneState, ServerPart};
pub(crate) use self::trouble::{Obstacle, Trouble};
pub(crate) use self::unanswered::Unanswered;
use super::StoreError;
use super::wire_form::{Name, StoredState, WireForm};
use tollgate_limit::lease::{Request, Return};
use tollgate_limit::{Change, Corrects, Draw, Timestamp};

/// Requests in one call: a few times the largest useful number. The rest wait for the next call.
pub(crate) const ASKS_MAX: usize = 1024;
/// Different requests (groups) in one call: limits the time a script occupies the server.
pub(crate) const GROUPS_MAX: usize = 256;
pub(crate) const CORRECTIONS_MAX: usize = 256;
/// Requests and corrections that may wait for a call. Above this number requests fail.
pub(crate) const QUEUE_MAX: usize = 65_536;

/// One bucket a queued request draws from.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

pub(crate) type Wants = SmallVec<[Wanted; 2]>;

#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) wants: Wants,
    pub(crate) peek: bool,
    pub(crate) deadline: Timestamp,
    pub(crate) reply: Option<oneshot::Sender<Reply>>,
    /// Set once the request has been told that it gets no answer in time.
    pub(crate) unanswered: Option<Arc<Unanswered>>,
    /// How often its call was made over a connection that had ended.
    pub(crate) repeats: u8,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) outcome: Result<Draw, StoreError>,
    /// What was drawn, to be given back if nobody takes it.
    pub(crate) wants: Wants,
    /// Of a draw that the store may have made.
    pub(crate) unanswered: Option<Arc<Unanswered>>,
}

impl From<Result<Draw, StoreError>> for Reply {
    fn from(outcome: Result<Draw, StoreError>) -> Self {
        Self {
            outcome,
            wants: Wants::new(),
            unanswered: None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Correction {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(crate) adjust: Adjust,
}

impl Correction {
    pub(crate) fn of(name: Name, shape: Arc<WireForm>, adjust: Adjust) -> Self {
        Self {
            name,
            shape,
            adjust,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjust {
    Change(Change, Corrects),
    /// A heartbeat: this gateway holds this many places of a concurrency limit.
    Hold(u64),
}

impl Adjust {
    /// Its number in scripts, its units, and the end of the window that they are of (or zero).
    pub(crate) fn numbers(self) -> (i64, u64, Timestamp) {
        let (what, units) = match self {
            Self::Hold(units) => (4, units),
            Self::Change(change, _) => match change {
                Change::Charge { more } => (1, more),
                Change::Refund { units } | Change::Withdraw { units, .. } => (2, units),
                Change::Release { units } => (3, units),
                Change::RefundWithin { units, window_end } => return (6, units, window_end),
            },
        };
        (what, units, Timestamp::default())
    }

    /// The draw to which it returns units; only these depend on resets.
    pub(crate) fn corrects(self) -> Corrects {
        match self {
            Self::Change(Change::Charge { .. } | Change::Release { .. }, _) | Self::Hold(_) => {
                Corrects::Any
            }
            Self::Change(_, corrects) => corrects,
        }
    }
}

/// The place of `one` among those that are known, and whether it is new: then it is added.
pub(crate) fn place_among<T: PartialEq>(known: &mut Vec<T>, one: T) -> (usize, bool) {
    match known.iter().rposition(|known| *known == one) {
        Some(place) => (place, false),
        None => {
            known.push(one);
            (known.len() - 1, true)
        }
    }
}

/// Runs futures at once, and passes their results on as they end.
async fn each<F: Future>(futures: impl IntoIterator<Item = F>, mut ended: impl FnMut(F::Output)) {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        running.retain_mut(|future| match future.as_mut().poll(context) {
            Poll::Ready(output) => {
                ended(output);
                false
            }
            Poll::Pending => true,
        });
        if running.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// One call: distinct buckets, corrections to them, then requests, decided in this order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) buckets: Vec<(Name, Arc<WireForm>)>,
    pub(crate) corrections: Vec<(u32, Adjust)>,
    pub(crate) groups: Vec<Group>,
    /// Leases given back, applied before the corrections.
    pub(crate) returns: Vec<(u32, Return)>,
    /// Leases asked for, applied after the requests.
    pub(crate) leases: Vec<(u32, Request)>,
    /// Identifies its corrections if they are sent again.
    pub(crate) receipt: Receipt,
}

impl Batch {
    /// Whether it consists of requests alone, and has some.
    pub(crate) fn only_requests(&self) -> bool {
        !self.groups.is_empty()
            && self.corrections.is_empty()
            && self.leases.is_empty()
            && self.returns.is_empty()
    }

    /// Whether a correction depends on the last reset of its bucket, or resets it.
    pub(crate) fn concerns_resets(&self) -> bool {
        let corrects = |(_, adjust): &(u32, Adjust)| adjust.corrects() != Corrects::Any;
        self.corrections.iter().any(corrects)
    }

    /// How many parts draw from each bucket.
    pub(crate) fn users(&self) -> Vec<u32> {
        let mut users = vec![0; self.buckets.len()];
        for part in self.groups.iter().flat_map(|group| &group.parts) {
            users[part.bucket as usize] += 1;
        }
        users
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) parts: SmallVec<[Part; 2]>,
    pub(crate) count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) bucket: u32,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) now: Timestamp,
    /// Each bucket's state after the corrections and before the requests; `None`: a full one.
    pub(crate) before: Vec<Option<StoredState>>,
    /// How many requests of each group were granted.
    pub(crate) granted: Vec<u32>,
    pub(crate) leased: Vec<u64>,
    /// Buckets that cannot be read: operations that need them fail, and nothing is drawn.
    pub(crate) unreadable: Vec<u32>,
}

impl Answer {
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

/// The connection method of a kind of server.
pub(crate) trait Link: 'static {
    type Connection: 'static;

    /// Connects, greets and checks that the server may be written to.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Obstacle>>;

    /// Sends one batch and reads its response. Dropped when no request waits for it any more.
    fn call(
        &self,
        connection: &Self::Connection,
        batch: &Batch,
    ) -> impl Future<Output = Result<Answer, Trouble>>;

    /// Waits until it is noticed that the connection has ended, while no call is in flight.
    fn ended(&self, _connection: &Self::Connection) -> impl Future<Output = ()> {
        std::future::pending()
    }

    /// The part of a bucket: buckets with different numbers must be in different calls (a cluster's
    /// slots). A single number means one call.
    fn part(&self, _name: &Name) -> u32 {
        0
    }

    /// The kind of a request: requests with different numbers should be in different calls, because
    /// one kind is faster to decide.
    fn lane_of(&self, _wants: &Wants) -> u32 {
        0
    }

    /// Whether a correction that met a conflict is sent again, after the requests of its call.
    fn sends_again(&self) -> bool {
        false
    }

    /// Whether another server may have taken the place of one that was silent.
    fn may_move(&self) -> bool {
        false
    }

    fn keeps_receipts(&self) -> bool {
        false
    }

    fn has_document(&self, _connection: &Self::Connection) -> bool {
        false
    }

    /// Writes `new`, unless another gateway was first, and reads an epoch that is not `known`.
    fn document(
        &self,
        _connection: &Self::Connection,
        _known: u64,
        _new: Option<&NewDocument>,
    ) -> impl Future<Output = Result<StoredDocument, Trouble>> {
        std::future::ready(Err(Trouble::Refused(
            "this kind of store keeps no document".to_owned(),
        )))
    }

    /// Notifies the users of the document ([`Documents::changed`](documents::Documents::changed)) of
    /// its changes, until the server cannot tell of them any more.
    fn listen(&self, _connection: &Self::Connection) -> impl Future<Output = ()> {
        std::future::pending()
    }

    /// Periodic work on an idle connection: heartbeats, which find the document's epoch, and sweeping.
    fn housekeep(&self, connection: &Self::Connection)
    -> impl Future<Output = Result<(), Trouble>>;

    fn housekeep_every(&self) -> Duration;
}

/// Delivers the outcome of a request for which nothing was drawn.
fn answer(mut ask: Ask, outcome: Result<Draw, StoreError>) {
    if let Some(reply) = ask.reply.take() {
        // A client that is gone needs no response.
        let _ = reply.send(outcome.into());
    }
}
