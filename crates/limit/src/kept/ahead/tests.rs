use fastrand::Rng;

use super::*;
use crate::fixtures::RATES;
use crate::{Align, Change, Kind, Terms};

fn made(kind: Kind, amount: u64, burst: u64) -> Algorithm {
    let terms = Terms {
        kind,
        amount,
        period: Micros::from_secs(1),
        burst: (kind != Kind::FixedWindow).then_some(burst),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: true,
    };
    Algorithm::new(&terms).expect("representable")
}

/// One draw as a store makes it; whether it was granted.
fn draw(kept: &mut StoredBucket, limit: &Algorithm, cost: u64, now: Timestamp) -> bool {
    kept.pull(None, now);
    let mut found = kept.under(limit, now);
    let Ok(granted) = limit.judge(found.state(), cost, now) else {
        return false;
    };
    found.grant(granted.next);
    *kept = found;
    true
}

/// However the clock steps, no key has more than the burst and what its forward movement brings.
#[test]
fn clock_that_jumps_adds_only_its_progress() {
    for seed in 0..400 {
        let mut rng = Rng::with_seed(seed);
        let (amount, burst) = (rng.u64(1..50), rng.u64(1..50));
        let limit = made(Kind::TokenBucket, amount, burst);
        let mut kept = StoredBucket::full(limit.clone());
        let mut now = 1_760_000_000_000_000_u64;
        // In millionths of a unit.
        let mut held = burst * 1_000_000;
        for _ in 0..300 {
            let most = [10_000, 1_500_000, 30_000_000][rng.usize(..3)];
            let span = rng.u64(0..most);
            if rng.u8(..3) == 0 {
                now -= span;
            } else {
                now += span;
                held = (held + span * amount).min(burst * 1_000_000);
            }
            let cost = rng.u64(1..=burst);
            while draw(&mut kept, &limit, cost, Timestamp::from_micros(now)) {
                held = held
                    .checked_sub(cost * 1_000_000)
                    .unwrap_or_else(|| panic!("seed {seed}"));
            }
        }
    }
}

#[test]
fn bucket_a_second_ahead_stays_and_one_further_ahead_is_pulled_back() {
    let now = Timestamp::from_micros(1_760_000_000_000_000);
    for kind in RATES {
        let amount = if kind == Kind::TokenBucket { 1 } else { 20 };
        let limit = made(
            kind,
            amount,
            if kind == Kind::Interval || amount == 1 {
                20
            } else {
                amount
            },
        );
        for (ahead, pulled) in [
            (1_000_000, false),
            (1_000_001, true),
            (86_400_000_000, true),
        ] {
            let mut kept = StoredBucket::full(limit.clone());
            // A window begins before its grants: these are of its first moment.
            let then = now.after(Micros(ahead));
            assert!(draw(&mut kept, &limit, 15, then), "{kind:?}");
            let before = limit.report(kept.state(), then).remaining;
            let begins = match kept.state() {
                Some(State::Pair(pair)) => pair.start,
                _ => then,
            };
            assert_eq!(
                kept.pull(None, now),
                pulled && begins.since(now) > AHEAD_MAX,
                "{kind:?} {ahead}"
            );
            assert_eq!(
                limit.report(kept.state(), now).remaining,
                before,
                "{kind:?} {ahead}: nothing is added"
            );
            assert!(!kept.pull(None, now), "once is enough");
            assert!(
                kept.expiry()
                    .is_some_and(|expiry| expiry <= now.after(Micros::from_secs(21))),
                "{kind:?} {ahead}"
            );
        }
    }
}

#[test]
fn debts_lie_as_far_ahead_of_a_clock_that_was_put_back_as_they_did() {
    let now = Timestamp::from_micros(1_760_000_000_000_000);
    for kind in [Kind::SlidingWindow, Kind::SlidingLog] {
        let limit = made(kind, 10, 10)
            .settling(1_000, true)
            .expect("representable");
        let mut kept = StoredBucket::full(limit.clone());
        assert!(draw(&mut kept, &limit, 10, now));
        kept.settle(&limit, Change::Charge { more: 500 }, now);
        let (debt, written) = (kept.clone(), kept.written(now));
        assert_eq!(written, Some(now), "{kind:?}");
        assert!(!kept.pull(written, now), "{kind:?}");
        assert_eq!(kept, debt);
        let waits = kept.expiry().expect("a time").since(now);
        let back = Timestamp::from_micros(now.as_micros() - 3_600_400_000);
        assert!(kept.pull(written, back), "{kind:?}");
        let later = kept.expiry().expect("a time").since(back);
        assert!(
            (waits.0..waits.0 + 1_000_000).contains(&later.0),
            "{kind:?}: {waits:?} and {later:?}"
        );
    }
}

#[test]
fn pull_of_a_row_whose_numbers_contradict_each_other_does_not_panic_and_adds_nothing() {
    let now = Timestamp::from_micros(1_760_000_000_000_000);
    let limit = made(Kind::SlidingWindow, 10, 10);
    let moments = [
        0,
        1,
        now.as_micros(),
        now.after(AHEAD_MAX).as_micros() + 1,
        u64::MAX - 1,
        u64::MAX,
    ];
    for (start, written) in moments
        .iter()
        .flat_map(|start| moments.map(|written| (*start, written)))
    {
        for (previous, current) in [(0, 10), (u64::MAX, u64::MAX)] {
            for written in [None, Some(Timestamp::from_micros(written))] {
                let mut kept = StoredBucket::full(limit.clone());
                let pair = Pair {
                    start: Timestamp::from_micros(start),
                    previous,
                    current,
                };
                kept.state = Some(State::Pair(pair));
                kept.pull(written, now);
                let Some(State::Pair(pulled)) = kept.state else {
                    panic!("still a window")
                };
                assert!(pulled.current >= 10, "{pulled:?}");
                assert!(
                    pulled.start >= pair.start.min(now),
                    "{start} {written:?}: {pulled:?}"
                );
            }
        }
    }
}
