//! Limits whose numbers a reload has changed.
//!
//! A shared store keeps each bucket in the numbers of its last grant, so an exhausted one refills at
//! its old rate until it grants again. After a reload each bucket takes on the new numbers with its
//! first refusal. An override does the same at its beginning and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_limit::{Claim, Limit, Micros, Placement, Standing, Timestamp};
use tollgate_store::Store;
use tollgate_store::local::same_bucket;

/// The limits of a policy whose numbers were others in the policy before.
#[derive(Debug, Default)]
pub(super) struct Renumbered {
    /// By index: until when buckets may exist that still have the old numbers. The entries of all limits
    /// come first, and then those of their penalties, whose buckets say whether keys are blocked.
    until: Box<[Option<Timestamp>]>,
    /// When the policy came into force.
    since: Timestamp,
    /// Buckets that were told, by a part of their hash. A bucket that displaces another one here is
    /// told twice, which changes nothing.
    told: Box<[AtomicU64]>,
}

impl Renumbered {
    /// The limits of `limits` that have other numbers than in `before`, as of `now`.
    pub(super) fn new(
        earlier: &Self,
        before: &[Arc<Limit>],
        limits: &[Arc<Limit>],
        now: Timestamp,
    ) -> Self {
        let until = |limit: &Arc<Limit>| {
            if limit.placement != Placement::Shared {
                return None;
            }
            let at = before.iter().position(|old| same_bucket(old, limit))?;
            let old = &before[at];
            // Numbers of the policy before that one may be left too.
            let still = earlier.until.get(at).copied().flatten();
            let changed = old.algorithm != limit.algorithm;
            let full = changed.then(|| now.after(refill(old)));
            full.max(still).filter(|until| *until > now)
        };
        let buckets = limits.iter().map(until);
        let blocks = limits
            .iter()
            .map(|limit| earlier.shorter_block(before, limit, now));
        let until: Box<[Option<Timestamp>]> = buckets.chain(blocks).collect();
        let any = until.iter().any(Option::is_some);
        let told = if any { TOLD } else { 0 };
        Self {
            until,
            since: now,
            told: (0..told).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Until when keys may be blocked by a longer penalty of this limit than the present one. Without
    /// the present numbers their blocks would outlast the wait that each refusal says. A block that
    /// has become longer keeps its end, which other gateways have said.
    fn shorter_block(
        &self,
        before: &[Arc<Limit>],
        limit: &Limit,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let penalty = limit.penalty?;
        let is_shared = |one: &Limit| one.placement == Placement::Shared && one.penalty.is_some();
        let at = before
            .iter()
            .position(|old| old.name == limit.name && is_shared(old) && is_shared(limit))?;
        let old = before[at].penalty?.block;
        let still = self.until.get(before.len() + at).copied().flatten();
        let changed = (old > penalty.block).then(|| now.after(old));
        changed.max(still).filter(|until| *until > now)
    }

    /// Has the buckets that refused take on the numbers of their claims.
    pub(super) fn refused(
        &self,
        claims: &[Claim<'_>],
        standings: &[Standing],
        store: &impl Store,
        now: Timestamp,
    ) {
        if self.told.is_empty() {
            return;
        }
        for (claim, standing) in claims.iter().zip(standings) {
            let until = self.until.get(claim.limit.index).copied().flatten();
            if standing.verdict.is_allow() || until.is_none_or(|until| until <= now) {
                continue;
            }
            let Some(hash) = store.bucket_hash(claim.limit, claim.key) else {
                continue;
            };
            let place = usize::try_from(hash % TOLD as u128).unwrap_or(0);
            // (Never zero, which marks an empty place.)
            let mark = (hash >> 64) as u64 | 1;
            if self.told[place].swap(mark, Ordering::Relaxed) != mark {
                store.take_numbers(claim.limit, claim.key, now.since(self.since));
            }
        }
    }
}

/// The time after which a bucket with these numbers is full, and so has none.
fn refill(limit: &Limit) -> Micros {
    let Some(quota) = limit.algorithm.quota() else {
        return Micros::ZERO;
    };
    let depth = limit.algorithm.depth().unwrap_or(quota.burst);
    quota.time_for(depth).max(Micros(2 * quota.period.0))
}

/// Buckets that are known to have been told.
const TOLD: usize = 4_096;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::penalized::buckets;
    use tollgate_limit::{Draw, Penalty, Settlement, Verdict, fixtures};
    use tollgate_store::{Deadline, Store, StoreError};

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    /// Records which keys take on numbers.
    #[derive(Default)]
    struct Told(Mutex<Vec<Vec<u8>>>);

    impl Store for Told {
        async fn draw_until<'a>(
            &'a self,
            _: &'a [Claim<'a>],
            _: &'a Deadline,
        ) -> Result<Draw, StoreError> {
            Err(StoreError::Timeout)
        }

        fn settle(&self, _: &[Settlement<'_>]) {}

        async fn peek_until<'a>(
            &'a self,
            _: &'a [Claim<'a>],
            _: &'a Deadline,
        ) -> Result<Vec<Standing>, StoreError> {
            Err(StoreError::Timeout)
        }

        fn take_numbers(&self, _: &Limit, key: &[u8], _: Micros) {
            self.0.lock().expect("not poisoned").push(key.to_vec());
        }

        fn bucket_hash(&self, _: &Limit, key: &[u8]) -> Option<u128> {
            Some(
                key.iter()
                    .fold(1, |hash, byte| hash * 257 + u128::from(*byte)),
            )
        }
    }

    fn limit(amount: u64, placement: Placement) -> Arc<Limit> {
        Arc::new(Limit {
            placement,
            ..fixtures::per_minute("each", amount, 10)
        })
    }

    fn standing(verdict: Verdict) -> Standing {
        Standing {
            verdict,
            remaining: 0,
            reset: Micros::ZERO,
            effective: Micros::ZERO,
            window_end: Timestamp::default(),
        }
    }

    #[test]
    fn reload_with_a_shorter_penalty_tells_each_blocked_key_once() {
        let limit = |block| {
            Arc::new(Limit {
                penalty: Some(Penalty {
                    refusals: 3,
                    span: Micros::from_secs(60),
                    block: Micros::from_secs(block),
                }),
                ..Limit::clone(&limit(1, Placement::Shared))
            })
        };
        let refused = [standing(Verdict::Deny { retry_after: None })];
        let store = Told::default();
        let told = |renumbered: &Renumbered, limit: &Arc<Limit>, seconds| {
            let buckets = buckets(&[Arc::clone(limit)]);
            let bucket = buckets[0].as_ref().expect("a penalty");
            let now = START.after(Micros::from_secs(seconds));
            renumbered.refused(&[Claim::new(bucket, b"a", 0)], &refused, &store, now);
            store.0.lock().expect("not poisoned").len()
        };
        let (long, short) = ([limit(600)], [limit(60)]);
        let before = Renumbered::default();
        let longer = Renumbered::new(&before, &short, &long, START);
        assert_eq!(told(&longer, &long[0], 1), 0, "its end stays");
        let shorter = Renumbered::new(&before, &long, &short, START);
        assert_eq!(told(&shorter, &short[0], 1), 1);
        assert_eq!(told(&shorter, &short[0], 2), 1, "once");
        // A reload without a change forgets nothing.
        let again = START.after(Micros::from_secs(100));
        let kept = Renumbered::new(&shorter, &short, &short, again);
        assert_eq!(told(&kept, &short[0], 599), 2);
        let kept = Renumbered::new(&shorter, &short, &short, again);
        assert_eq!(told(&kept, &short[0], 600), 2, "no such block is left");
    }

    #[test]
    fn reload_with_other_numbers_tells_each_refused_bucket_once() {
        let refused = [standing(Verdict::Deny { retry_after: None })];
        let granted = [standing(Verdict::Allow { wait: Micros::ZERO })];
        let (old, new) = (limit(1, Placement::Shared), limit(60, Placement::Shared));
        let before = Renumbered::default();
        let after = Renumbered::new(&before, &[Arc::clone(&old)], &[Arc::clone(&new)], START);
        let store = Told::default();
        let see = |renumbered: &Renumbered, key: &[u8], standings: &[Standing; 1], seconds| {
            let now = START.after(Micros::from_secs(seconds));
            renumbered.refused(&[Claim::new(&new, key, 1)], standings, &store, now);
            store.0.lock().expect("not poisoned").len()
        };
        assert_eq!(see(&before, b"a", &refused, 0), 0, "no reload");
        assert_eq!(
            see(&after, b"a", &granted, 0),
            0,
            "it has them by its grant"
        );
        assert_eq!(see(&after, b"a", &refused, 0), 1);
        assert_eq!(see(&after, b"a", &refused, 1), 1, "once");
        assert_eq!(see(&after, b"b", &refused, 1_319), 2);
        // Twenty-two minutes fill all that a bucket can lack at the old rate: none has it any more.
        assert_eq!(see(&after, b"c", &refused, 1_320), 2);
        // A reload without a change keeps the rest of that time, and no more.
        let again = START.after(Micros::from_secs(100));
        let kept = Renumbered::new(&after, &[Arc::clone(&new)], &[Arc::clone(&new)], again);
        assert_eq!(see(&kept, b"a", &refused, 101), 3);
        assert_eq!(see(&kept, b"d", &refused, 1_320), 3);
        let local = [limit(1, Placement::Local)];
        let none = Renumbered::new(&before, &local, &[limit(2, Placement::Local)], START);
        assert_eq!(see(&none, b"e", &refused, 0), 3);
    }
}
