//! Which decisions of Tollgate's own log are missing from it.

use std::collections::BTreeMap;

/// The numbers of decisions: each worker counts from a random start, so that what is missing shows as a gap.
#[derive(Clone, Debug, Default)]
pub(super) struct Decisions {
    /// First and last number of every run without a gap.
    runs: BTreeMap<u64, u64>,
    seen: u64,
    /// Whether lines are missing everywhere.
    pub(super) scattered: bool,
}

impl Decisions {
    pub(super) fn add(&mut self, id: u64) {
        self.seen += 1;
        if self.scattered {
            return;
        }
        let number = unmixed(id);
        let (mut first, mut last) = (number, number);
        if let Some((&start, &end)) = self.runs.range(..=number).next_back() {
            if end >= number {
                return;
            }
            if end == number.wrapping_sub(1) {
                first = start;
            }
        }
        if let Some(next) = number.checked_add(1)
            && let Some(end) = self.runs.remove(&next)
        {
            last = end;
        }
        self.runs.insert(first, last);
        // Lines come in the order of their ends, so that a few runs are open at a time, and not thousands.
        self.scattered = self.runs.len() > RUNS_MAX;
    }

    /// Numbers between runs that belong to one worker.
    pub(super) fn missing(&self) -> u64 {
        let starts = self.runs.keys().skip(1);
        let runs = self.runs.values().zip(starts);
        let gaps = runs.map(|(end, start)| start - end - 1);
        gaps.filter(|gap| *gap < GAP_MAX).sum()
    }
}

/// Undoes the mixing of decision ids (SplitMix's finalizer): neighbours are neighbours again.
fn unmixed(id: u64) -> u64 {
    let undone = |value: u64, shift: u32| {
        let mut result = value;
        let mut step = shift;
        while step < 64 {
            result = value ^ (result >> shift);
            step += shift;
        }
        result
    };
    let mut number = undone(id, 31).wrapping_mul(0x3196_42b2_d24d_8ec3);
    number = undone(number, 27).wrapping_mul(0x96de_1b17_3f11_9089);
    undone(number, 30).wrapping_mul(0xf1de_83e1_9937_733d)
}

/// More runs than this at once: lines are missing everywhere.
const RUNS_MAX: usize = 20_000;
/// Two numbers further apart are of different workers: of 2^64 starts hardly any two are this near.
const GAP_MAX: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survey_missing_decisions_are_counted() {
        let mixed = |count: u64| {
            let mut mixed = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        let mut decisions = Decisions::default();
        for number in (1_000..2_000).chain(1 << 60..(1 << 60) + 500) {
            assert_eq!(unmixed(mixed(number)), number);
            decisions.add(mixed(number));
        }
        assert_eq!(decisions.missing(), 0);
        let mut decisions = Decisions::default();
        for number in (1_000..2_000).step_by(10) {
            decisions.add(mixed(number));
        }
        assert_eq!(decisions.missing(), 99 * 9);
    }
}
