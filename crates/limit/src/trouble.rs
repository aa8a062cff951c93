//! What an upstream's complaints have come to: a few words that every thread reads and moves without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::atomic::Word;
use super::health::WHOLE;
use super::time::{Micros, Timestamp};

/// What the upstream's answers have come to.
#[derive(Debug)]
pub(super) struct Trouble<W = AtomicU64> {
    /// The factor in the upper bits; in the lower [`MOMENT_BITS`] the moment until which it holds, and climbs from.
    pub(super) word: W,
    /// The factor before the last complaint.
    pub(super) before: W,
    /// What rounding has left over, in 1/65536 of a tick.
    fraction: W,
    /// The most that the upstream's quota leaves, in the upper bits; in the lower the moment until which that is so.
    pub(super) bound: W,
    /// Nothing is granted before this moment.
    pub(super) held: W,
}

impl<W: Word> Trouble<W> {
    /// None.
    pub(super) fn new() -> Self {
        Self {
            word: W::new(WHOLE << MOMENT_BITS),
            before: W::new(WHOLE),
            fraction: W::new(0),
            bound: W::new(0),
            held: W::new(0),
        }
    }

    /// As [`super::health::Health::troubled`], down to `least`.
    pub(super) fn troubled(&self, least: u64, now: Timestamp, retry_after: Option<Micros>) {
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if now < until(word) {
                return;
            }
            let factor = climbed(word, now).max(least);
            let lowered = (factor - factor.div_ceil(8)).max(least);
            let hold = retry_after.unwrap_or(HOLD).min(HOLD_MAX).max(HOLD);
            let next = lowered << MOMENT_BITS | now.after(hold).as_micros() & MOMENT_MAX;
            // Before the complaint shows: who gives back at the lower factor finds this one.
            self.before.store(factor, Ordering::Relaxed);
            if self.word.swap_if(word, next) {
                return;
            }
        }
    }

    /// What `ticks` come to at `factor`: rounded so that over many grants the fractions add up.
    pub(super) fn raised(&self, factor: u64, ticks: u64) -> u64 {
        let fine = ((u128::from(ticks) * u128::from(WHOLE)) << FRACTION_BITS) / u128::from(factor);
        let fraction = u64::try_from(fine & ((1 << FRACTION_BITS) - 1)).unwrap_or(0);
        let carried = self.fraction.add(fraction, Ordering::Relaxed) & ((1 << FRACTION_BITS) - 1);
        u64::try_from(fine >> FRACTION_BITS)
            .unwrap_or(u64::MAX)
            .saturating_add((carried + fraction) >> FRACTION_BITS)
    }

    /// As [`super::health::Health::returned`].
    pub(super) fn returned(&self, least: u64, ticks: u64, now: Timestamp) -> u64 {
        // Without the bound of a quota, which may have come in between: too little is given back rather than too much.
        let word = self.word.load(Ordering::Acquire);
        let mut factor = climbed(word, now).max(least);
        if until(word).after(UNDO_MAX) > now {
            factor = factor.max(self.before.load(Ordering::Relaxed));
        }
        let returned = u128::from(ticks) * u128::from(WHOLE) / u128::from(factor.max(1));
        u64::try_from(returned).unwrap_or(u64::MAX)
    }
}

/// The factor that `word` says at `now`.
pub(super) fn climbed(word: u64, now: Timestamp) -> u64 {
    let steps = now.since(until(word)).0 / CLIMB.0;
    (word >> MOMENT_BITS)
        .saturating_add(steps.saturating_mul(STEP))
        .min(WHOLE)
}

pub(super) fn until(word: u64) -> Timestamp {
    Timestamp::from_micros(word & MOMENT_MAX)
}

/// A moment in microseconds has 53 bits until the year 2255; eleven are left for the factor.
pub(super) const MOMENT_BITS: u32 = 53;
pub(super) const MOMENT_MAX: u64 = (1 << MOMENT_BITS) - 1;

const FRACTION_BITS: u32 = 16;

/// The factor climbs by this, each [`CLIMB`].
const STEP: u64 = 16;
const CLIMB: Micros = Micros(1_000_000);

/// Complaints within this of the last one are the same trouble; an upstream cannot stretch it beyond the greater.
pub(super) const HOLD: Micros = Micros(1_000_000);
pub(super) const HOLD_MAX: Micros = Micros(60_000_000);

/// A grant is undone within this of its making: while a shared store is being asked.
pub(super) const UNDO_MAX: Micros = Micros(10_000_000);

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Modelled;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    /// Recovered from a trouble long past, whose factor had been 200.
    fn recovered() -> Arc<Trouble<Modelled>> {
        let trouble = Trouble::<Modelled>::new();
        trouble.before.store(200, Ordering::Relaxed);
        trouble.word.store(
            175 << MOMENT_BITS | (START.as_micros() - 600_000_000),
            Ordering::Relaxed,
        );
        Arc::new(trouble)
    }

    #[test]
    fn complaints_of_one_moment_are_one_trouble_on_any_number_of_threads() {
        loom::model(|| {
            let trouble = recovered();
            let shared = Arc::clone(&trouble);
            let other = loom::thread::spawn(move || shared.troubled(1, START, None));
            trouble.troubled(1, START, None);
            trouble.troubled(1, START.after(HOLD), None);
            other.join().expect("no panic");
            let word = trouble.word.load(Ordering::Relaxed);
            assert_eq!(
                climbed(word, START.after(HOLD)),
                784,
                "two troubles, an eighth each"
            );
            assert_eq!(until(word), START.after(HOLD).after(HOLD));
        });
    }

    #[test]
    fn nobody_gets_back_more_than_was_taken_before_the_complaint() {
        loom::model(|| {
            let trouble = recovered();
            let shared = Arc::clone(&trouble);
            // Taken at the whole rate, given back while an upstream complains.
            let back = loom::thread::spawn(move || shared.returned(1, 896, START));
            trouble.troubled(1, START, None);
            assert_eq!(back.join().expect("no panic"), 896);
        });
    }

    #[test]
    fn fractions_are_lost_between_no_two_threads() {
        loom::model(|| {
            let trouble = Arc::new(Trouble::<Modelled>::new());
            let shared = Arc::clone(&trouble);
            // Two and a half each.
            let other = loom::thread::spawn(move || {
                shared.raised(512, 1) + shared.raised(1_024 * 2 / 5, 1)
            });
            let own = trouble.raised(1_024 * 2 / 5, 1);
            let all = own + other.join().expect("no panic");
            assert!(
                (7..=8).contains(&all),
                "2 and twice a little more than 2.5: {all}"
            );
        });
    }
}
