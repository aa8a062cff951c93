//! The most that a bucket may grant while its numbers change: in every span `burst + rate x T`, with the largest burst and at
//! each moment the rate in force, and what resets have filled.

use tollgate_limit::{Micros, Timestamp};

/// Units a second, and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) rate: u64,
    pub(crate) burst: u64,
}

/// What has happened from one touch of a bucket (a request that drew from it, granted or not) to the next.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The largest burst at the touch, and since the touch before.
    burst_at: u64,
    burst_since: u64,
    /// What the rates have yielded since the touch before, in millionths of a unit.
    yielded: u64,
    /// What resets have filled since the touch before.
    filled: u64,
    granted: u64,
}

/// The history of one bucket.
#[derive(Debug)]
pub(crate) struct Allowance {
    pieces: Vec<Piece>,
    touched: Timestamp,
    /// The numbers that were in force since the last touch, for any gateway.
    since: Vec<Numbers>,
    filled: u64,
}

pub(crate) const UNIT: u64 = 1_000_000;

impl Allowance {
    pub(crate) fn new(own: Numbers, now: Timestamp) -> Self {
        Self {
            pieces: Vec::new(),
            touched: now,
            since: vec![own],
            filled: 0,
        }
    }

    /// These numbers are in force too from now on.
    pub(crate) fn comes(&mut self, numbers: Numbers) {
        self.since.push(numbers);
    }

    /// A reset fills the bucket.
    pub(crate) fn fill(&mut self) {
        self.filled += self.burst();
    }

    fn burst(&self) -> u64 {
        self.since.iter().map(|one| one.burst).max().unwrap_or(0)
    }

    /// Requests came at `now`, of which so many units were granted; `in_force`: the numbers that gateways apply now. Returns
    /// the span that has more than its due.
    pub(crate) fn touch(
        &mut self,
        now: Timestamp,
        in_force: &[Numbers],
        granted: u64,
    ) -> Result<(), String> {
        self.since.extend(in_force);
        let passed: Micros = now.since(self.touched);
        let rate = self.since.iter().map(|one| one.rate).max().unwrap_or(0);
        let burst_at = in_force.iter().map(|one| one.burst).max().unwrap_or(0);
        self.pieces.push(Piece {
            burst_at,
            burst_since: self.burst().max(burst_at),
            yielded: rate * passed.0,
            filled: std::mem::take(&mut self.filled),
            granted,
        });
        self.touched = now;
        self.since = in_force.to_vec();
        self.check()
    }

    /// Every span that ends with the last touch.
    fn check(&self) -> Result<(), String> {
        let (mut granted, mut yielded, mut filled, mut burst) = (0, 0, 0, 0);
        for (place, piece) in self.pieces.iter().enumerate().rev() {
            granted += piece.granted;
            let due = (burst.max(piece.burst_at) + filled) * UNIT + yielded;
            if granted * UNIT > due {
                return Err(format!(
                    "{granted} units of {due} millionths since touch {place}: {:#?}",
                    &self.pieces[place..]
                ));
            }
            burst = burst.max(piece.burst_since);
            yielded += piece.yielded;
            filled += piece.filled;
        }
        Ok(())
    }
}
