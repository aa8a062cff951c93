//! The concurrency limit: at most so many units in flight. It has no time, so a refusal names none.

use std::sync::{Arc, OnceLock};

use super::adaptive::{Adaptive, Ceiling};
use super::bucket::{Granted, Held, Judged, Refused, Report};
use super::claim::Change;
use super::quota::{QuotaError, UNITS_MAX};
use super::time::Micros;

/// A concurrency limit's checked parameter.
#[derive(Clone, Debug)]
pub struct InFlight {
    most: u64,
    adaptive: Option<Arc<Moved>>,
}

/// An adaptive limit's bounds, and what moves it between them.
#[derive(Debug)]
struct Moved {
    least: u64,
    most: u64,
    /// Made at first use, unless taken over from the configuration before.
    ceiling: OnceLock<Arc<Ceiling>>,
}

/// Two adaptive limits are equal only if one controller moves both: a reload that keeps a bucket must not part it from its
/// controller.
impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        let same_ceiling = match (&self.adaptive, &other.adaptive) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a.ceiling(), b.ceiling()),
            _ => false,
        };
        self.most == other.most && same_ceiling
    }
}

impl Eq for InFlight {}

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
            adaptive: None,
        })
    }

    /// As many as the upstream is found to take, from `least` to `most`; it starts with [`FIRST`]. Kept in the process.
    ///
    /// # Errors
    /// As [`InFlight::new`], for both, and when the least is above the most.
    pub fn adaptive(least: u64, most: u64) -> Result<Self, Vec<QuotaError>> {
        Self::new(least)?;
        if least > most {
            return Err(vec![QuotaError::new(
                "in_flight",
                format!("the least, {least}, is above the most, {most}"),
            )]);
        }
        let moved = Moved {
            least,
            most,
            ceiling: OnceLock::new(),
        };
        Ok(Self {
            adaptive: Some(Arc::new(moved)),
            ..Self::new(most)?
        })
    }

    /// Goes on from where the limit of the configuration before this one stood, within this one's bounds. Before first
    /// use, or it is too late.
    pub fn adopt(&self, before: &Self) {
        if let (Some(moved), Some(before)) = (&self.adaptive, &before.adaptive) {
            let same = (moved.least, moved.most) == (before.least, before.most);
            let ceiling = match same {
                true => Arc::clone(before.ceiling()),
                false => Arc::new(before.ceiling().within(moved.least, moved.most)),
            };
            let _ = moved.ceiling.set(ceiling);
        }
    }

    /// What moves an adaptive limit.
    pub fn ceiling(&self) -> Option<&Ceiling> {
        self.adaptive.as_ref().map(|moved| &**moved.ceiling())
    }

    /// The places there are now.
    pub fn places(&self) -> u64 {
        self.ceiling()
            .map_or(self.most, |ceiling| ceiling.places().min(self.most))
    }

    /// The fewest places there can be: all of them, unless it is adaptive.
    pub fn least(&self) -> u64 {
        self.adaptive
            .as_ref()
            .map_or(self.most, |moved| moved.least)
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

    /// How it stands.
    pub fn report(&self, state: Option<Held>) -> Report {
        let remaining = self.places().saturating_sub(state.map_or(0, |s| s.units));
        Report {
            remaining,
            reset: Micros::ZERO,
            effective: Micros::ZERO,
        }
    }

    /// Frees places; `None`: nobody is in flight. A place is freed by its release only: a refund is about units per
    /// time and changes nothing here, nor does a charge.
    pub fn settle(&self, state: Option<Held>, change: Change) -> Option<Held> {
        let held = state.map_or(0, |s| s.units);
        let units = match change {
            Change::Release { units } => held.saturating_sub(units),
            Change::Charge { .. } | Change::Refund { .. } | Change::Withdraw { .. } => held,
        };
        (units > 0).then_some(Held { units })
    }
}

impl Moved {
    fn ceiling(&self) -> &Arc<Ceiling> {
        self.ceiling
            .get_or_init(|| Arc::new(Ceiling::new(Adaptive::new(self.least, self.most, FIRST))))
    }
}

/// The places an adaptive limit starts with.
pub const FIRST: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    #[test]
    fn an_adaptive_limit_sheds_what_the_upstream_cannot_take() {
        let limit = InFlight::adaptive(1, 1_000).expect("a number");
        assert!(limit.judge(Some(Held { units: FIRST - 1 }), 1).is_ok());
        assert!(limit.judge(Some(Held { units: FIRST }), 1).is_err());
        let ceiling = limit.ceiling().expect("adaptive");
        for second in 0..20 {
            ceiling.answered(
                Timestamp::from_micros(second * 1_000_000),
                Micros(10_000),
                FIRST,
                true,
            );
        }
        assert!(limit.places() < FIRST / 2, "{}", limit.places());
        assert!(limit.judge(Some(Held { units: FIRST / 2 }), 1).is_err());
        assert_ne!(
            limit,
            InFlight::adaptive(1, 1_000).expect("a number"),
            "each has a controller of its own"
        );
        assert_eq!(limit, limit.clone());
        let (reloaded, raised) = (InFlight::adaptive(1, 1_000), InFlight::adaptive(15, 30));
        let (reloaded, raised) = (reloaded.expect("a number"), raised.expect("two numbers"));
        reloaded.adopt(&limit);
        raised.adopt(&limit);
        assert_eq!(
            (reloaded.places(), &reloaded),
            (limit.places(), &limit),
            "a reload forgets nothing"
        );
        assert_eq!(raised.places(), 15, "the file's least");
        assert_ne!(raised, limit);
        assert!(InFlight::adaptive(0, 5).is_err() && InFlight::adaptive(6, 5).is_err());
    }
}
