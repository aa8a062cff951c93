//! A rate that follows its upstream, under conditions that change from grant to grant.

use proptest::prelude::*;

use super::*;
use crate::time::Micros;
use crate::{Change, Quota, Refused};

const EPOCH: u64 = 1_600_000_000_000_000;

fn bucket(amount: u64, period: u64, burst: u64, debt: u64, wait: u64) -> Option<TokenBucket> {
    let quota = Quota::new(Rate::new(amount, Micros(period)), burst).ok()?;
    TokenBucket::new(quota, debt, Micros(wait), false).ok()
}

proptest! {
    /// Never over the written rate, and waits are exact whatever happens meanwhile.
    #[test]
    fn following_never_exceeds_the_written_rate(
        (amount, period) in prop_oneof![(1u64..50, 1_000u64..2_000_000), Just((10_000_000, 1_000_000)), Just((100, 60_000_000))],
        burst in 1u64..40,
        debt in prop_oneof![Just(0u64), 1u64..10],
        steps in proptest::collection::vec((0u64..3_000_000, 1u64..12, 1u64..=WHOLE, any::<u16>(), 0u64..1_000_000), 1..80),
    ) {
        let Some(written) = bucket(amount, period, burst, debt, 0) else { return Ok(()) };
        let follows = written.clone().following(Rate::new(1, Micros(period * 2))).expect("counted exactly").obeying_quota();
        let (mut state, mut now) = (None, EPOCH);
        // What the written rate has left, as an exact bucket of its own.
        let mut exact = None;
        for (pause, units, factor, rounding, hold) in steps {
            now += pause;
            let at = Timestamp::from_micros(now);
            // Half the time it is not held.
            let opens = Timestamp::from_micros((now + hold).saturating_sub(500_000));
            let under = |opens| follows.under(RateConditions { factor, rounding, opens });
            let units = units.min(burst + debt);
            match under(opens).judge(state, units, at) {
                Ok(granted) => {
                    exact = Some(written.judge(exact, units, at).expect("within the written rate").next);
                    let undone = under(opens).settle(Some(granted.next), Change::Refund { units }, at);
                    prop_assert!(follows.level(undone, at) <= follows.level(state, at), "an undone grant gives nothing");
                    state = Some(granted.next);
                    prop_assert!(written.level(exact, at) >= follows.level(state, at));
                    prop_assert!(granted.next.level >= follows.lowest());
                }
                Err(refused) => {
                    let wait = refused.retry_after.expect("a time");
                    // Even if the upstream falls ill or recovers in between.
                    for factor in [factor, 1, WHOLE] {
                        let then = follows.under(RateConditions { factor, rounding, opens });
                        prop_assert!(then.judge(state, units, at.after(Micros(wait.0 - 1))).is_err());
                        prop_assert!(then.judge(state, units, at.after(wait)).is_ok());
                    }
                }
            }
        }
    }
}

/// A grant that may wait is one of the moment when the hold is over, in order, and no more wait than there is time for.
#[test]
fn following_a_grant_waits_for_the_end_of_a_hold() {
    let start = Timestamp::from_micros(EPOCH + 10_000_000);
    let follows = bucket(10, 1_000_000, 2, 0, 500_000)
        .expect("counted exactly")
        .following(Rate::new(1, Micros(1_000_000)))
        .expect("a tenth")
        .obeying_quota();
    let bucket = follows.under(RateConditions {
        opens: start.after(Micros(300_000)),
        ..RateConditions::AS_WRITTEN
    });
    let mut state = None;
    let mut grant = |wait, at| {
        let granted = bucket.judge(state, 1, at).expect("in time");
        assert_eq!(granted.wait, Micros(wait));
        state = Some(granted.next);
        state
    };
    // Two at once when it opens, then one every tenth of a second.
    for wait in [300_000, 300_000, 400_000] {
        grant(wait, start);
    }
    let last = grant(500_000, start);
    let late = Refused::after(Micros(100_000));
    assert_eq!(bucket.judge(last, 1, start).map(|g| g.wait), Err(late));
    // Behind those who wait already.
    for wait in [300_000, 400_000, 500_000] {
        grant(wait, start.after(Micros(300_000)));
    }
}

/// 100 a second, held at a quarter, asked all the time: a quarter, to the last request.
#[test]
fn following_in_the_long_run_the_rate_is_the_factors() {
    let bucket = bucket(100, 1_000_000, 10, 0, 0).expect("counted exactly");
    let bucket = bucket
        .following(Rate::new(25, Micros(1_000_000)))
        .expect("a quarter");
    let (mut state, mut granted, mut now) = (None, 0u64, EPOCH);
    for step in 0..100_000u64 {
        now += 1_000;
        let at = Timestamp::from_micros(now);
        let lowered = bucket.under(RateConditions {
            factor: 256,
            ..RateConditions::AS_WRITTEN
        });
        if let Ok(grant) = lowered.judge(state, 1, at) {
            state = Some(grant.next);
            granted += u64::from(step >= 40_000);
        }
    }
    assert!(
        (1_499..=1_501).contains(&granted),
        "{granted} in 60 s at 25 a second"
    );
}
