//! A clock that was put back: the bucket of a server whose clock has stepped back by X was last drawn from at a moment that lies X
//! ahead, and would stand still until the clock has caught up.
//!
//! Up to [`AHEAD_MAX`] it does, which is strict and costs nobody more than that. Further ahead, it is pulled to now with the
//! units it has: nothing is added, and it refills from now on. So what is granted while the server's clock has moved
//! forward by F in all, its own time and every step forward, is within `burst + rate x F`. A step back by itself
//! lets nobody have more, since F is then the time that has passed; each step forward by X, with a step back before it or
//! not, counts as X of time, as on any server whose clock is its word.
//!
//! Windows and logs may hold units in the future by right: grants that are waited for, and debts. Of those a store keeps when
//! they were written ([`Kept::written`]), and they are pulled by as much as that lies ahead.

use super::Kept;
use crate::bucket::{Pair, State};
use crate::time::{Micros, Timestamp};
use crate::{Algorithm, lease};

/// So far ahead of the clock a bucket may lie.
pub const AHEAD_MAX: Micros = Micros(1_000_000);

/// Whether a moment lies too far ahead of `now`.
pub fn is_far(at: Timestamp, now: Timestamp) -> bool {
    at.since(now) > AHEAD_MAX
}

impl Kept {
    /// When it is written, if it holds units that are still to come then.
    pub fn written(&self, now: Timestamp) -> Option<Timestamp> {
        let last = match &self.state {
            Some(State::Pair(pair)) => pair.start,
            Some(State::Log(log)) => log.last()?,
            _ => return None,
        };
        (last > now).then_some(now)
    }

    /// Pulls a bucket that lies too far ahead of `now` to it; whether it did. `written`: what [`Kept::written`] said.
    pub fn pull(&mut self, written: Option<Timestamp>, now: Timestamp) -> bool {
        match (&self.algorithm, &mut self.state) {
            (_, Some(State::Level(level))) if is_far(level.at, now) => level.at = now,
            (Algorithm::Interval(own) | Algorithm::FixedWindow(own), Some(State::Steps(steps)))
                if is_far(steps.since, now) =>
            {
                steps.since = own.start_of(now);
            }
            (Algorithm::SlidingWindow(own), Some(State::Pair(pair)))
                if is_far(written.unwrap_or(pair.start), now) =>
            {
                *pair = match written {
                    Some(written) => {
                        // A stored row may hold any numbers. A window that is not ahead of `now` is not pulled
                        // further back, where it would count no more.
                        let moved = pair.start.as_micros().saturating_sub(written.since(now).0);
                        let start = moved.max(pair.start.min(now).as_micros());
                        let period = own.quota().period.0;
                        let start = start
                            .checked_next_multiple_of(period)
                            .unwrap_or(start - start % period);
                        Pair {
                            start: Timestamp::from_micros(start),
                            ..*pair
                        }
                    }
                    None => {
                        // All of it counts, as it does while it stands still.
                        let current = pair
                            .previous
                            .saturating_add(pair.current)
                            .min(own.most().max(pair.current));
                        Pair {
                            current,
                            ..own.current(None, now)
                        }
                    }
                };
            }
            (Algorithm::SlidingLog(_), Some(State::Log(log))) => {
                let Some(latest) = written.or_else(|| log.last()).filter(|at| is_far(*at, now))
                else {
                    return false;
                };
                log.move_back(latest.since(now));
            }
            _ => return false,
        }
        true
    }
}

impl lease::Leased {
    /// As [`Kept::pull`], and so the leases that would count longer than leases of `terms` do.
    pub fn pull(&mut self, terms: Option<&lease::Terms>, now: Timestamp) -> bool {
        let mut pulled = is_far(self.level.at, now);
        if pulled {
            self.level.at = now;
        }
        let Some(until) = terms.map(|terms| now.after(terms.counted())) else {
            return pulled;
        };
        for lease in self
            .leases
            .iter_mut()
            .filter(|lease| is_far(lease.until, until))
        {
            (lease.until, pulled) = (until, true);
        }
        pulled
    }
}

#[cfg(test)]
mod tests;
