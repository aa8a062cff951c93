//! Frontiers against their definition.

use super::*;
use proptest::prelude::*;

/// The definition: the most over all pairs.
fn by_definition(requests: &[(u64, u64)], amount: u64, period: u64) -> u64 {
    let mut most = 0_i128;
    for (i, first) in requests.iter().enumerate() {
        let mut sum = 0;
        for last in &requests[i..] {
            sum += i128::from(last.1);
            let span = i128::from(last.0 - first.0);
            most = most.max(sum * i128::from(period) - span * i128::from(amount));
        }
    }
    let period = i128::from(period);
    u64::try_from((most + period - 1) / period).expect("small")
}

/// Whether a bucket that begins full pays them all.
fn is_paid(requests: &[(u64, u64)], amount: u64, period: u64, burst: u64) -> bool {
    let (amount, period) = (i128::from(amount), i128::from(period));
    let full = i128::from(burst) * period;
    let (mut level, mut at) = (full, requests[0].0);
    requests.iter().all(|&(now, cost)| {
        level = full.min(level + i128::from(now - at) * amount) - i128::from(cost) * period;
        at = now;
        level >= 0
    })
}

fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let one = (
        prop_oneof![0_u64..3, 0_u64..2_000_000, 0_u64..90_000_000_000],
        0_u64..9,
    );
    prop::collection::vec(one, 1..90).prop_map(|steps| {
        let mut at = 1_700_000_000_000_000;
        let absolute = |(step, cost)| {
            at += step;
            (at, cost)
        };
        steps.into_iter().map(absolute).collect()
    })
}

fn rates() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        Just((1, 1_000_000)),
        Just((1, 60_000_000)),
        Just((7, 3)),
        Just((100, 60_000_000)),
        (1_u64..1_000, 1_u64..100_000_000_000)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn frontier_equals_brute_force_at_every_rate(requests in requests(), (amount, period) in rates()) {
        let mut stream = Stream::default();
        requests.iter().for_each(|&(at, cost)| stream.push(at, cost));
        let need = stream.take().need();
        let burst = need.burst(amount, period);
        prop_assert_eq!(burst, by_definition(&requests, amount, period));
        prop_assert!(is_paid(&requests, amount, period, burst));
        prop_assert!(burst == 0 || !is_paid(&requests, amount, period, burst - 1));
    }

    #[test]
    fn frontier_merge_is_associative(requests in requests(), one in 0_usize..90, two in 0_usize..90) {
        let (one, two) = (one.min(requests.len()), two.min(requests.len()));
        let (one, two) = (one.min(two), one.max(two));
        let parts = [&requests[..one], &requests[one..two], &requests[two..]].map(Stretch::of);
        let [a, b, c] = &parts;
        prop_assert_eq!(a.merge(&b.merge(c)), a.merge(b).merge(c));
        prop_assert_eq!(a.merge(b).merge(c), Stretch::of(&requests));
    }

    #[test]
    fn frontier_of_two_keys_is_the_greater_one(one in requests(), other in requests(), (amount, period) in rates()) {
        let (one, other) = (Stretch::of(&one).need(), Stretch::of(&other).need());
        let mut both = one.clone();
        both.join(&other);
        prop_assert_eq!(both.burst(amount, period), one.burst(amount, period).max(other.burst(amount, period)));
    }
}
