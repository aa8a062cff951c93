//! A bucket that is refilled in steps: `amount` units at once at each boundary, up to `burst`.
//!
//! The interval bucket and every fixed window use this type and differ only in where the boundaries
//! are. A fixed window of Q is the bucket whose burst and amount are both Q: it is full again at
//! each boundary. With boundaries counted from the first use of the full bucket, it is the window
//! "from the first hit"; with boundaries at multiples of the period or of a calendar, it is the
//! aligned window. Debt and waiting are carried over a boundary as units below zero.
//!
//! In any span of T an interval bucket grants at most `burst + amount x ceil(T / period)`. A fixed
//! window may grant up to twice its amount around the edge of two windows; every fixed window has
//! this property.

mod exact;

use super::bucket::{Granted, Judged, Refused, Report, Steps};
use super::claim::Change;
use super::limit_spec::Align;
use super::quota::Quota;
use super::time::{Micros, Timestamp};

/// The most calendar windows, in each direction, that a shared store receives for a decision.
pub const CALENDAR_STEPS_MAX: u64 = 64;

/// The checked parameters of a bucket refilled in steps. Its state counts what was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stepped {
    quota: Quota,
    align: Align,
    debt: u64,
    max_wait: Micros,
    burst: i64,
    floor: i64,
    settled: u64,
}

impl Stepped {
    /// The same bucket as a ceiling: nothing leads below zero.
    pub(super) fn ceiling(self) -> Self {
        Self { floor: 0, ..self }
    }

    pub fn is_ceiling(&self) -> bool {
        self.floor == 0
    }

    /// Units that a grant may turn out to cost above what it drew.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    pub fn align(&self) -> &Align {
        &self.align
    }

    /// Units it may go below zero by at admission.
    pub fn debt(&self) -> u64 {
        self.debt
    }

    /// The longest a request may wait for its step.
    pub fn max_wait(&self) -> Micros {
        self.max_wait
    }

    /// The lowest level, in units, that a settlement may cause: `debt`, or one burst, below zero.
    /// It is lower where more is needed to charge the largest settlement in full after the lowest
    /// grant ([`super::Algorithm::settling`]).
    pub fn floor(&self) -> i64 {
        self.floor
    }

    /// The state at `now`: what whole steps have freed, and the start of the step that contains
    /// `now`. A clock that stepped back frees nothing. A bucket that was drawn under a smaller amount
    /// frees this one's, as of its first request under it.
    pub fn current(&self, state: Option<Steps>, now: Timestamp) -> Steps {
        let fresh = Steps {
            used: 0,
            since: self.start_of(now),
            amount: self.quota.amount,
        };
        let Some(Steps {
            used,
            since,
            amount,
        }) = state
        else {
            return fresh;
        };
        let amount = amount.max(self.quota.amount);
        let passed = self.steps_between(since, now);
        if passed >= used.div_ceil(amount) {
            return fresh;
        }
        Steps {
            used: used - passed * amount,
            since: self.boundary(since, passed),
            amount,
        }
    }

    /// Units left; below zero where they are owed.
    fn left(&self, state: Steps) -> i64 {
        self.burst.saturating_sub(signed(state.used))
    }

    /// Whether `cost` can be drawn at `now`.
    pub fn judge(&self, state: Option<Steps>, cost: u64, now: Timestamp) -> Judged<Steps> {
        if cost > self.quota.burst.saturating_add(self.debt) {
            return Err(Refused::NEVER);
        }
        // Never while a debt is open: this caller passes now, the next one waits.
        let need = signed(cost.saturating_sub(self.debt));
        let current = self.current(state, now);
        let left = self.left(current);
        if left >= need {
            return Ok(Granted {
                wait: Micros::ZERO,
                next: Steps {
                    used: current.used + cost,
                    ..current
                },
            });
        }
        let steps = current.steps_to_free(need - left);
        let wait = self.boundary(current.since, steps).since(now);
        if wait > self.max_wait {
            return Err(Refused::after(Micros(wait.0 - self.max_wait.0)));
        }
        // What a step would free beyond what was used by the due boundary is lost, as it is for a
        // request that arrives then.
        let freed = steps * current.amount;
        Ok(Granted {
            wait,
            next: Steps {
                used: current.used.max(freed) + cost,
                ..current
            },
        })
    }

    /// The bucket's numbers. `to_boundary`: the effective window ends with the step (windows)
    /// instead of following the rate (intervals).
    pub fn report(&self, state: Option<Steps>, now: Timestamp, to_boundary: bool) -> Report {
        let current = self.current(state, now);
        let left = self.left(current);
        let remaining = u64::try_from(left).unwrap_or(0);
        let until = |steps| self.boundary(current.since, steps).since(now);
        let effective = match remaining {
            0 => until(current.steps_to_free(1 - left)),
            _ if to_boundary => until(1),
            _ => self.quota.time_for(remaining),
        };
        let reset = match current.used {
            0 => Micros::ZERO,
            used => until(used.div_ceil(current.amount)),
        };
        // Units below zero are those of later windows, for which requests wait. (With a debt they
        // may have been granted without a wait.)
        let ahead = if self.max_wait > Micros::ZERO && self.debt == 0 {
            current.steps_to_free(left.saturating_neg())
        } else {
            0
        };
        Report {
            remaining,
            owed: u64::try_from(left.saturating_neg()).unwrap_or(0),
            reset,
            effective,
            window_end: self.boundary(current.since, ahead + 1),
        }
    }

    /// Corrects an earlier grant; `None`: nothing is used. A charge stops at [`Stepped::floor`], or
    /// at that of the larger amount that the bucket was drawn under. A refund is dropped while a
    /// request may be waiting for its step (see [`super::TokenBucket::settle`]).
    pub fn settle(&self, state: Option<Steps>, change: Change, now: Timestamp) -> Option<Steps> {
        let current = self.current(state, now);
        let used = current.used;
        let is_of_now = match change {
            Change::RefundWithin { window_end, .. } => {
                self.boundary(current.since, 1) == window_end
            }
            _ => true,
        };
        let may_return = is_of_now && (self.left(current) >= 0 || self.max_wait == Micros::ZERO);
        let settled = match change {
            Change::Charge { more } => used.saturating_add(more).min(self.most(current)).max(used),
            Change::Refund { units: back }
            | Change::RefundWithin { units: back, .. }
            | Change::Withdraw { units: back, .. }
                if may_return =>
            {
                used.saturating_sub(back)
            }
            Change::RefundWithin { .. }
            | Change::Refund { .. }
            | Change::Withdraw { .. }
            | Change::Release { .. } => used,
        };
        (settled > 0).then_some(Steps {
            used: settled,
            ..current
        })
    }

    /// The most that a charge lets be used.
    fn most(&self, state: Steps) -> u64 {
        let own = self.burst.saturating_sub(self.floor);
        u64::try_from(own).unwrap_or(0) + state.amount.saturating_sub(self.quota.amount)
    }

    /// When the bucket equals no bucket.
    pub fn expiry(&self, state: Steps) -> Timestamp {
        self.boundary(state.since, state.used.div_ceil(state.amount.max(1)))
    }
}

impl Steps {
    /// The least number of whole steps that free `units`.
    fn steps_to_free(self, units: i64) -> u64 {
        u64::try_from(units)
            .unwrap_or(0)
            .div_ceil(self.amount.max(1))
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The boundaries of steps: from the first use, multiples of the period, or a calendar's.
impl Stepped {
    /// The start of the step in which a full bucket is first used at `now`.
    pub fn start_of(&self, now: Timestamp) -> Timestamp {
        match &self.align {
            Align::FirstHit => now,
            Align::Clock => {
                Timestamp::from_micros(now.as_micros() / self.quota.period.0 * self.quota.period.0)
            }
            Align::Calendar(calendar) => calendar.boundary(calendar.position(now)),
        }
    }

    /// How many boundaries lie after `since` and at or before `now`.
    pub fn steps_between(&self, since: Timestamp, now: Timestamp) -> u64 {
        match &self.align {
            Align::FirstHit | Align::Clock => now.since(since).0 / self.quota.period.0,
            Align::Calendar(calendar) => calendar
                .position(now)
                .saturating_sub(calendar.position(since)),
        }
    }

    /// The `steps`-th boundary after `since`.
    pub fn boundary(&self, since: Timestamp, steps: u64) -> Timestamp {
        match &self.align {
            Align::FirstHit | Align::Clock => {
                since.after(Micros(self.quota.period.0.saturating_mul(steps)))
            }
            Align::Calendar(calendar) => {
                calendar.boundary(calendar.position(since).saturating_add(steps))
            }
        }
    }
}

#[cfg(test)]
mod tests;
