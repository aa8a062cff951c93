mod kept;

use fastrand::Rng;

use super::*;
use crate::{Kind, Terms, Verdict};

const START: u64 = 1_760_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn terms(kind: Kind, amount: u64, period: u64, burst: Option<u64>) -> Terms {
    Terms {
        kind,
        amount,
        period: Micros(period),
        burst,
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        warm_up: Micros::ZERO,
        shared: true,
    }
}

fn made(kind: Kind, amount: u64, burst: u64) -> Algorithm {
    let burst = matches!(kind, Kind::TokenBucket | Kind::Interval).then_some(burst);
    Algorithm::new(&terms(kind, amount, SECOND, burst)).expect("representable")
}

/// A bucket in a store, which gateways of any numbers use.
struct Row {
    kept: Option<Kept>,
    now: Timestamp,
}

impl Row {
    fn new() -> Self {
        Self {
            kept: None,
            now: Timestamp::from_micros(START),
        }
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.after(Micros(micros));
        // As stores do: what is full again is deleted.
        if self
            .kept
            .as_ref()
            .is_some_and(|kept| kept.is_forgotten(self.now))
        {
            self.kept = None;
        }
    }

    fn draw(&mut self, limit: &Algorithm, cost: u64) -> bool {
        let mut found = match &self.kept {
            Some(kept) => kept.under(limit, self.now),
            None => Kept::full(limit.clone()),
        };
        let Ok(granted) = limit.judge(found.state(), cost, self.now) else {
            return false;
        };
        found.grant(granted.next);
        if cost > 0 {
            self.kept = Some(found);
        }
        true
    }

    fn drain(&mut self, limit: &Algorithm) -> u64 {
        (0..).take_while(|_| self.draw(limit, 1)).count() as u64
    }

    fn settle(&mut self, by: &Algorithm, change: Change) {
        let mut kept = self.kept.take().unwrap_or_else(|| Kept::full(by.clone()));
        kept.settle(by, change, self.now);
        self.kept = Some(kept).filter(|kept| !kept.is_forgotten(self.now));
    }
}

const KINDS: [Kind; 5] = [
    Kind::TokenBucket,
    Kind::Interval,
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingLog,
];

#[test]
fn a_refund_under_smaller_numbers_leaves_the_rest_of_the_bucket_alone() {
    for kind in KINDS {
        let (large, small) = (made(kind, 1000, 1000), made(kind, 100, 100));
        let mut row = Row::new();
        for _ in 0..500 {
            assert!(row.draw(&large, 1), "{kind:?}");
        }
        row.settle(&small, Change::Refund { units: 1 });
        assert_eq!(row.drain(&large), 501, "{kind:?}");
        row.settle(&small, Change::Charge { more: 10 });
        row.settle(&small, Change::Refund { units: 3 });
        row.settle(&large, Change::Refund { units: 17 });
        assert_eq!(row.drain(&large), 10, "{kind:?}");
    }
}

#[test]
fn a_draw_under_smaller_numbers_fills_no_larger_bucket() {
    for kind in KINDS {
        let (large, small) = (made(kind, 1000, 1000), made(kind, 1000, 100));
        let small = if matches!(kind, Kind::TokenBucket | Kind::Interval) {
            small
        } else {
            made(kind, 100, 100)
        };
        let mut row = Row::new();
        for _ in 0..500 {
            assert!(row.draw(&large, 1), "{kind:?}");
        }
        // Clamped, and soon full again under the smaller numbers. (A log knows what was granted, and clamps to nothing.)
        assert_eq!(row.draw(&small, 1), kind != Kind::SlidingLog, "{kind:?}");
        row.settle(&small, Change::Refund { units: 1 });
        let whole = if kind == Kind::SlidingLog { 501 } else { 100 };
        assert!(
            row.drain(&large) <= whole,
            "{kind:?}: a full bucket of the smaller numbers"
        );
        // And it is a full one of the larger numbers when all that was drawn has come back.
        row.pass(2 * SECOND);
        assert_eq!(row.drain(&large), 1000, "{kind:?}");
    }
}

#[test]
fn another_algorithm_goes_on_with_the_units_that_are_left() {
    const KINDS: [Kind; 5] = [
        Kind::TokenBucket,
        Kind::Interval,
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingLog,
    ];
    for (from, to) in KINDS.iter().flat_map(|from| KINDS.map(|to| (*from, to))) {
        let (old, new) = (made(from, 10, 10), made(to, 10, 10));
        let mut row = Row::new();
        assert!(row.draw(&old, 7));
        assert!(!row.draw(&new, 4), "{from:?} to {to:?}");
        assert!(row.draw(&new, 2), "{from:?} to {to:?}");
        // Corrections of grants that the bucket had from either algorithm.
        row.settle(&old, Change::Refund { units: 7 });
        assert_eq!(row.drain(&new), 8, "{from:?} to {to:?}");
        row.settle(&old, Change::Charge { more: 5 });
        row.settle(&new, Change::Refund { units: 2 });
        assert_eq!(
            row.drain(&old),
            0,
            "{from:?} to {to:?}: what is owed is not forgotten"
        );
    }
}

#[test]
fn another_algorithm_with_a_smaller_burst_is_remembered_until_the_larger_would_be_full() {
    let bucket = made(Kind::TokenBucket, 1, 100);
    let window = made(Kind::FixedWindow, 5, 5);
    let mut row = Row::new();
    assert_eq!(row.drain(&bucket), 100);
    row.pass(SECOND);
    assert_eq!(row.drain(&window), 1);
    row.pass(2 * SECOND);
    assert_eq!(row.drain(&window), 5, "its next window");
    row.pass(2 * SECOND);
    let again = row.drain(&bucket);
    assert!(
        again <= 10,
        "{again}: 5 of the window, and what has come back"
    );
    row.pass(200 * SECOND);
    assert_eq!(row.drain(&bucket), 100);
    assert_eq!(row.drain(&window), 0);
}

#[test]
fn places_in_flight_are_no_units_of_a_rate() {
    let (bucket, places) = (
        made(Kind::TokenBucket, 10, 10),
        Algorithm::InFlight(crate::in_flight::InFlight::new(3).expect("a number")),
    );
    let mut row = Row::new();
    assert_eq!(row.drain(&places), 3);
    row.settle(&bucket, Change::Charge { more: 5 });
    assert_eq!(row.drain(&places), 0);
    assert_eq!(row.drain(&bucket), 10);
}

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

/// A bucket that remembers other numbers has the level that its own numbers say, under its own numbers.
#[test]
fn rescale_bucket_under_the_numbers_it_is_kept_in_shows_no_memory() {
    for kind in KINDS {
        let (large, small) = (made(kind, 40, 40), made(kind, 10, 10));
        let mut row = Row::new();
        assert_eq!(row.drain(&large), 40);
        row.pass(if kind == Kind::TokenBucket {
            SECOND / 2
        } else {
            SECOND * 9 / 10
        });
        let mut granted = row.drain(&small);
        for _ in 0..20 {
            row.pass(2 * SECOND);
            let standing = small
                .decide(row.kept.as_ref().and_then(Kept::state), 1, row.now)
                .standing;
            assert_eq!(standing.verdict, Verdict::Allow { wait: Micros::ZERO });
            granted += row.drain(&small);
        }
        assert_eq!(granted / 20, 10, "{kind:?}: {granted}");
    }
}

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

/// While smaller numbers go on using it a bucket fills up for the larger ones, too.
#[test]
fn a_bucket_in_use_under_smaller_numbers_is_full_again_for_the_larger_in_the_end() {
    for kind in KINDS {
        let (large, small) = (made(kind, 40, 40), made(kind, 10, 10));
        let mut row = Row::new();
        assert_eq!(row.drain(&large), 40, "{kind:?}");
        for _ in 0..40 {
            row.pass(SECOND / 4);
            row.draw(&small, 1);
        }
        row.pass(SECOND * 5 / 2);
        assert_eq!(row.drain(&large), 40, "{kind:?}");
    }
}

/// What time has brought is taken off what is remembered once.
#[test]
fn to_look_twice_at_one_moment_is_to_look_once() {
    for kind in KINDS {
        let (large, small) = (made(kind, 40, 40), made(kind, 10, 10));
        let mut row = Row::new();
        assert!((0..35).all(|_| row.draw(&large, 1)));
        let mut compared = 0;
        for step in 0..20 {
            row.draw(&small, 1);
            if let Some(kept) = &row.kept {
                let later = row.now.after(Micros(SECOND * step / 7));
                let once = kept.under(&small, later);
                assert_eq!(once.under(&small, later), once, "{kind:?}, step {step}");
                compared += 1;
            }
            row.pass(SECOND * 3 / 4);
        }
        assert!(compared > 0, "{kind:?}");
    }
}

/// A thread may decide by a clock that was read a moment ago.
#[test]
fn a_log_that_has_just_become_empty_is_handed_on_with_its_entries() {
    let log = made(Kind::SlidingLog, 1, 1);
    let mut row = Row::new();
    assert!(row.draw(&log, 1));
    let kept = row.kept.expect("drawn from");
    let expiry = kept.expiry().expect("of rate");
    let late = Micros(1_000);
    let (state, beyond) = kept
        .handed_on(&log, expiry.after(Micros(999)), late)
        .expect("it may be read late");
    assert_eq!(beyond, 0);
    let before = Timestamp::from_micros(expiry.as_micros() - 1);
    assert!(
        log.judge(Some(&state), 1, before).is_err(),
        "what was granted still counts"
    );
    assert!(log.judge(Some(&state), 1, expiry).is_ok());
    assert_eq!(kept.handed_on(&log, expiry.after(late), late), None);
}
