//! Refuses requests locally that the server would refuse, using an upper bound of each exhausted
//! bucket.
//!
//! After a refusal the bucket's state is kept, with the server's clock and the moment *before* the
//! call left. Since then, others can only have drawn more, and the server's clock can have advanced
//! by no more than ours plus its drift. So the state, judged at that latest possible moment, is an
//! upper bound, and the server would refuse what it refuses. The reported wait counts from the
//! moment the response *arrived*: it may be a round trip too long, never too short.
//!
//! Three events break the bound: a refund by another gateway (the bound of a bucket that can be
//! refunded is used for 50 ms only), a reload (a bound belongs to one set of numbers), and an
//! operator's reset (for at most one wait).

use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::batch::{Batch, Wants};
use super::wire_form::{Name, StoredState, WireForm};
use tollgate_limit::{Draw, Micros, Standing, StoredBucket, Timestamp};

/// The number of locks over which the bounds are spread.
const SHARDS: usize = 16;
/// Bounds in one shard. Above this number the server is asked. 16 x 4096 x about 100 bytes: 6 MiB.
const SHARD_MAX: usize = 4096;
/// The most that a server's clock gains on ours: one part in a thousand.
const DRIFT_PER: u64 = 1000;
/// How long the bound of a bucket that can be refunded is used.
const REFUNDABLE_AGE: Micros = Micros(50_000);

type Shard = std::collections::HashMap<u128, Bound, RandomState>;

#[derive(Debug)]
pub(crate) struct Bounds {
    on: bool,
    shards: Vec<Mutex<Shard>>,
}

#[derive(Clone, Debug)]
struct Bound {
    shape: Arc<WireForm>,
    state: Option<StoredState>,
    server: Timestamp,
    /// Our clock before the call left.
    sent: Timestamp,
    /// Our clock when the response had arrived.
    received: Timestamp,
}

impl Bounds {
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
        }
    }

    /// The refusal of `wants`, if it is certain; `None`: the server must be asked. It is certain if
    /// every bucket of the request is known here and one enforced bucket cannot pay.
    pub(crate) fn refuse(&self, wants: &Wants, now: Timestamp) -> Option<Draw> {
        if !self.on {
            return None;
        }
        let mut refused = false;
        let mut standings: SmallVec<[Standing; 4]> = SmallVec::new();
        for wanted in wants {
            let shard = self.shard(wanted.name.hash).lock();
            let bound = shard.get(&wanted.name.hash)?;
            if !Arc::ptr_eq(&bound.shape, &wanted.shape) {
                return None;
            }
            if wanted.shape.refundable() && now.since(bound.sent) > REFUNDABLE_AGE {
                return None;
            }
            let at_most = bound.standing(wanted.cost, bound.latest(now));
            if !at_most.verdict.is_allow() && wanted.enforced {
                refused = true;
                // The wait counts from the earliest moment that the server's clock can show.
                let waited = now.since(bound.received);
                let earliest = bound.server.after(Micros(waited.0 - waited.0 / DRIFT_PER));
                standings.push(bound.standing(wanted.cost, earliest));
            } else {
                standings.push(at_most);
            }
        }
        refused.then_some(Draw {
            standings,
            ..Draw::default()
        })
    }

    /// The most units that a bucket can have now; `None`: unknown, or it may be full.
    pub(crate) fn at_most(
        &self,
        name: &Name,
        shape: &Arc<WireForm>,
        now: Timestamp,
    ) -> Option<u64> {
        let shard = self.shard(name.hash).lock();
        let bound = shard.get(&name.hash)?;
        let at = bound.latest(now);
        let units = if Arc::ptr_eq(&bound.shape, shape) {
            shape.standing(bound.state.as_ref(), 0, at).remaining()
        } else {
            // A reload or another tier has other numbers: the same bucket, as the server would
            // convert it.
            let kept =
                StoredBucket::from_parts(bound.shape.algorithm().clone(), bound.state.clone(), 0);
            let own = kept.under(shape.algorithm(), at);
            shape.standing(own.state(), 0, at).remaining()
        };
        (units < shape.algorithm().burst()).then_some(units)
    }

    /// Keeps the states from a call: buckets of requests that were refused, or whose next equal
    /// request would be.
    pub(crate) fn learn(
        &self,
        batch: &Batch,
        states: &[Option<StoredState>],
        server: Timestamp,
        sent: Timestamp,
        received: Timestamp,
    ) {
        if !self.on {
            return;
        }
        for group in &batch.groups {
            let exhausted = group.parts.iter().any(|part| {
                let bucket = part.bucket as usize;
                let (_, shape) = &batch.buckets[bucket];
                let standing = shape.standing(states[bucket].as_ref(), part.cost, server);
                part.enforced && !standing.verdict.is_allow()
            });
            for part in &group.parts {
                let (name, shape) = &batch.buckets[part.bucket as usize];
                let mut shard = self.shard(name.hash).lock();
                if !exhausted {
                    // A bound that refuses nothing only costs a look-up: remove it, unless another
                    // request needs it.
                    if group.parts.len() == 1 && !shard.is_empty() {
                        shard.remove(&name.hash);
                    }
                    continue;
                }
                if !shape.boundable() {
                    continue;
                }
                if shard.len() >= SHARD_MAX && !shard.contains_key(&name.hash) {
                    shard.retain(|_, bound| {
                        let standing = bound.standing(1, bound.latest(received));
                        !standing.verdict.is_allow()
                    });
                    if shard.len() >= SHARD_MAX {
                        continue;
                    }
                }
                let state = states[part.bucket as usize].clone();
                shard.insert(
                    name.hash,
                    Bound {
                        shape: shape.clone(),
                        state,
                        server,
                        sent,
                        received,
                    },
                );
            }
        }
    }

    /// Forgets every bound: the limits have changed, or an operator has reset buckets.
    pub(crate) fn forget(&self) {
        for shard in &self.shards {
            shard.lock().clear();
        }
    }

    fn shard(&self, hash: u128) -> &Mutex<Shard> {
        &self.shards[(hash as usize >> 7) % SHARDS]
    }
}

impl Bound {
    /// The latest moment that the server's clock can show.
    fn latest(&self, now: Timestamp) -> Timestamp {
        let age = now.since(self.sent);
        self.server.after(Micros(age.0 + age.0 / DRIFT_PER + 1))
    }

    fn standing(&self, cost: u64, at: Timestamp) -> Standing {
        self.shape.standing(self.state.as_ref(), cost, at)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_limit::bucket::{Level, State};
    use tollgate_limit::fixtures;

    use super::super::wire_form::Names;
    use super::*;

    /// A reload gives a limit other numbers: what was known of its buckets stays known.
    #[test]
    fn bound_under_other_numbers_is_converted() {
        let bounds = Bounds::new(true);
        let names = Names::new(b"a test's secret");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let before = fixtures::per_minute("each", 1, 5);
        let (name, shape) = (names.name(&before, b"a"), names.shape(&before));
        let bound = Bound {
            shape: Arc::clone(&shape),
            state: Some(State::Level(Level { level: 0, at: now })),
            server: now,
            sent: now,
            received: now,
        };
        bounds.shard(name.hash).lock().insert(name.hash, bound);
        assert_eq!(bounds.at_most(&name, &shape, now), Some(0));
        for (amount, burst) in [(1, 6), (1, 4), (2, 5)] {
            let after = fixtures::per_minute("each", amount, burst);
            let other = names.shape(&after);
            assert_eq!(
                bounds.at_most(&name, &other, now),
                Some(0),
                "{amount}, {burst}"
            );
        }
    }
}
