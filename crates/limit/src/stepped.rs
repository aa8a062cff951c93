//! A bucket that is refilled in steps: `amount` units at once at each boundary, up to `burst`.
//!
//! The interval bucket and every fixed window use this type and differ only in where the boundaries
//! are. A fixed window of Q is the bucket whose burst and amount are both Q: it is full again at
//! each boundary. With boundaries counted from the first use of the full bucket, it is the window
//! "from the first hit"; with boundaries at multiples of the period or of a calendar, it is the
//! aligned window. Debt and waiting are carried over a boundary as units below zero.

use super::bucket::{Granted, Judged, Refused, Report, Steps};
use super::claim::Change;
use super::limit_spec::Align;
use super::quota::{LOCAL_BOUND, Quota, QuotaError, SHARED_BOUND};
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
    /// Checks that every number this bucket can reach is exact where it is kept.
    ///
    /// # Errors
    /// Each setting that makes it inexact.
    pub fn new(
        quota: Quota,
        align: Align,
        debt: u64,
        max_wait: Micros,
        shared: bool,
    ) -> Result<Self, Vec<QuotaError>> {
        let bound = i128::from(if shared { SHARED_BOUND } else { LOCAL_BOUND });
        let mut errors = Vec::new();
        if let Align::Calendar(calendar) = &align {
            let ascending = calendar.boundaries.windows(2).all(|pair| pair[0] < pair[1]);
            if calendar.boundaries.len() < 2 || !ascending {
                errors.push(QuotaError::new(
                    "window",
                    "a calendar needs two boundaries at least, in ascending order",
                ));
            }
        }
        // Whole units are never multiplied by the period, so the period sets no bound here.
        if reach(&quota, debt, max_wait) >= bound {
            let field = if max_wait == Micros::ZERO {
                "debt"
            } else {
                "max_wait"
            };
            errors.push(QuotaError::new(
                field,
                "more units ahead than can be counted exactly; choose less",
            ));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let made = Self {
            amount: signed(quota.amount),
            burst: signed(quota.burst),
            floor: -signed(quota.burst.max(debt)),
            settled: 0,
            quota,
            align,
            debt,
            max_wait,
        };
        let field = if debt > made.quota.amount {
            "debt"
        } else {
            "max_wait"
        };
        made.told_whole(field, shared)
    }

    /// The same bucket; each grant may turn out to cost up to `more` units above what it drew. A
    /// charge of that size is never reduced when it comes after the bucket's last grant.
    ///
    /// # Errors
    /// When units that low are not exact where they are kept.
    pub(super) fn settling(self, more: u64, shared: bool) -> Result<Self, Vec<QuotaError>> {
        let bound = i128::from(if shared { SHARED_BOUND } else { LOCAL_BOUND });
        let fits = bound - 1 - reach(&self.quota, self.debt, self.max_wait);
        if i128::from(more) > fits {
            return Err(vec![QuotaError::too_much_to_settle(
                u64::try_from(fits).unwrap_or(0),
                shared,
            )]);
        }
        let deepest = signed(self.promised().saturating_add(more));
        let floor = self.floor.min(-deepest);
        Self {
            settled: more,
            floor,
            ..self
        }
        .told_whole("settle", shared)
    }

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

    /// Returns `self`, unless a shared store would need too many windows of its calendar.
    fn told_whole(self, field: &'static str, shared: bool) -> Result<Self, Vec<QuotaError>> {
        let steps = self.steps_most();
        if shared && matches!(self.align, Align::Calendar(_)) && steps > CALENDAR_STEPS_MAX {
            let told = format!(
                "paying it back takes up to {steps} windows, and a shared store gets {CALENDAR_STEPS_MAX} windows of \
                 a calendar; choose less, or store = \"local\""
            );
            return Err(vec![QuotaError::new(field, told)]);
        }
        Ok(self)
    }

    /// The most steps until a bucket is at its burst again, from the lowest level that its own
    /// numbers allow.
    pub fn steps_most(&self) -> u64 {
        let lowest = self.promised().max(self.floor.unsigned_abs());
        self.quota
            .burst
            .saturating_add(lowest)
            .div_ceil(self.quota.amount)
    }

    /// The most units below zero that a grant leaves.
    fn promised(&self) -> u64 {
        let ahead = match self.max_wait {
            Micros::ZERO => 0,
            // The current step, and one that the wait only partly covers.
            wait => wait.0 / self.quota.period.0 + 2,
        };
        ahead
            .saturating_mul(self.quota.amount)
            .saturating_add(self.debt)
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
        Report {
            remaining,
            reset,
            effective,
            window_end: self.boundary(since, 1),
        }
    }

    /// Corrects an earlier grant; `None`: full again. A charge stops at [`Stepped::floor`]. A
    /// refund never fills above the burst, and is dropped while a request may be waiting for its
    /// step (see [`super::TokenBucket::settle`]).
    pub fn settle(&self, state: Option<Steps>, change: Change, now: Timestamp) -> Option<Steps> {
        let Steps { units, since } = self.current(state, now);
        let settled = match change {
            Change::Charge { more } => units
                .saturating_sub(signed(more))
                .max(self.floor())
                .min(units),
            Change::Refund { units: back } | Change::Withdraw { units: back, .. }
                if units >= 0 || self.max_wait == Micros::ZERO =>
            {
                units.saturating_add(signed(back)).min(self.burst)
            }
            Change::RefundWithin {
                units: back,
                window_end,
            } if self.boundary(since, 1) == window_end
                && (units >= 0 || self.max_wait == Micros::ZERO) =>
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

    /// The state under `new`: the units at `now`, clamped to the new burst and never increased, so
    /// that no debt is forgiven. The step continues. If a shorter period has already passed, the
    /// next boundary is the old one, or one new period away: a raise makes no caller wait longer.
    /// Boundaries of their own (of the clock, of a calendar) are the new ones.
    pub fn rescale(&self, state: Steps, new: &Self, now: Timestamp) -> Option<Steps> {
        let Steps { units, since } = self.current(Some(state), now);
        let same_steps = self.align == new.align && self.quota.period == new.quota.period;
        let goes_on =
            same_steps || (new.align == Align::FirstHit && new.steps_between(since, now) == 0);
        let since = if goes_on {
            since
        } else if new.align == Align::FirstHit {
            let due = self.boundary(since, 1).as_micros();
            let began = due.saturating_sub(new.quota.period.0).min(now.as_micros());
            Timestamp::from_micros(began)
        } else {
            new.start_of(now)
        };
        let units = units.min(new.burst);
        (units < new.burst).then_some(Steps { units, since })
    }

    /// The same steps without debt.
    pub(super) fn bare(&self, max_wait: Micros) -> Self {
        Self {
            debt: 0,
            max_wait,
            floor: -self.burst,
            settled: 0,
            ..self.clone()
        }
    }

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

    /// The least number of whole steps that gain `gain` units.
    fn steps_to_gain(&self, gain: i64) -> u64 {
        u64::try_from(gain).unwrap_or(0).div_ceil(self.quota.amount)
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The greatest distance between two unit counts, without settlements.
fn reach(quota: &Quota, debt: u64, max_wait: Micros) -> i128 {
    let steps_ahead = i128::from(max_wait.0 / quota.period.0) + 2;
    2 * i128::from(quota.burst) + 2 * i128::from(debt) + steps_ahead * i128::from(quota.amount)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Calendar;
    use crate::quota::Rate;

    #[test]
    fn debt_of_more_windows_than_a_store_knows_is_refused_where_shared() {
        let boundaries = (1..100)
            .map(|day| Timestamp::from_micros(day * 86_400_000_000))
            .collect();
        let calendar = Align::Calendar(Arc::new(Calendar {
            boundaries,
            words: "day".into(),
        }));
        let make = |align: &Align, debt, shared| {
            let quota =
                Quota::new(Rate::new(10, Micros::from_secs(86_400)), 10).expect("representable");
            Stepped::new(quota, align.clone(), debt, Micros::ZERO, shared)
        };
        assert_eq!(
            make(&calendar, 630, true).expect("possible").steps_most(),
            CALENDAR_STEPS_MAX
        );
        let errors = make(&calendar, 631, true).expect_err("one window more");
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0].field == "debt" && errors[0].message.contains("65 windows"),
            "{errors:?}"
        );
        assert!(make(&calendar, 631, false).is_ok() && make(&Align::Clock, 631, true).is_ok());
    }
}
