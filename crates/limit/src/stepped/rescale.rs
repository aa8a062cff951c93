//! Converts a stepped bucket to other numbers.

use super::Stepped;
use crate::bucket::Steps;
use crate::limit_spec::Align;
use crate::time::{Micros, Timestamp};

impl Stepped {
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
    pub(crate) fn bare(&self, max_wait: Micros) -> Self {
        Self {
            debt: 0,
            max_wait,
            floor: -self.burst,
            settled: 0,
            ..self.clone()
        }
    }
}
