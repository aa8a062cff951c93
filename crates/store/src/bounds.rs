//! Refuses requests that the server would refuse, by an upper bound of each exhausted bucket.
//!
//! After a refusal the bucket's state is kept, with the server's clock and the moment *before* the
//! call left. Since then, others can only have drawn more, and the server's clock can have advanced
//! by no more than ours plus its drift. So the state, judged at that latest possible moment, is an
//! upper bound, and the server would refuse what it refuses. The reported wait counts from the
//! moment the response *arrived*: it may be a round trip too long, never too short.
//!
//! All gateways learn the same moment of the next unit. About a leased bucket that refuses many, each
//! asks again at a moment of its own: later, by a random part (half to all) of the time in which all of
//! them together can get a unit each, by [`SPREAD_MAX`] at most. So they make between one and two calls
//! for each unit and not one for each gateway. (The refusal states that longer wait; a leased limit may
//! refuse early.)
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
use tollgate_limit::{Algorithm, Draw, Micros, Standing, StoredBucket, Timestamp, Verdict};

const SHARDS: usize = 16;
/// Bounds in one shard. Above this number the server is asked. 16 x 4096 x about 100 bytes: 6 MiB.
const SHARD_MAX: usize = 4096;
/// The most that a server's clock gains on ours: one part in a thousand.
const DRIFT_PER: u64 = 1000;
/// The longest time by which a gateway asks later than there may be a unit.
const SPREAD_MAX: Micros = Micros::from_secs(1);
/// From so many refusals on a gateway asks later. A lone caller that waits is granted long before.
const REFUSALS_LEAST: u32 = 16;
/// More refusals are not counted, so that they are soon forgotten.
const REFUSALS_MOST: u32 = 64;
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
    learned: Learned,
    /// How many were refused here; a grant takes two of them away.
    refusals: u32,
    /// The server is not asked before this moment, by our clock.
    until: Timestamp,
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
            let mut shard = self.shard(wanted.name.hash).lock();
            let bound = shard.get_mut(&wanted.name.hash)?;
            if !Arc::ptr_eq(&bound.shape, &wanted.shape) {
                return None;
            }
            let waits = bound.until.since(now);
            let is_old = now.since(bound.learned.sent) > REFUNDABLE_AGE;
            if wanted.shape.refundable() && is_old && waits == Micros::ZERO {
                return None;
            }
            let at_most = bound.standing(wanted.cost, bound.latest(now));
            let refuses = !at_most.verdict.is_allow() || waits > Micros::ZERO;
            if refuses && wanted.enforced {
                refused = true;
                bound.refusals = (bound.refusals + 1).min(REFUSALS_MOST);
                // The wait counts from the earliest moment that the server's clock can show.
                let waited = now.since(bound.learned.received);
                let passed = Micros(waited.0 - waited.0 / DRIFT_PER);
                let earliest = bound.learned.server.after(passed);
                let mut standing = bound.standing(wanted.cost, earliest);
                let own = match standing.verdict {
                    Verdict::Deny { retry_after } => retry_after,
                    Verdict::Allow { .. } => Some(Micros::ZERO),
                };
                standing.verdict = Verdict::Deny {
                    retry_after: own.map(|own| own.max(waits)),
                };
                standings.push(standing);
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
            // A reload or another tier has other numbers: the bucket as the server converts it.
            let algorithm = bound.shape.algorithm().clone();
            let kept = StoredBucket::from_parts(algorithm, bound.state.clone(), 0);
            let own = kept.under(shape.algorithm(), at);
            shape.standing(own.state(), 0, at).remaining()
        };
        (units < shape.algorithm().burst()).then_some(units)
    }

    /// Keeps the states from a call: buckets of requests that were refused, or whose next equal
    /// request would be. `granted`: how many of each group.
    pub(crate) fn learn(
        &self,
        batch: &Batch,
        granted: &[u32],
        states: &[Option<StoredState>],
        learned: Learned,
    ) {
        if !self.on {
            return;
        }
        for (group, granted) in batch.groups.iter().zip(granted) {
            let exhausted = group.parts.iter().any(|part| {
                let bucket = part.bucket as usize;
                let (_, shape) = &batch.buckets[bucket];
                let standing = shape.standing(states[bucket].as_ref(), part.cost, learned.server);
                part.enforced && !standing.verdict.is_allow()
            });
            for part in &group.parts {
                let (name, shape) = &batch.buckets[part.bucket as usize];
                let mut shard = self.shard(name.hash).lock();
                if !exhausted {
                    // A bound that refuses nothing is removed, unless another request needs it.
                    if group.parts.len() == 1
                        && let Some(bound) = shard.get_mut(&name.hash)
                    {
                        bound.refusals = bound.refusals.saturating_sub(2);
                        // (That it refuses many is worth knowing when it is exhausted again.)
                        if bound.refusals < REFUSALS_LEAST || shape.lease().is_none() {
                            shard.remove(&name.hash);
                        }
                    }
                    continue;
                }
                // Gateways add places, not only time does.
                if shape.holds() {
                    continue;
                }
                if shard.len() >= SHARD_MAX && !shard.contains_key(&name.hash) {
                    shard.retain(|_, bound| {
                        let standing = bound.standing(1, bound.latest(learned.received));
                        !standing.verdict.is_allow()
                    });
                    if shard.len() >= SHARD_MAX {
                        continue;
                    }
                }
                let known = shard.get(&name.hash).map_or(0, |bound| bound.refusals);
                let mut bound = Bound {
                    shape: shape.clone(),
                    state: states[part.bucket as usize].clone(),
                    learned,
                    refusals: match granted {
                        0 => known.saturating_add(group.count).min(REFUSALS_MOST),
                        _ => known.saturating_sub(2),
                    },
                    until: learned.received,
                };
                bound.spread(part.cost);
                shard.insert(name.hash, bound);
            }
        }
    }

    /// Makes the refusal `draw` of the server state the wait until the server is asked again, as the
    /// refusals of this gateway do until then.
    pub(crate) fn lengthen(&self, wants: &Wants, draw: &mut Draw, now: Timestamp) {
        for (wanted, standing) in wants.iter().zip(&mut draw.standings) {
            if wanted.shape.lease().is_some()
                && let Verdict::Deny {
                    retry_after: Some(wait),
                } = &mut standing.verdict
                && let Some(bound) = self.shard(wanted.name.hash).lock().get(&wanted.name.hash)
            {
                *wait = (*wait).max(bound.until.since(now));
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

/// When and where a call was made: the server's time, when it was sent and answered by our clock, and
/// how many gateways use the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learned {
    pub(crate) server: Timestamp,
    pub(crate) sent: Timestamp,
    pub(crate) received: Timestamp,
    pub(crate) gateways: u32,
}

impl Bound {
    /// Sets when the server is asked again about a leased bucket that has refused many.
    fn spread(&mut self, cost: u64) {
        let Algorithm::TokenBucket(bucket) = self.shape.algorithm() else {
            return;
        };
        if self.shape.lease().is_none() || self.refusals < REFUSALS_LEAST {
            return;
        }
        if let Verdict::Deny {
            retry_after: Some(wait),
        } = self.standing(cost, self.learned.server).verdict
        {
            let others = self.learned.gateways.saturating_sub(1);
            let each = bucket.quota().time_for(cost).0;
            let all = each.saturating_mul(others.into());
            let all = all.min(SPREAD_MAX.0);
            let later = fastrand::u64(all / 2..=all);
            let wait = wait.min(REFUNDABLE_AGE);
            self.until = self.learned.received.after(Micros(wait.0 + later));
        }
    }

    /// The latest moment that the server's clock can show.
    fn latest(&self, now: Timestamp) -> Timestamp {
        let age = now.since(self.learned.sent);
        self.learned
            .server
            .after(Micros(age.0 + age.0 / DRIFT_PER + 1))
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
        let learned = Learned {
            server: now,
            sent: now,
            received: now,
            gateways: 1,
        };
        let bound = Bound {
            shape: Arc::clone(&shape),
            state: Some(State::Level(Level { level: 0, at: now })),
            learned,
            refusals: 0,
            until: now,
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

    /// A leased bucket of ten units a second that a hundred gateways use, and that refuses.
    #[test]
    fn bound_of_a_leased_bucket_that_refuses_many_is_asked_about_at_moments_apart() {
        let names = Names::new(b"a test's secret");
        let second = |lease| tollgate_limit::Limit {
            lease,
            ..fixtures::limit(
                "l",
                &tollgate_limit::Terms {
                    burst: Some(100),
                    ..fixtures::terms(tollgate_limit::Kind::TokenBucket, 10, Micros::from_secs(1))
                },
            )
        };
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        // When a gateway asks again that has refused so many before.
        let asks = |lease, before: u32| {
            let bounds = Bounds::new(true);
            let limit = second(lease);
            let wants = names.wants(&[tollgate_limit::Claim::new(&limit, b"a", 1)]);
            let batch = Batch {
                buckets: vec![(wants[0].name, wants[0].shape.clone())],
                groups: vec![crate::batch::Group {
                    parts: smallvec::smallvec![crate::batch::Part {
                        bucket: 0,
                        cost: 1,
                        enforced: true,
                    }],
                    count: before,
                }],
                ..Batch::default()
            };
            let empty = Some(State::Level(Level {
                level: 0,
                at: start,
            }));
            let learned = Learned {
                server: start,
                sent: start,
                received: start,
                gateways: 100,
            };
            bounds.learn(&batch, &[0], &[empty], learned);
            let mut now = start;
            while let Some(draw) = bounds.refuse(&wants, now) {
                let Verdict::Deny {
                    retry_after: Some(wait),
                } = draw.standings[0].verdict
                else {
                    panic!("{draw:?}")
                };
                assert!(wait > Micros::ZERO);
                now = now.after(Micros(1_000));
            }
            now.since(start).0 / 1_000
        };
        let refundable = REFUNDABLE_AGE.0 / 1_000 + 1;
        assert_eq!(asks(true, REFUSALS_LEAST - 1), refundable, "too few");
        assert_eq!(asks(false, 1_000), 100, "not leased: when there is a unit");
        let mut all: Vec<u64> = (0..100).map(|_| asks(true, REFUSALS_LEAST)).collect();
        all.sort_unstable();
        assert!(all[0] >= 550 && all[99] <= 1_052, "{all:?}");
        assert!(all[20] < 750 && all[80] > 850, "{all:?}");
        all.dedup();
        assert!(all.len() > 50, "{all:?}");
    }
}
