//! The most that a bucket may grant while its numbers change: in every span `burst + rate x T`, with the largest burst and the
//! highest rate that it has been drawn under, and what resets have filled.

use tollgate_limit::Timestamp;

/// Units a second, and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) rate: u64,
    pub(crate) burst: u64,
}

/// A bucket of the largest numbers that pays for every grant.
#[derive(Debug)]
pub(crate) struct Allowance {
    largest: Numbers,
    /// Units it has paid less those that were filled in, and the least of it less what time has brought: in millionths.
    paid: i128,
    least: i128,
    start: Timestamp,
    /// What it has paid, after each request, and when: to be counted again under larger numbers.
    history: Vec<(Timestamp, i128)>,
}

pub(crate) const UNIT: u64 = 1_000_000;

impl Allowance {
    pub(crate) fn new(own: Numbers, now: Timestamp) -> Self {
        Self {
            largest: own,
            paid: 0,
            least: 0,
            start: now,
            history: vec![(now, 0)],
        }
    }

    /// These numbers are in force too from now on.
    fn comes(&mut self, numbers: Numbers) {
        let larger = Numbers {
            rate: self.largest.rate.max(numbers.rate),
            burst: self.largest.burst.max(numbers.burst),
        };
        if larger != self.largest {
            self.largest = larger;
            let history = self.history.iter();
            let above = history.map(|(at, paid)| paid - self.yielded(*at));
            self.least = above.min().unwrap_or(0);
        }
    }

    /// What the highest rate has yielded until then, in millionths.
    fn yielded(&self, at: Timestamp) -> i128 {
        i128::from(at.since(self.start).0) * i128::from(self.largest.rate)
    }

    /// A reset fills the bucket.
    pub(crate) fn fill(&mut self) {
        self.paid -= i128::from(self.largest.burst) * i128::from(UNIT);
        let at = self.history.last().map_or(self.start, |(at, _)| *at);
        self.keep(at);
    }

    fn keep(&mut self, at: Timestamp) {
        self.least = self.least.min(self.paid - self.yielded(at));
        self.history.push((at, self.paid));
    }

    /// Requests came at `now` under these numbers, of which so many units were granted. Returns what is above the bound.
    pub(crate) fn touch(
        &mut self,
        now: Timestamp,
        in_force: &[Numbers],
        granted: u64,
    ) -> Result<(), String> {
        for numbers in in_force {
            self.comes(*numbers);
        }
        self.keep(now);
        self.paid += i128::from(granted) * i128::from(UNIT);
        let most = i128::from(self.largest.burst) * i128::from(UNIT);
        let above = self.paid - self.yielded(now) - self.least - most;
        self.keep(now);
        if above > 0 {
            return Err(format!("{above} millionths of a unit too much: {self:?}"));
        }
        Ok(())
    }
}
