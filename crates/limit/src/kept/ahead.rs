//! Handles a clock that was set back. If a server's clock steps back by X, its buckets were last
//! drawn from at a moment X in the future, and would stop until the clock has caught up.
//!
//! Up to [`AHEAD_MAX`] a bucket does stop, which is strict and costs a caller no more than that
//! time. A bucket further ahead is moved to now with its units: nothing is added, and it refills
//! from now on. Let F be the total by which the server's clock has moved forward, by its own time
//! and by every step forward; then grants stay within `burst + rate x F`. A step back alone grants
//! nothing more, because F is then the time that has passed. Each step forward by X, with or
//! without a step back before it, counts as X of time, as it does on any server that relies on its
//! own clock.
//!
//! Windows and logs may legitimately hold units in the future: grants that requests wait for, and
//! debts. For those a store keeps the time of the write ([`StoredBucket::written`]), and they are moved
//! back by the amount that this time is ahead.

use super::StoredBucket;
use crate::bucket::{Pair, State};
use crate::time::{Micros, Timestamp};
use crate::{Algorithm, lease};

/// The furthest a bucket may be ahead of the clock.
pub const AHEAD_MAX: Micros = Micros(1_000_000);

/// Whether a moment is too far ahead of `now`.
pub fn is_far(at: Timestamp, now: Timestamp) -> bool {
    at.since(now) > AHEAD_MAX
}

impl StoredBucket {
    /// The time of the write to store, if the bucket then holds units in the future.
    pub fn written(&self, now: Timestamp) -> Option<Timestamp> {
        let last = match &self.state {
            Some(State::Pair(pair)) => pair.start,
            Some(State::Log(log)) => log.last()?,
            _ => return None,
        };
        (last > now).then_some(now)
    }

    /// Moves a bucket that is too far ahead of `now` back to it; returns whether it did. `written`
    /// is the result of [`StoredBucket::written`].
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
                        // A stored row may hold any numbers. A window that is not ahead of `now` is
                        // not moved further back, where it would no longer count.
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
                        // Both counts apply, as they do while the window stands.
                        let current = pair.previous.saturating_add(pair.current).min(own.most());
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
    /// Like [`StoredBucket::pull`]; also moves units that would count longer than leases do that are made
    /// now, whatever their numbers.
    pub fn pull(&mut self, now: Timestamp) -> bool {
        let mut pulled = is_far(self.level.at, now);
        if pulled {
            self.level.at = now;
        }
        let last = lease::Terms {
            most: 0,
            life: lease::LIFE_MAX,
        }
        .until(now);
        let far = self.ledger.extract_if(.., |slot| is_far(slot.until, last));
        let far = far.map(|slot| slot.units).sum();
        if far > 0 {
            self.count(last, far);
            pulled = true;
        }
        pulled
    }
}

#[cfg(test)]
mod tests;
