//! Debts and waits under numbers that have others, or none.

use fastrand::Rng;

use super::*;

/// Who has numbers that know of no such debt neither forgives it nor gives anything before it is paid.
#[test]
fn numbers_without_debt_find_a_debt_as_deep_as_it_is() {
    for kind in [Kind::TokenBucket, Kind::Interval, Kind::FixedWindow] {
        let amount = if kind == Kind::FixedWindow { 4 } else { 2 };
        let of = |burst| match kind {
            Kind::FixedWindow => terms(kind, burst, SECOND, None),
            _ => terms(kind, amount, SECOND, Some(burst)),
        };
        let lends = Algorithm::new(&Terms { debt: 96, ..of(4) }).expect("representable");
        let waits = Algorithm::new(&Terms {
            max_wait: Micros(10 * SECOND),
            ..of(5)
        })
        .expect("representable");
        let mut row = Row::new();
        for round in 0..3 {
            assert!(row.draw(&lends, 100), "{kind:?}, round {round}");
            assert!(
                !row.draw(&waits, 1),
                "{kind:?}: the debt of 96 is not paid back within ten seconds"
            );
            row.pass((100 / amount + 1) * SECOND);
        }
    }
}

/// Whatever gateways of different numbers, debts and waits draw, in every span of T no more is granted than the largest burst
/// and debt, and the highest rate times T and the longest wait, allow.
#[test]
fn no_order_of_draws_under_changing_debts_and_waits_grants_more_than_the_largest() {
    const UNIT: i128 = 2_000_000;
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let kind = if seed % 2 == 0 {
            Kind::Interval
        } else {
            Kind::TokenBucket
        };
        let mut made: Vec<Terms> = Vec::new();
        while made.len() < 3 {
            made.push(Terms {
                debt: [0, 0, 5, 60][rng.usize(..4)],
                max_wait: Micros([0, 0, 2, 9][rng.usize(..4)] * SECOND),
                ..terms(
                    kind,
                    rng.u64(1..=20),
                    SECOND,
                    Some([1, 7, 30][rng.usize(..3)]),
                )
            });
        }
        let generations: Vec<_> = made
            .iter()
            .map(|terms| Algorithm::new(terms).expect("representable"))
            .collect();
        let largest = |of: fn(&Terms) -> u64| i128::from(made.iter().map(of).max().unwrap_or(0));
        let rate = largest(|terms| terms.amount) * UNIT / i128::from(SECOND);
        // Refilled at once at each step's end, an interval bucket is a step ahead at most, and rounds a wait up to a step.
        let ahead = if kind == Kind::Interval {
            2 * largest(|terms| terms.amount)
        } else {
            1
        };
        let most = (largest(|terms| terms.burst.unwrap_or(0)) + ahead) * UNIT;
        let lowest = -(largest(|terms| terms.debt) + ahead) * UNIT
            - largest(|terms| terms.max_wait.0) * rate;
        let (mut row, mut held) = (Row::new(), most);
        for step in 0..300 {
            let span = [0, rng.u64(..SECOND / 2), rng.u64(..20 * SECOND)][rng.usize(..3)];
            row.pass(span);
            held = (held + i128::from(span) * rate).min(most);
            let limit = &generations[rng.usize(..3)];
            let cost = if rng.bool() {
                limit.greatest_cost()
            } else {
                rng.u64(1..4)
            };
            if row.draw(limit, cost) {
                held -= i128::from(cost) * UNIT;
                assert!(
                    held >= lowest,
                    "SEED={seed} step {step}: {held} below {lowest} of {made:?}: {:?}",
                    row.kept
                );
            }
        }
    }
}
