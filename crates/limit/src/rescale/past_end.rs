//! How long a refused caller waits when the numbers that refused it end before: an operator's
//! override ends at a known moment, and the limit's own numbers follow.

use super::Kept;
use crate::bucket::{Level, Pair, State, Steps};
use crate::sliding_log::{Entry, Log};
use crate::time::{Micros, Timestamp};
use crate::{Algorithm, Claim, Standing, Verdict};

impl Standing {
    /// The standing of a claim under numbers that end in `left`, after which its bucket has those of
    /// `own`: a wait beyond the end is that of the bucket as it is then.
    ///
    /// Only the wait is known of the bucket, so it is taken to be the emptiest one of which that is
    /// the wait: the caller may be admitted earlier than it is told, by less than a unit's time.
    #[must_use]
    pub fn past_end(
        self,
        claim: &Claim<'_>,
        own: &Algorithm,
        left: Micros,
        now: Timestamp,
    ) -> Self {
        let Verdict::Deny { retry_after } = self.verdict else {
            return self;
        };
        if retry_after.is_some_and(|wait| wait <= left) {
            return self;
        }
        let numbers = &claim.limit.algorithm;
        let Some(state) = numbers.refusing(claim.cost, retry_after, &self, now) else {
            return self;
        };
        let end = now.after(left);
        let then = Kept::from_parts(numbers.clone(), Some(state), 0).under(own, end);
        let retry_after = match own.judge(then.state(), claim.cost, end) {
            Ok(_) => Some(left),
            Err(refused) => refused
                .retry_after
                .map(|wait| Micros(left.0.saturating_add(wait.0))),
        };
        Self {
            verdict: Verdict::Deny { retry_after },
            ..self
        }
    }
}

impl Algorithm {
    /// The emptiest bucket that refuses `cost` for this wait and stands so; without a wait, one of the
    /// units that remain.
    fn refusing(
        &self,
        cost: u64,
        retry_after: Option<Micros>,
        standing: &Standing,
        now: Timestamp,
    ) -> Option<State> {
        let remaining = standing.remaining;
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let wait = retry_after.map(|wait| Micros(wait.0.saturating_add(self.max_wait().0)));
        Some(match self {
            Self::TokenBucket(bucket) => State::Level(bucket.refusing(cost, wait, remaining, now)),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => {
                let Some(wait) = wait else {
                    return Some(State::Steps(Steps {
                        units: signed(remaining),
                        since: bucket.start_of(now),
                    }));
                };
                let due = now.after(wait);
                let since = match bucket.align() {
                    crate::Align::FirstHit => {
                        let period = bucket.quota().period.0;
                        let steps = wait.0.div_ceil(period).saturating_mul(period);
                        due.before(Micros(steps))
                    }
                    _ => bucket.start_of(now),
                };
                let quota = bucket.quota();
                // The units that are enough at a moment, without what comes until then.
                let short = |enough: u64, at: Timestamp| {
                    let gained = bucket.steps_between(since, at);
                    signed(enough).saturating_sub(signed(gained.saturating_mul(quota.amount)))
                };
                let need = cost.saturating_sub(bucket.debt());
                // A step of large numbers says little: what fills the bucket says more.
                let full = short(quota.burst, now.after(standing.reset));
                let units = short(need, due).max(full.min(signed(need) - 1));
                State::Steps(Steps { units, since })
            }
            Self::SlidingWindow(window) => State::Pair(Pair {
                current: window.quota().amount.saturating_sub(remaining),
                ..window.current(None, now)
            }),
            Self::SlidingLog(log) => {
                let units = log.quota().amount.saturating_sub(remaining);
                State::Log(Log::from_entries([Entry { at: now, units }]))
            }
            Self::InFlight(_) => return None,
        })
    }
}

impl crate::TokenBucket {
    fn refusing(&self, cost: u64, wait: Option<Micros>, remaining: u64, at: Timestamp) -> Level {
        let quota = self.quota();
        let (n, p) = (i128::from(quota.n), i128::from(quota.p));
        let level = match wait {
            None => i128::from(remaining) * p,
            Some(wait) => i128::from(cost.saturating_sub(self.debt())) * p - i128::from(wait.0) * n,
        };
        let level = i64::try_from(level).unwrap_or(i64::MIN / 2);
        Level { level, at }
    }
}
