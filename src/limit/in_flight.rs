//! The concurrency limit: at most so many units in flight. It has no time, so a refusal names none.

use super::bucket::{Granted, Held, Judged, Refused, Report};
use super::claim::Change;
use super::quota::{QuotaError, UNITS_MAX};
use super::time::Micros;

/// A concurrency limit's checked parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    most: u64,
}

impl InFlight {
    /// At most `most` units at once.
    ///
    /// # Errors
    /// When `most` is zero or has more than 15 digits.
    pub fn new(most: u64) -> Result<Self, Vec<QuotaError>> {
        if most == 0 || most > UNITS_MAX {
            return Err(vec![QuotaError::new(
                "in_flight",
                format!("the most in flight must be between 1 and {UNITS_MAX}"),
            )]);
        }
        Ok(Self { most })
    }

    /// The most units at once.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Whether `cost` more may go in flight.
    pub fn judge(&self, state: Option<Held>, cost: u64) -> Judged<Held> {
        self.judge_below(self.most, state, cost)
    }

    /// As [`InFlight::judge`], under a limit found at run time that is below the file's (adaptive concurrency).
    pub fn judge_below(&self, most: u64, state: Option<Held>, cost: u64) -> Judged<Held> {
        let held = state.map_or(0, |s| s.units);
        match held.checked_add(cost).filter(|units| *units <= most.min(self.most)) {
            Some(units) => Ok(Granted { wait: Micros::ZERO, next: Held { units } }),
            None => Err(Refused::NEVER),
        }
    }

    /// How it stands.
    pub fn report(&self, state: Option<Held>) -> Report {
        let remaining = self.most.saturating_sub(state.map_or(0, |s| s.units));
        Report { remaining, reset: Micros::ZERO, effective: Micros::ZERO }
    }

    /// Frees places; `None`: nobody is in flight. A place is freed by its release only: a refund is about units per
    /// time and changes nothing here, nor does a charge.
    pub fn settle(&self, state: Option<Held>, change: Change) -> Option<Held> {
        let held = state.map_or(0, |s| s.units);
        let units = match change {
            Change::Release { units } => held.saturating_sub(units),
            Change::Charge { .. } | Change::Refund { .. } => held,
        };
        (units > 0).then_some(Held { units })
    }
}
