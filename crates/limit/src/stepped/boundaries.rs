//! Where the boundaries of steps are: counted from the first use, at multiples of the period, or
//! those of a calendar.

use super::Stepped;
use crate::limit_spec::Align;
use crate::time::{Micros, Timestamp};

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
