//! The concurrency limit: at most a fixed number of units in flight. It does not depend on time, so
//! a refusal has no retry time.

use super::bucket::{Granted, Held, Judged, Refused, Report};
use super::claim::Change;
use super::quota::{QuotaError, UNITS_MAX};
use super::time::{Micros, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    most: u64,
    /// The minimum number of places of an adaptive limit.
    least: Option<u64>,
    places: u64,
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
        Ok(Self {
            most,
            least: None,
            places: most,
        })
    }

    /// An adaptive limit: as many places as the upstream is found to take
    /// ([`InFlight::with_places`]), from `least` to `most`, starting with [`FIRST`]. Kept in the
    /// process.
    ///
    /// # Errors
    /// As [`InFlight::new`], for both bounds, and when `least` is above `most`.
    pub fn adaptive(least: u64, most: u64) -> Result<Self, Vec<QuotaError>> {
        Self::new(least)?;
        if least > most {
            return Err(vec![QuotaError::new(
                "in_flight",
                format!("the least, {least}, is above the most, {most}"),
            )]);
        }
        Ok(Self {
            least: Some(least),
            places: FIRST.clamp(least, most),
            ..Self::new(most)?
        })
    }

    /// The same limit; an adaptive one gets these `places`, within its bounds.
    #[must_use]
    pub fn with_places(&self, places: u64) -> Self {
        Self {
            places: places.clamp(self.least(), self.most),
            ..*self
        }
    }

    /// Whether its places are found from the upstream's response times.
    pub fn is_adaptive(&self) -> bool {
        self.least.is_some()
    }

    pub fn places(&self) -> u64 {
        self.places
    }

    /// The minimum number of places: all of them, unless the limit is adaptive.
    pub fn least(&self) -> u64 {
        self.least.unwrap_or(self.most)
    }

    /// The most units at once.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Whether `cost` more may go in flight.
    pub fn judge(&self, state: Option<Held>, cost: u64) -> Judged<Held> {
        let held = state.map_or(0, |s| s.units);
        match held
            .checked_add(cost)
            .filter(|units| *units <= self.places())
        {
            Some(units) => Ok(Granted {
                wait: Micros::ZERO,
                next: Held { units },
            }),
            None => Err(Refused::NEVER),
        }
    }

    pub fn report(&self, state: Option<Held>) -> Report {
        let remaining = self.places().saturating_sub(state.map_or(0, |s| s.units));
        Report {
            remaining,
            owed: 0,
            reset: Micros::ZERO,
            effective: Micros::ZERO,
            window_end: Timestamp::default(),
        }
    }

    /// Frees places; `None`: nothing is in flight. Only a release frees a place: a refund or charge
    /// corrects units per time and changes nothing here.
    pub fn settle(&self, state: Option<Held>, change: Change) -> Option<Held> {
        let held = state.map_or(0, |s| s.units);
        let units = match change {
            Change::Release { units } => held.saturating_sub(units),
            Change::Charge { .. }
            | Change::Refund { .. }
            | Change::RefundWithin { .. }
            | Change::Withdraw { .. } => held,
        };
        (units > 0).then_some(Held { units })
    }
}

pub const FIRST: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_flight_adaptive_keeps_to_the_places_that_were_found() {
        let limit = InFlight::adaptive(1, 1_000).expect("two numbers");
        assert!(limit.judge(Some(Held { units: FIRST - 1 }), 1).is_ok());
        assert!(limit.judge(Some(Held { units: FIRST }), 1).is_err());
        let fewer = limit.with_places(5);
        assert!(fewer.judge(Some(Held { units: 4 }), 1).is_ok());
        assert!(fewer.judge(Some(Held { units: 5 }), 1).is_err());
        assert_eq!(fewer.report(Some(Held { units: 9 })).remaining, 0);
        assert!(InFlight::adaptive(0, 5).is_err() && InFlight::adaptive(6, 5).is_err());
        let fixed = InFlight::new(7).expect("a number");
        assert_eq!(fixed.with_places(3), fixed, "it adapts to nothing");
    }
}
