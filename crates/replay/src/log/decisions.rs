//! Which decisions of Tollgate's own log are missing from it.

/// The numbers of decisions: each worker counts from a random start, so that what is missing shows as a gap.
#[derive(Clone, Debug, Default)]
pub(super) struct Decisions(Vec<u64>);

impl Decisions {
    pub(super) fn add(&mut self, id: u64) {
        self.0.push(unmixed(id));
    }

    /// Numbers between two of one worker.
    pub(super) fn missing(mut self) -> u64 {
        self.0.sort_unstable();
        let gaps = self
            .0
            .windows(2)
            .map(|two| (two[1] - two[0]).saturating_sub(1));
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
