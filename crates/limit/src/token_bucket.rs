//! The token bucket: up to `burst` units, refilled continuously. In every span of T it grants at
//! most `burst + rate x T` (plus `debt`, where debt is allowed).
//!
//! The level is counted in unit-microseconds: with the rate reduced to `n` units per `p`
//! microseconds, a microsecond adds `n` and a unit costs `p`. The level is never rounded; only the
//! length of a wait is divided, and rounded up. (GCRA is the same bucket expressed as a time.)

mod exact;
mod widened;

use super::bucket::{Granted, Judged, Level, Refused, Report};
use super::claim::Change;
use super::conditions::{Following, RateConditions, WHOLE};
use super::quota::{LOCAL_BOUND, Quota, QuotaError, Rate};
use super::time::{Micros, Timestamp};

/// A token bucket's checked parameters. `p`-scaled amounts are unit-microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    quota: Quota,
    debt: u64,
    max_wait: Micros,
    full: i64,
    owed: i64,
    floor: i64,
    lowest: i64,
    settled: u64,
    following: Option<Following>,
    conditions: RateConditions,
}

impl TokenBucket {
    /// The lowest possible level, in unit-microseconds.
    pub fn lowest(&self) -> i64 {
        self.lowest.min(self.floor)
    }

    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Units it may go below zero at admission; the next caller waits for them.
    pub fn debt(&self) -> u64 {
        self.debt
    }

    /// The longest a request may wait for its token.
    pub fn max_wait(&self) -> Micros {
        self.max_wait
    }

    /// The full level, in unit-microseconds.
    pub fn full(&self) -> i64 {
        self.full
    }

    /// The lowest level, in unit-microseconds, that a settlement may cause: `debt`, or one burst,
    /// below zero. It is lower where more is needed to charge the largest settlement in full after
    /// the lowest grant ([`super::Algorithm::settling`]).
    pub fn floor(&self) -> i64 {
        self.floor
    }

    /// The level at `now`. A clock that stepped back leaves the level unchanged and adds nothing.
    pub fn level(&self, state: Option<Level>, now: Timestamp) -> i64 {
        let Some(Level { level, at }) = state else {
            return self.full;
        };
        if level >= self.full {
            return self.full;
        }
        // The elapsed time is clamped to the time to full before the multiplication, so it cannot
        // overflow in any language.
        let to_full = self.time_to_gain(self.full - level);
        let elapsed = now.since(at);
        if elapsed >= to_full {
            self.full
        } else {
            level + signed(elapsed.0) * signed(self.quota.n)
        }
    }

    /// The price of `cost` units, and the level that grants them: `cost` less the allowed debt, but
    /// never while a debt is open (as in Guava's RateLimiter, this request passes now and the next
    /// one waits). `None`: more than the bucket can ever pay.
    fn price(&self, cost: u64) -> Option<(i64, i64)> {
        if cost > self.quota.burst.saturating_add(self.debt) {
            return None;
        }
        let price = signed(cost) * signed(self.quota.p);
        Some((price, (price - self.owed).max(0)))
    }

    /// Whether `cost` can be drawn at `now`.
    pub fn judge(&self, state: Option<Level>, cost: u64, now: Timestamp) -> Judged<Level> {
        let Some((price, need)) = self.price(cost) else {
            return Err(Refused::NEVER);
        };
        // While the upstream accepts nothing, a grant is dated at the moment when it accepts again.
        let from = self.conditions.opens.max(now);
        let level = self.level(state, from);
        let at = state.map_or(from, |s| s.at.max(from));
        let missing = (need - level).max(0);
        let late = self.time_to_gain(missing);
        // A clock behind `at` must catch up before any units are gained.
        let behind = if missing > 0 {
            at.since(from)
        } else {
            Micros::ZERO
        };
        let wait = from.since(now).0.saturating_add(late.0);
        let wait = Micros(wait.saturating_add(behind.0));
        if wait > self.max_wait {
            return Err(Refused::after(Micros(wait.0 - self.max_wait.0)));
        }
        // The due moment is a whole microsecond, so the level may then be up to n above `need`.
        // Units that would exceed the capacity are lost, as they are for a request that arrives at
        // that moment.
        let gained = signed(late.0) * signed(self.quota.n);
        let due = (level + gained).min(self.full);
        let level = due - self.taken(price) - gained;
        Ok(Granted {
            wait,
            next: Level { level, at },
        })
    }

    /// The bucket's numbers at `now`.
    pub fn report(&self, state: Option<Level>, now: Timestamp) -> Report {
        let level = self.level(state, now);
        let remaining = unsigned(level) / self.quota.p;
        let effective = if remaining > 0 {
            self.quota.time_for(remaining)
        } else {
            self.time_to_gain(signed(self.quota.p) - level)
        };
        let report = Report {
            remaining,
            owed: unsigned(level.saturating_neg()).div_ceil(self.quota.p),
            reset: self.time_to_gain(self.full - level),
            effective,
            window_end: Timestamp::default(),
        };
        self.conditions.lowered(report, &self.quota, now)
    }

    /// Corrects an earlier grant; `None`: full again.
    ///
    /// A charge lowers the level to [`TokenBucket::floor`] at most. A refund never fills above the
    /// burst, and is dropped while a request may be waiting for its token: a waiting request has
    /// taken the level below zero and is due when the level is back at the request's own mark. If a
    /// unit were given back meanwhile, the due moment of the next request could equal that of a
    /// request already promised, and both would pass at once on one token.
    pub fn settle(&self, state: Option<Level>, change: Change, now: Timestamp) -> Option<Level> {
        let level = self.level(state, now);
        let at = state.map_or(now, |s| s.at.max(now));
        let settled = match change {
            Change::Charge { more } => level
                .saturating_sub(self.scaled(more))
                .max(self.floor)
                .min(level),
            Change::Refund { units } if level >= 0 || self.max_wait == Micros::ZERO => {
                let back = signed(self.conditions.returned(unsigned(self.scaled(units))));
                level.saturating_add(back).min(self.full)
            }
            // No later moment is promised: the place in the queue is the last one and becomes free.
            // Units drawn at a lowered rate are returned at their written cost.
            Change::Withdraw { units, full_at }
                if level >= 0
                    || self.max_wait == Micros::ZERO
                    || self.is_last(Level { level, at }, full_at) =>
            {
                level.saturating_add(self.scaled(units)).min(self.full)
            }
            Change::Refund { .. }
            | Change::RefundWithin { .. }
            | Change::Withdraw { .. }
            | Change::Release { .. } => level,
        };
        (settled < self.full).then_some(Level { level: settled, at })
    }

    /// Whether no request has drawn since the bucket was due to be full at `full_at`. Above one
    /// unit per microsecond two draws may share that moment, and then the result is unknown.
    fn is_last(&self, state: Level, full_at: Timestamp) -> bool {
        self.quota.p >= self.quota.n && self.expiry(state) == full_at
    }

    /// When the bucket equals no bucket.
    pub fn expiry(&self, state: Level) -> Timestamp {
        state
            .at
            .after(self.time_to_gain(self.full.saturating_sub(state.level)))
    }

    /// The least whole microseconds in which the level gains `gain` unit-microseconds.
    fn time_to_gain(&self, gain: i64) -> Micros {
        Micros(unsigned(gain).div_ceil(self.quota.n))
    }

    pub fn scaled(&self, units: u64) -> i64 {
        i64::try_from(u128::from(units) * u128::from(self.quota.p)).unwrap_or(i64::MAX)
    }
}

/// A rate that follows its upstream: how far it may fall, and what a grant then takes.
impl TokenBucket {
    /// The same bucket with a rate that follows the upstream's health, down to `least`.
    ///
    /// # Errors
    /// When the minimum is above the rate, or too low to be counted exactly with this burst.
    pub fn following(self, least: Rate) -> Result<Self, Vec<QuotaError>> {
        let following = Following::new(least, &self.quota).map_err(|error| vec![error])?;
        // The most expensive grant takes this much, from a level as low as the debt allows.
        let (full, owed) = (i128::from(self.full), i128::from(self.owed));
        let dearest = (full + owed) * i128::from(WHOLE) / i128::from(following.least) + 1;
        let ahead = i128::from(self.max_wait.0) * i128::from(self.quota.n);
        let lowest = dearest + owed + ahead;
        if full + lowest >= i128::from(LOCAL_BOUND) {
            let message = "too low a rate to be counted exactly with this burst: raise the least, or lower the burst";
            return Err(vec![QuotaError::new("follow_upstream", message)]);
        }
        let lowest = -i64::try_from(lowest).expect("below the bound just checked");
        Ok(Self {
            following: Some(following),
            lowest,
            ..self
        })
    }

    /// The same bucket; if it follows the upstream's health, it also obeys its quota.
    pub fn obeying_quota(self) -> Self {
        let following = self.following.map(|following| Following {
            obeys_quota: true,
            ..following
        });
        Self { following, ..self }
    }

    /// How far the rate may fall, if it follows the upstream's health.
    pub fn follows(&self) -> Option<&Following> {
        self.following.as_ref()
    }

    /// The same bucket under the conditions learnt from its upstream, within the file's numbers.
    pub fn under(&self, conditions: RateConditions) -> Self {
        let conditions = match self.following {
            None => RateConditions::AS_WRITTEN,
            Some(following) => RateConditions {
                factor: conditions.factor.clamp(following.least, WHOLE),
                opens: if following.obeys_quota {
                    conditions.opens
                } else {
                    Timestamp::default()
                },
                ..conditions
            },
        };
        Self {
            conditions,
            ..self.clone()
        }
    }

    /// What a grant of this price takes from the level.
    fn taken(&self, price: i64) -> i64 {
        signed(self.conditions.raised(unsigned(price)))
    }
}

/// For numbers that were checked to be below `LOCAL_BOUND`, or clamped to that.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests;
