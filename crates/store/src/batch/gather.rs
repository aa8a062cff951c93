//! Decides whether the next call waits briefly for callers that just got a response.
//!
//! Callers that ask again immediately (an overloaded gateway's workers) return one after the other.
//! If the next call left with the first of them, the others would go together in the call after it:
//! two halves that alternate forever, with twice the necessary calls and twice the wait. So a lane
//! waits until most of the callers it told, and of those already queued, are back. It waits a few
//! slices of time at most, and only while each slice brings its share. If callers do not return
//! soon (their requests go on to an upstream), this is detected at once, and waiting is tried less
//! and less often.
//!
//! A single caller never waits: a lane does not wait for fewer than [`WORTH`].

use std::time::Duration;

use super::{ASKS_MAX, Shared};

/// A lane does not wait for fewer callers than this.
const WORTH: usize = 4;
/// One in this many callers may be missing without being waited for.
const STRAGGLERS: usize = 8;
/// With each call the expected number of callers shrinks by one in this many, unless they return.
const SHRINKS: usize = 32;
/// The longest single wait. (Systems add to it: Linux about 50 us.)
const SLICE: Duration = Duration::from_micros(30);
/// Each slice must bring one in this many of the expected callers, or it is the last.
const PROGRESS: usize = 4;
/// After this many failed waits in a row, waiting becomes no rarer: one in 2^(this - 1) calls.
const RAREST: u32 = 7;

/// Decides which calls wait.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Failed waits in a row.
    vain: u32,
    /// Calls until the next attempt.
    pause: u32,
    /// How many callers return, as far as known.
    crowd: usize,
}

impl Gathering {
    /// Called after a call's `told` callers got their responses, while `queued` others were
    /// waiting: waits as long as it is useful.
    pub(super) fn wait(&mut self, shared: &Shared, told: usize, queued: usize) {
        let before = shared.queued();
        let Some(enough) = self.enough(told, queued).filter(|enough| *enough > before) else {
            return;
        };
        let (part, mut there) = ((enough - before).div_ceil(PROGRESS), before);
        loop {
            let now = shared.gather(enough, SLICE);
            let goes_on = now < enough && now >= there + part;
            there = now;
            if !goes_on {
                break;
            }
        }
        self.learn(there >= enough);
        if there < enough {
            self.crowd = there;
        }
    }

    /// How many should be queued before the next call leaves; `None`: it leaves immediately.
    fn enough(&mut self, told: usize, queued: usize) -> Option<usize> {
        // A caller that was missing once may return for the next call, so the expected number
        // shrinks slowly.
        self.crowd = (self.crowd - self.crowd.div_ceil(SHRINKS)).max(told + queued);
        let enough = (self.crowd - self.crowd / STRAGGLERS).min(ASKS_MAX);
        if told + queued < WORTH {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        Some(enough)
    }

    fn learn(&mut self, came: bool) {
        self.vain = if came { 0 } else { (self.vain + 1).min(RAREST) };
        // (A single failure may be chance.)
        self.pause = (1 << self.vain.saturating_sub(1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_those_told_are_waited_for_and_a_few_are_not() {
        let first = |told, queued| Gathering::default().enough(told, queued);
        assert_eq!(first(64, 0), Some(56));
        assert_eq!(
            first(5, 59),
            Some(56),
            "nor are those who were queued already"
        );
        assert_eq!(first(3, 0), None, "a few are not waited for");
        assert_eq!(first(4, 0), Some(4));
        assert_eq!(first(5_000, 0), Some(ASKS_MAX), "no more than a call takes");
        // The few that were late last time are in the next call, together with the others.
        let mut gathering = Gathering::default();
        assert_eq!(gathering.enough(64, 0), Some(56));
        assert_eq!(gathering.enough(8, 0), Some(55));
        assert_eq!(
            gathering.enough(3, 0),
            None,
            "a crowd that has gone delays no request"
        );
    }

    #[test]
    fn waits_in_vain_grow_rare_and_one_that_is_not_brings_them_back() {
        let mut gathering = Gathering::default();
        let mut tries = 0;
        for _ in 0..1000 {
            if gathering.enough(64, 0).is_some() {
                tries += 1;
                gathering.learn(false);
            }
        }
        assert!((15..=22).contains(&tries), "{tries} of 1000");
        while gathering.enough(64, 0).is_none() {}
        gathering.learn(true);
        assert!(gathering.enough(64, 0).is_some() && gathering.enough(64, 0).is_some());
    }
}
