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

mod boundaries;
mod exact;
mod rescale;

use super::bucket::{Granted, Judged, Refused, Report, Steps};
use super::claim::Change;
use super::limit_spec::Align;
use super::quota::Quota;
use super::time::{Micros, Timestamp};

/// The most calendar windows, in each direction, that a shared store receives for a decision.
pub const CALENDAR_STEPS_MAX: u64 = 64;

/// The checked parameters of a bucket refilled in steps. Its state counts whole units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stepped {
    quota: Quota,
    align: Align,
    debt: u64,
    max_wait: Micros,
    amount: i64,
    burst: i64,
    floor: i64,
    settled: u64,
}

impl Stepped {
    /// The same bucket as a ceiling: nothing leads below zero.
    pub(super) fn ceiling(self) -> Self {
        Self { floor: 0, ..self }
    }

    /// Whether it is a ceiling.
    pub fn is_ceiling(&self) -> bool {
        self.floor == 0
    }

    /// Units that a grant may turn out to cost above what it drew.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Its amount, period and burst.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Where its boundaries are.
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

    /// The state at `now`: whole steps gained, and the start of the step that contains `now`. A
    /// clock that stepped back gains nothing.
    pub fn current(&self, state: Option<Steps>, now: Timestamp) -> Steps {
        let fresh = Steps {
            units: self.burst,
            since: self.start_of(now),
        };
        let Some(Steps { units, since }) = state else {
            return fresh;
        };
        let passed = self.steps_between(since, now);
        if units >= self.burst || passed >= self.steps_to_gain(self.burst - units) {
            return fresh;
        }
        Steps {
            units: units + signed(passed) * self.amount,
            since: self.boundary(since, passed),
        }
    }

    /// Whether `cost` can be drawn at `now`.
    pub fn judge(&self, state: Option<Steps>, cost: u64, now: Timestamp) -> Judged<Steps> {
        if cost > self.quota.burst.saturating_add(self.debt) {
            return Err(Refused::NEVER);
        }
        let price = signed(cost);
        // Never while a debt is open: the caller that makes the debt passes now, the next one
        // waits.
        let need = signed(cost.saturating_sub(self.debt));
        let Steps { units, since } = self.current(state, now);
        if units >= need {
            return Ok(Granted {
                wait: Micros::ZERO,
                next: Steps {
                    units: units - price,
                    since,
                },
            });
        }
        let steps = self.steps_to_gain(need - units);
        let wait = self.boundary(since, steps).since(now);
        if wait > self.max_wait {
            return Err(Refused::after(Micros(wait.0 - self.max_wait.0)));
        }
        // Units that would exceed the capacity by the due boundary are lost, as they are for a
        // request that arrives then.
        let gained = signed(steps) * self.amount;
        let due = (units + gained).min(self.burst);
        Ok(Granted {
            wait,
            next: Steps {
                units: due - price - gained,
                since,
            },
        })
    }

    /// The bucket's numbers. `to_boundary`: the effective window ends with the step (windows)
    /// instead of following the rate (intervals).
    pub fn report(&self, state: Option<Steps>, now: Timestamp, to_boundary: bool) -> Report {
        let Steps { units, since } = self.current(state, now);
        let remaining = u64::try_from(units).unwrap_or(0);
        let until = |steps| self.boundary(since, steps).since(now);
        let effective = match remaining {
            0 => until(self.steps_to_gain(1 - units)),
            _ if to_boundary => until(1),
            _ => self.quota.time_for(remaining),
        };
        let reset = if units >= self.burst {
            Micros::ZERO
        } else {
            until(self.steps_to_gain(self.burst - units))
        };
        // Units below zero are those of later windows, for which requests wait. (With a debt they
        // may have been granted without a wait.)
        let ahead = if self.max_wait > Micros::ZERO && self.debt == 0 {
            self.steps_to_gain(units.saturating_neg())
        } else {
            0
        };
        Report {
            remaining,
            reset,
            effective,
            window_end: self.boundary(since, ahead + 1),
        }
    }

    /// Corrects an earlier grant; `None`: full again. A charge stops at [`Stepped::floor`]. A
    /// refund never fills above the burst, and is dropped while a request may be waiting for its
    /// step (see [`super::TokenBucket::settle`]).
    pub fn settle(&self, state: Option<Steps>, change: Change, now: Timestamp) -> Option<Steps> {
        let Steps { units, since } = self.current(state, now);
        let is_of_now = match change {
            Change::RefundWithin { window_end, .. } => self.boundary(since, 1) == window_end,
            _ => true,
        };
        let may_return = is_of_now && (units >= 0 || self.max_wait == Micros::ZERO);
        let settled = match change {
            Change::Charge { more } => units
                .saturating_sub(signed(more))
                .max(self.floor())
                .min(units),
            Change::Refund { units: back }
            | Change::RefundWithin { units: back, .. }
            | Change::Withdraw { units: back, .. }
                if may_return =>
            {
                units.saturating_add(signed(back)).min(self.burst)
            }
            Change::RefundWithin { .. }
            | Change::Refund { .. }
            | Change::Withdraw { .. }
            | Change::Release { .. } => units,
        };
        (settled < self.burst).then_some(Steps {
            units: settled,
            since,
        })
    }

    /// When the bucket equals no bucket.
    pub fn expiry(&self, state: Steps) -> Timestamp {
        self.boundary(
            state.since,
            self.steps_to_gain(self.burst.saturating_sub(state.units)),
        )
    }

    /// The least number of whole steps that gain `gain` units.
    fn steps_to_gain(&self, gain: i64) -> u64 {
        u64::try_from(gain).unwrap_or(0).div_ceil(self.quota.amount)
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
