//! Whether the next call waits a moment for those who were just told.
//!
//! Callers that ask again as soon as they are told (a gateway whose workers have more to do than they can) come back one
//! after the other. If the next call left with the first of them, the rest would wait for it and go together in the call
//! after that: two halves that take turns for ever, with twice the calls that one would need, and each waits for two.
//! So a lane stays until most of those it told, and who was queued already, are there again; for a few slices of time at
//! most, and only while each slice brings its part. Where nobody comes back so soon (requests that go on to an upstream)
//! that is found out at once, and tried less and less often.
//!
//! Nobody who is alone is kept waiting: fewer than [`WORTH`] are not waited for.

use std::time::Duration;

use super::{ASKS_MAX, Shared};

/// Fewer than so many are not waited for.
const WORTH: usize = 4;
/// One in so many may stay away, and is not waited for.
const STRAGGLERS: usize = 8;
/// With each call the crowd that is waited for is thought smaller by one in so many, unless it is seen.
const SHRINKS: usize = 32;
/// The longest wait in one go. (Systems add their own to it: Linux some 50 us.)
const SLICE: Duration = Duration::from_micros(30);
/// Each slice brings one in so many of those waited for, or is the last one.
const PROGRESS: usize = 4;
/// After so many waits in vain in a row they are no rarer: one for 2^(this - 1) calls.
const RAREST: u32 = 7;

/// Which calls are waited for.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Waits in vain, in a row.
    vain: u32,
    /// Calls until the next try.
    pause: u32,
    /// How many come back, as far as is known.
    crowd: usize,
}

impl Gathering {
    /// A call has been answered and its `told` callers told so, while `queued` others waited for the next one: stays until
    /// that is worth it.
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

    /// How many should be there before the next call leaves; `None`: it leaves at once.
    fn enough(&mut self, told: usize, queued: usize) -> Option<usize> {
        // Who stayed away once may be back for the next one: the crowd shrinks slowly.
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
        // (Once is chance.)
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
        // The few who were late last time are in the next call, and the rest of the crowd with them.
        let mut gathering = Gathering::default();
        assert_eq!(gathering.enough(64, 0), Some(56));
        assert_eq!(gathering.enough(8, 0), Some(55));
        assert_eq!(
            gathering.enough(3, 0),
            None,
            "a crowd that has gone keeps nobody"
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
