//! Transfers local buckets to another process: they are frozen while they are sent, and the other
//! process decides about them from then on.
//!
//! While the buckets are frozen, draws wait and corrections are kept. Then both go to the successor
//! or, if there is none after all, to the local buckets. So every bucket has one owner at any time,
//! and the charges and refunds of this process's last requests are counted there. Only the end of
//! the successor's process makes this one the owner again: a request is refused while the successor
//! lives and does not say whether it grants.

mod received;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::watch;

use tollgate_limit::{
    Change, Claim, Conditions, Draw, KeyBytes, Limit, Settlement, Standing, Timestamp,
};
use tollgate_store::local::same_bucket;
use tollgate_store::{Backend, Store, StoreError};

use super::decision::Unavailable;
use super::two_stores::{NOT_ASKED, give_back};
use super::{Generation, Limiter};

/// The process that owns the buckets now.
pub trait Successor: Send + Sync + 'static {
    /// Whether it has the buckets of `limit`. Buckets of limits it does not know stay here.
    fn has(&self, limit: &Limit) -> bool;
    /// Draws every claim or none there.
    ///
    /// # Errors
    /// Whether the process has ended, or may still grant from the buckets.
    fn draw<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> Pin<Box<dyn Future<Output = Result<Draw, Undrawn>> + Send + 'a>>;
    /// Corrects an earlier grant there.
    fn settle(&self, settlement: &Settlement<'_>);
}

/// Why a successor has not said what it drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undrawn {
    /// Its process has ended: nobody else grants from the buckets.
    Ended,
    /// It has the buckets and may have charged the request, but gives no response that can be used.
    Silent,
}

/// The owner of the local buckets, shared by every generation of a limiter.
pub(super) struct Handover {
    /// True unless the owner is [`Owner::Here`]: a draw costs one atomic load.
    away: AtomicBool,
    owner: watch::Sender<Owner>,
    /// Corrections that arrived while the buckets were frozen.
    kept: Mutex<Vec<Kept>>,
}

#[derive(Clone)]
enum Owner {
    Here,
    Frozen,
    There(Arc<dyn Successor>),
}

struct Kept {
    limit: Arc<Limit>,
    key: KeyBytes,
    change: Change,
    /// The conditions of the grant that is refunded.
    conditions: Option<Conditions>,
}

impl Default for Handover {
    fn default() -> Self {
        Self {
            away: AtomicBool::new(false),
            owner: watch::Sender::new(Owner::Here),
            kept: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover")
            .field("away", &self.is_away())
            .finish_non_exhaustive()
    }
}

impl Handover {
    /// Whether a draw must first find out who owns the buckets.
    #[inline(always)]
    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    /// The owner of the buckets, once it is known; `None`: they are here.
    async fn successor(&self) -> Option<Arc<dyn Successor>> {
        let mut owner = self.owner.subscribe();
        let known = owner
            .wait_for(|owner| !matches!(owner, Owner::Frozen))
            .await
            .map(|owner| owner.clone());
        match known {
            Ok(Owner::There(successor)) => Some(successor),
            _ => None,
        }
    }
}

impl Limiter<Backend> {
    /// Freezes the local buckets: draws wait from now on. A draw that has begun on another thread
    /// may still be writing when this returns; the code that saves the buckets must make sure that
    /// none is.
    pub fn freeze(&self) {
        let handover = &self.generation.handover;
        let _kept = handover.kept.lock();
        handover.owner.send_replace(Owner::Frozen);
        handover.away.store(true, Ordering::SeqCst);
    }

    /// The buckets stay here after all: waiting draws and corrections are processed here.
    pub fn thaw(&self) {
        let generation = &self.generation;
        let mut kept = generation.handover.kept.lock();
        let now = generation.local.clock().now();
        for Kept {
            limit,
            key,
            change,
            conditions,
        } in kept.drain(..)
        {
            // By name, because a reload may have happened meanwhile.
            if let Some(limit) = generation
                .limits
                .iter()
                .find(|one| same_bucket(one, &limit))
            {
                let settlement = Settlement {
                    conditions: conditions.as_ref(),
                    ..Settlement::new(limit, &key, change)
                };
                generation.local.settle_at(&[settlement], now);
            }
        }
        generation.handover.away.store(false, Ordering::SeqCst);
        generation.handover.owner.send_replace(Owner::Here);
    }

    /// Makes `successor` the owner of the buckets.
    pub fn hand_to(&self, successor: Arc<dyn Successor>) {
        let handover = &self.generation.handover;
        let mut kept = handover.kept.lock();
        for Kept {
            limit, key, change, ..
        } in kept.drain(..)
        {
            // The conditions are of this process; the successor has learnt its own.
            successor.settle(&Settlement::new(&limit, &key, change));
        }
        handover.owner.send_replace(Owner::There(successor));
    }
}

impl<S: Store + Send + Sync> Generation<S> {
    /// Draws from local buckets, in whichever process they are.
    ///
    /// # Errors
    /// If another process has them and does not respond; nothing is charged here then.
    pub(super) async fn draw_local(
        &self,
        claims: &[Claim<'_>],
        now: Timestamp,
    ) -> Result<Draw, Unavailable> {
        if !self.handover.is_away() {
            return Ok(self.local.draw_at(claims, now));
        }
        let Some(successor) = self.handover.successor().await else {
            return Ok(self.local.draw_at(claims, now));
        };
        let there: SmallVec<[bool; 4]> = claims
            .iter()
            .map(|claim| successor.has(claim.limit))
            .collect();
        let of = |wanted: bool| -> SmallVec<[Claim<'_>; 4]> {
            claims
                .iter()
                .zip(&there)
                .filter(|(_, there)| **there == wanted)
                .map(|(claim, _)| *claim)
                .collect()
        };
        let (asked, own) = (of(true), of(false));
        let mine = self.local.draw_at(&own, now);
        if !mine.granted || asked.is_empty() {
            return Ok(merged(&there, mine, None));
        }
        let theirs = match successor.draw(&asked).await {
            Ok(theirs) => theirs,
            // Nobody else has the buckets now: their last state here is used.
            Err(Undrawn::Ended) => self.local.draw_at(&asked, now),
            Err(Undrawn::Silent) => {
                give_back(self, &own, &mine.standings, now);
                return Err(Unavailable {
                    limit: Arc::clone(&asked[0].limit.name),
                    error: StoreError::Lost(SILENT.to_owned()),
                });
            }
        };
        if !theirs.granted {
            give_back(self, &own, &mine.standings, now);
        }
        Ok(merged(&there, mine, Some(theirs)))
    }

    /// Corrects a charge on a local bucket, in whichever process it is.
    pub(super) fn settle_local(&self, settlement: Settlement<'_>, now: Timestamp) {
        if self.handover.is_away() {
            // Under the lock, so that no correction is kept after the kept ones were sent.
            let mut kept = self.handover.kept.lock();
            let owner = self.handover.owner.borrow().clone();
            match owner {
                Owner::Here => {}
                Owner::Frozen => {
                    let limit = Arc::clone(&self.limits[settlement.limit.index]);
                    let key = KeyBytes::from_slice(settlement.key);
                    kept.push(Kept {
                        limit,
                        key,
                        change: settlement.change,
                        conditions: settlement.conditions.copied(),
                    });
                    return;
                }
                Owner::There(successor) if successor.has(settlement.limit) => {
                    return successor.settle(&settlement);
                }
                Owner::There(_) => {}
            }
        }
        self.local.settle_at(&[settlement], now);
    }
}

/// The decisions in the order of the claims; a claim that no process decided gets an empty
/// standing.
fn merged(there: &[bool], mine: Draw, theirs: Option<Draw>) -> Draw {
    let granted = mine.granted && theirs.as_ref().is_none_or(|theirs| theirs.granted);
    let mut mine = mine.standings.into_iter();
    let mut theirs = theirs
        .map(|theirs| theirs.standings)
        .unwrap_or_default()
        .into_iter();
    let next = |there: &bool| -> Standing {
        if *there { theirs.next() } else { mine.next() }.unwrap_or(NOT_ASKED)
    };
    Draw {
        granted,
        standings: there.iter().map(next).collect(),
    }
}

/// Why buckets that another process has taken over cannot be asked.
const SILENT: &str = "the process that has taken the buckets over gives no response";
