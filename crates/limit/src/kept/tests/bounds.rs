//! In no order of draws and corrections under changing numbers is more granted than the largest of
//! these numbers allow.

use fastrand::Rng;

use super::*;

/// Whatever gateways of different numbers draw, correct and give back, in every span of T no more is granted than the
/// largest burst and the highest rate allow.
#[test]
fn no_order_of_draws_and_corrections_under_changing_numbers_grants_more_than_the_largest() {
    // V holds halves of a millionth.
    const UNIT: u64 = 2_000_000;
    for seed in 0..3_000 {
        let mut rng = Rng::with_seed(seed);
        let kind = if seed % 3 == 0 {
            Kind::Interval
        } else {
            Kind::TokenBucket
        };
        let generations: Vec<Algorithm> = (0..rng.usize(2..4))
            .map(|_| {
                let period = if kind == Kind::Interval {
                    SECOND
                } else {
                    [SECOND / 2, SECOND, UNIT][rng.usize(..3)]
                };
                let burst = [1, 7, 30, 100][rng.usize(..4)];
                Algorithm::new(&terms(kind, rng.u64(1..=20), period, Some(burst)))
                    .expect("representable")
            })
            .collect();
        let quotas: Vec<_> = generations.iter().filter_map(Algorithm::quota).collect();
        // Refilled at once at each step's end, an interval bucket is a step ahead at most.
        let ahead = if kind == Kind::Interval {
            quotas.iter().map(|quota| quota.amount).max()
        } else {
            None
        };
        let most = quotas.iter().map(|quota| quota.burst).max().unwrap_or(0) + ahead.unwrap_or(0);
        let rate = quotas
            .iter()
            .map(|quota| quota.amount * UNIT / quota.period.0)
            .max()
            .unwrap_or(0);
        let mut row = Row::new();
        let (mut held, mut granted) = (most * UNIT, 0);
        for step in 0..400 {
            let span = match rng.u8(..8) {
                0..4 => 0,
                4..7 => rng.u64(..SECOND / 2),
                _ => rng.u64(..8 * SECOND),
            };
            row.pass(span);
            held = (held + span * rate).min(most * UNIT);
            let limit = &generations[rng.usize(..generations.len())];
            match rng.u8(..10) {
                0 => row.settle(
                    limit,
                    Change::Charge {
                        more: rng.u64(..10),
                    },
                ),
                1..3 if granted > 0 => {
                    let units = rng.u64(1..=granted.min(40));
                    granted -= units;
                    row.settle(limit, Change::Refund { units });
                    held = (held + units * UNIT).min(most * UNIT);
                }
                3 => {
                    let all = row.drain(limit);
                    assert!(
                        all * UNIT <= held,
                        "SEED={seed} step {step}: {all} of {held}: {:?}",
                        row.kept
                    );
                    held -= all * UNIT;
                    granted += all;
                }
                _ => {
                    let cost = rng.u64(1..5);
                    if row.draw(limit, cost) {
                        assert!(
                            cost * UNIT <= held,
                            "SEED={seed} step {step}: {cost} of {held}: {:?}",
                            row.kept
                        );
                        held -= cost * UNIT;
                        granted += cost;
                    }
                }
            }
        }
    }
}

/// The same of windows and logs: no period of the log, no clock's window, and no two windows' worth in any period.
#[test]
fn no_order_of_draws_under_changing_quotas_grants_a_window_more_than_the_largest() {
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let kind = [Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog][rng.usize(..3)];
        let aligned = kind == Kind::FixedWindow && rng.bool();
        let generations: Vec<Algorithm> = (0..rng.usize(2..4))
            .map(|_| {
                let align = if aligned {
                    Align::Clock
                } else {
                    Align::FirstHit
                };
                let terms = Terms {
                    align,
                    ..terms(kind, [1, 5, 12, 40][rng.usize(..4)], SECOND, None)
                };
                Algorithm::new(&terms).expect("representable")
            })
            .collect();
        let most = generations
            .iter()
            .filter_map(|limit| Some(limit.quota()?.amount))
            .max()
            .unwrap_or(0);
        let mut row = Row::new();
        let mut gone: Vec<(u64, u64)> = Vec::new();
        for step in 0..300 {
            row.pass(match rng.u8(..8) {
                0..4 => 0,
                4..7 => rng.u64(..SECOND / 3),
                _ => rng.u64(..3 * SECOND),
            });
            let now = row.now.as_micros();
            let limit = &generations[rng.usize(..generations.len())];
            if rng.u8(..10) == 0 {
                row.settle(limit, Change::Charge { more: rng.u64(..4) });
                continue;
            }
            // Of a grant of this very moment, which lies in this window whichever that is.
            if let Some((at, cost)) = gone.last_mut()
                && *at == now
                && rng.u8(..3) == 0
            {
                let units = rng.u64(0..=*cost);
                *cost -= units;
                row.settle(limit, Change::Refund { units });
                continue;
            }
            let cost = rng.u64(1..4);
            if limit.judge(None, cost, row.now).is_ok() && row.draw(limit, cost) {
                gone.push((now, cost));
                let sum = |which: &dyn Fn(u64) -> bool| -> u64 {
                    gone.iter()
                        .filter(|(at, _)| which(*at))
                        .map(|(_, cost)| cost)
                        .sum()
                };
                let (period, window) = (
                    sum(&|at| now - at < SECOND),
                    sum(&|at| at / SECOND == now / SECOND),
                );
                let allowed = if kind == Kind::SlidingLog {
                    most
                } else {
                    2 * most
                };
                assert!(
                    period <= allowed,
                    "SEED={seed} step {step}: {period} of {allowed} {:?}",
                    row.kept
                );
                let by_clock = aligned || kind == Kind::SlidingWindow;
                assert!(
                    !by_clock || window <= most,
                    "SEED={seed} step {step}: {window} of {most} {:?}",
                    row.kept
                );
            }
        }
    }
}
