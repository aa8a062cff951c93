use proptest::prelude::*;

use super::*;
use crate::bucket::Level;
use crate::quota::{Quota, Rate};

const EPOCH: u64 = 1_700_000_000_000_000;

fn both(
    amount: u64,
    period: u64,
    burst: u64,
    debt: u64,
    max_wait: u64,
) -> Option<(TokenBucket, Packed)> {
    let quota = Quota::new(Rate::new(amount, Micros(period)), burst).ok()?;
    let bucket = TokenBucket::new(quota, debt, Micros(max_wait), false).ok()?;
    let packed = Packed::new(&bucket, Timestamp::from_micros(EPOCH))?;
    Some((bucket, packed))
}

#[test]
fn units_are_counted_without_a_division_and_exactly() {
    let periods = [
        1,
        2,
        3,
        7,
        10,
        600_000,
        864_000_000,
        (1 << 40) - 1,
        1 << 40,
        86_400_000_000,
    ];
    for period in periods {
        let (_, packed) = both(1, period, 1, 0, 0).expect("one unit in a period fits a word");
        let near = |units: u64| {
            [
                units * packed.p,
                (units * packed.p).saturating_sub(1),
                units * packed.p + 1,
            ]
        };
        let far = [
            0,
            1,
            u64::MAX >> 1,
            (u64::MAX >> 1) - 1,
            (u64::MAX >> 1) / packed.p * packed.p,
        ];
        let levels = [0, 1, 2, 3, 19, 1_000, 99_999]
            .into_iter()
            .flat_map(near)
            .chain(far);
        for level in levels {
            assert_eq!(
                packed.units(level),
                level / packed.p,
                "{level} / {}",
                packed.p
            );
        }
    }
}

proptest! {
    /// The reason the packed form may be used at all.
    #[test]
    fn a_word_and_a_level_give_identical_verdicts(
        (amount, period) in prop_oneof![
            (1u64..50, 1u64..200),
            (1u64..8192, Just(1_000_000u64)),
            (1u64..5, Just(86_400_000_000u64)),
            Just((10_000_000, 1_000_000)),
        ],
        burst in 1u64..60,
        debt in prop_oneof![Just(0u64), 1u64..20],
        max_wait in prop_oneof![Just(0u64), 1u64..3_000_000],
        steps in proptest::collection::vec((0u64..7, prop_oneof![Just(0u64), 0u64..40, 0u64..5_000_000], 0u64..70), 1..60),
    ) {
        let Some((bucket, packed)) = both(amount, period, burst, debt, max_wait) else { return Ok(()) };
        let (mut state, mut word, mut now) = (None, 0u64, EPOCH);
        for (kind, pause, units) in steps {
            now += pause;
            let (at, ticks) = (Timestamp::from_micros(now), packed.ticks(Timestamp::from_micros(now)));
            match kind {
                0 => {
                    let change = Change::Charge { more: units };
                    state = bucket.settle(state, change, at);
                    word = packed.settle(word, change, ticks);
                }
                1 => {
                    let change = Change::Refund { units };
                    state = bucket.settle(state, change, at);
                    word = packed.settle(word, change, ticks);
                }
                2 => {
                    // Sometimes of the last one, sometimes of one that is long past.
                    let full_at = at.after(Micros(bucket.report(state, at).reset.0 + units % 2));
                    let change = Change::Withdraw { units: units / 2, full_at };
                    state = bucket.settle(state, change, at);
                    word = packed.settle(word, change, ticks);
                }
                _ => {
                    let wide = bucket.judge(state, units, at);
                    let narrow = match packed.price(units) {
                        Some(price) => packed.judge(word, price, ticks),
                        None => Err(Refused::NEVER),
                    };
                    prop_assert_eq!(wide.map(|g| g.wait), narrow.map(|g| g.wait));
                    if let (Ok(wide), Ok(narrow)) = (wide, narrow) {
                        (state, word) = (Some(wide.next), narrow.next);
                    }
                }
            }
            prop_assert!(word < 1 << 63);
            let unpacked = packed.unpack(word, at, Micros::ZERO).map_or(bucket.full(), |(level, _)| level.level);
            prop_assert_eq!(bucket.level(state, at), unpacked);
            prop_assert_eq!(bucket.report(state, at), packed.report(word, ticks));
            if let Some(level) = state {
                prop_assert_eq!(packed.pack(level, 0).max(ticks), word.max(ticks).max(1));
            }
        }
    }

    #[test]
    fn on_a_clock_that_steps_back_a_word_is_never_the_looser(
        burst in 1u64..20,
        steps in proptest::collection::vec((-300_000i64..400_000, 1u64..4), 1..80),
    ) {
        let (bucket, packed) = both(100, 60_000_000, burst, 0, 0).expect("packs");
        let (mut level, mut word, mut now) = (0i64, 0u64, EPOCH as i64 + 10_000_000);
        let (mut wide_granted, mut narrow_granted) = (0, 0);
        let mut state = None;
        for (pause, cost) in steps {
            now = (now + pause).max(EPOCH as i64);
            let at = Timestamp::from_micros(now as u64);
            if let Ok(granted) = bucket.judge(state, cost, at) {
                state = Some(granted.next);
                wide_granted += cost;
            }
            if let Ok(granted) = packed.judge(word, packed.price(cost.min(burst)).expect("fits"), packed.ticks(at)) {
                prop_assert!(granted.next >= word, "a word never moves back");
                word = granted.next;
                narrow_granted += cost.min(burst);
            }
            level = level.max(now);
        }
        // Burst, and the rate over the time the clock was new.
        let bound = burst + (level - EPOCH as i64) as u64 / 600_000;
        prop_assert!(wide_granted <= bound && narrow_granted <= bound);
    }
}

#[test]
fn rates_that_do_not_reduce_do_not_pack() {
    assert!(both(999_983, 1_000_000, 10, 0, 0).is_none());
    assert!(both(10_000_000, 1_000_000, 10, 0, 0).is_some());
}

#[test]
fn packed_word_of_a_smaller_burst_remembers_the_widest_below_and_above_its_capacity() {
    let (_, packed) = both(1, 1_000_000, 20, 0, 0).expect("it fits a word");
    let packed = packed.remembering(100).remembering(50);
    let at = Timestamp::from_micros(EPOCH + 500_000_000);
    for units in [3, 80] {
        let level = Level {
            level: units * 1_000_000,
            at,
        };
        let word = packed.pack(level, 100);
        assert_eq!(packed.unpack(word, at, Micros::ZERO), Some((level, 100)));
    }
}
