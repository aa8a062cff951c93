//! Which numbers a stepped bucket can have: every count that it can reach is exact where it is kept,
//! and a shared store is sent few enough windows of a calendar.

use super::{CALENDAR_STEPS_MAX, Stepped, signed};
use crate::limit_spec::Align;
use crate::quota::{LOCAL_BOUND, Quota, QuotaError, SHARED_BOUND};
use crate::time::Micros;

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
    pub(crate) fn settling(self, more: u64, shared: bool) -> Result<Self, Vec<QuotaError>> {
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

    /// Returns `self`, unless a shared store would need too many windows of its calendar.
    fn told_whole(self, field: &'static str, shared: bool) -> Result<Self, Vec<QuotaError>> {
        let steps = self.steps_most();
        if shared && matches!(self.align, Align::Calendar(_)) && steps > CALENDAR_STEPS_MAX {
            let why = format!(
                "paying it back takes up to {steps} windows, and a shared store gets {CALENDAR_STEPS_MAX} windows of \
                 a calendar; choose less, or store = \"local\""
            );
            return Err(vec![QuotaError::new(field, why)]);
        }
        Ok(self)
    }

    /// The most steps until a bucket is full, from the lowest level that its own numbers allow.
    pub fn steps_most(&self) -> u64 {
        let lowest = self.promised().max(self.floor.unsigned_abs());
        let units = self.quota.burst.saturating_add(lowest);
        units.div_ceil(self.quota.amount)
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
}

fn reach(quota: &Quota, debt: u64, max_wait: Micros) -> i128 {
    let steps_ahead = i128::from(max_wait.0 / quota.period.0) + 2;
    2 * i128::from(quota.burst) + 2 * i128::from(debt) + steps_ahead * i128::from(quota.amount)
}

#[cfg(test)]
mod tests;
