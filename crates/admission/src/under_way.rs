//! The reservations of requests under way in one gateway. A budget that refuses only because of them is
//! not used up: its refusal says so, and when the first of them ends at the latest. With `max_wait` the
//! request waits in line for them instead (`line.rs`).

mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tollgate_limit::{KeyBytes, Micros, Timestamp, Verdict, words};
use tollgate_limiter::Denied;
use tollgate_policy::{Claims, Policy};
use tollgate_response::Refused;

use line::Line;
pub(crate) use line::Place;

/// What of each bucket is reserved by requests under way, and who waits for that. A bucket has an entry
/// as long as requests are under way with it.
#[derive(Debug, Default)]
pub struct UnderWay {
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    by_key: HashMap<Bucket, Reserved>,
    /// The requests in all lines.
    waiting: usize,
}

type Bucket = (Arc<str>, KeyBytes);

#[derive(Debug, Default)]
struct Reserved {
    units: u128,
    /// The units of each request, by its latest end and a number.
    ends: BTreeMap<(Timestamp, u64), u64>,
    next: u64,
    /// How many reservations were settled since the entry was made.
    settled: u64,
    /// The requests with a place, and the units that some of them draw now and may get.
    places: usize,
    drawing: u128,
    line: Line,
}

impl Reserved {
    fn is_needed(&self) -> bool {
        !self.ends.is_empty() || self.places > 0
    }

    /// Whether nothing is under way whose units could come back.
    fn is_idle(&self) -> bool {
        self.ends.is_empty() && self.drawing == 0
    }

    /// What is reserved, and what may be by the time that the draws under way are known here.
    fn under_way(&self) -> u128 {
        self.units + self.drawing
    }
}

/// The reservation of one request on one bucket, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    under_way: Arc<UnderWay>,
    bucket: Bucket,
    entry: (Timestamp, u64),
}

impl UnderWay {
    /// Notes that a request reserves `units` of a bucket, and ends at `end` at the latest.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        bucket: Bucket,
        units: u64,
        end: Timestamp,
    ) -> Reservation {
        let mut buckets = self.lock();
        let reserved = buckets.by_key.entry(bucket.clone()).or_default();
        let entry = (end, reserved.next);
        reserved.next += 1;
        reserved.units += u128::from(units);
        reserved.ends.insert(entry, units);
        drop(buckets);
        Reservation {
            under_way: Arc::clone(self),
            bucket,
            entry,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The units of a bucket that are reserved, and the first end of a request that is known.
    fn of(&self, bucket: &Bucket, now: Timestamp) -> Option<(u64, Timestamp)> {
        let buckets = self.lock();
        let reserved = buckets.by_key.get(bucket)?;
        let mut ends = reserved.ends.keys().map(|(end, _)| *end);
        // A stream may go on after the time for its head.
        let soon = now.after(Micros::from_secs(1));
        let units = u64::try_from(reserved.under_way()).unwrap_or(u64::MAX);
        Some((units, ends.find(|end| *end > now).unwrap_or(soon)))
    }

    /// Completes the refusal of a request with these `claims`: if each budget that refuses would admit it
    /// without the reservations, none is gone.
    pub(crate) fn complete(
        &self,
        refused: &mut Refused,
        denied: &Denied,
        claims: &Claims,
        policy: &Policy,
        now: Timestamp,
    ) {
        if refused.blocked || refused.never_fits {
            return;
        }
        let mut reserved = false;
        // The last of several limits to have enough decides.
        let mut wait = Some(Micros::ZERO);
        for place in denied.refused() {
            let charge = &claims.charges()[place];
            let (rule, limit) = (&policy.rules[charge.rule], &policy.limits[charge.limit]);
            let outcome = &denied.outcomes()[place];
            let Verdict::Deny { retry_after: own } = outcome.standing.verdict else {
                continue;
            };
            let left = i128::from(outcome.standing.left);
            let bucket = (Arc::clone(&rule.name), claims.key(charge).clone());
            let suffices =
                |units| rule.reserves() && left + i128::from(units) >= i128::from(charge.cost);
            let found = self.of(&bucket, now).filter(|(units, _)| suffices(*units));
            if found.is_none() && rule.is_budget() {
                return;
            }
            let bound = found.map(|(_, end)| end.since(now));
            let own = own.map(|own| bound.map_or(own, |bound| own.min(bound)));
            wait = wait.zip(own).map(|(wait, own)| wait.max(own));
            let Some((units, _)) = found else { continue };
            reserved = true;
            let budget = refused.budgets.iter_mut();
            for budget in budget.filter(|budget| budget.limit == rule.name && budget.left.is_some())
            {
                let in_words = |units| words::units(units, limit.currency.as_deref());
                let in_force = outcome.numbers.as_ref().unwrap_or(limit);
                let whole = in_force.algorithm.quota().map_or(0, |quota| quota.burst);
                let used = i128::from(whole) - left - i128::from(units);
                budget.reserved = Some(in_words(units));
                budget.used = Some(in_words(u64::try_from(used).unwrap_or(0)));
            }
        }
        if reserved {
            refused.budget = false;
            // A concurrency limit has no retry time: the end of the requests that hold its places is not known.
            refused.reserved = wait.is_some();
            refused.retry_after = wait;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut buckets = self.under_way.lock();
        let Some(reserved) = buckets.by_key.get_mut(&self.bucket) else {
            return;
        };
        let units = reserved.ends.remove(&self.entry).unwrap_or(0);
        reserved.units -= u128::from(units);
        reserved.settled += 1;
        let woken = reserved.line.wake_first();
        if !reserved.is_needed() {
            buckets.by_key.remove(&self.bucket);
        }
        drop(buckets);
        woken.inspect(Waker::wake_by_ref);
    }
}
