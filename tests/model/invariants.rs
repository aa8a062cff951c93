//! The invariants of the limiter's model, by number: I1 rate bound, I2 no false denial, I3 all or nothing, I4 honest
//! retry, I5 conservation, I6 monotone time, I7 clamp before multiply, I8 absent is full. (I9 and I10, about
//! leases and failing stores, are in `without_store`.)

use fastrand::Rng;
use tollgate_limit::draw::{longest_hold, longest_wait};
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{
    Algorithm, Align, Change, Claim, Draw, Kind, Limit, Micros, Mode, OnFailover, Placement, Role,
    State, StoredBucket, Terms, Timestamp, Verdict, WhenDown, draw_all,
};

use crate::algorithms::Pair;
use crate::random::{self, START};

pub(crate) fn limit(index: usize, algorithm: Algorithm) -> Limit {
    Limit {
        name: format!("limit-{index}").into(),
        index,
        tier: None,
        role: Role::Live,
        algorithm,
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::LocalShare,
        on_failover: OnFailover::Keep,
        lease: false,
        memory: 1 << 20,
        refundable: true,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    }
}

pub(crate) fn bucket(amount: u64, period: Micros, burst: u64) -> Terms {
    Terms {
        kind: Kind::TokenBucket,
        amount,
        period,
        burst: Some(burst),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: false,
    }
}

/// A caller that takes every token the moment there is one: never more than burst + rate x T in any span, and, asking
/// whenever told, never a whole unit less.
#[test]
fn i1_a_greedy_caller_gets_burst_and_rate_and_not_a_unit_more_or_less() {
    let day = Micros::from_secs(86_400);
    let second = Micros::from_secs(1);
    for (amount, period, burst) in [
        (1, day, 1),
        (1, day, 1_000_000),
        (100, Micros::from_secs(60), 20),
        (7, day, 1_000),
        (10_000_000, second, 10),
        (999_983, second, 5),
        (7_000_000, second, 7),
        (15_000_000, second, 15),
        (300_000_000, second, 300),
    ] {
        let algorithm = Algorithm::new(&bucket(amount, period, burst)).expect("representable");
        let (mut state, mut now, mut granted) = (None, Timestamp::from_micros(START), 0u64);
        for _ in 0..20_000 {
            let remaining = algorithm.report(state.as_ref(), now).remaining.max(1);
            let decided = algorithm.decide(state.as_ref(), remaining, now);
            match decided.standing.verdict {
                Verdict::Allow { .. } => granted += remaining,
                Verdict::Deny { retry_after } => {
                    now = now.after(retry_after.expect("one unit always fits"))
                }
            }
            state = decided.state;
            let span = u128::from(now.as_micros() - START);
            let due = u128::from(burst) + u128::from(amount) * span / u128::from(period.0);
            assert!(
                u128::from(granted) <= due,
                "{amount} per {period:?}: {granted} of {due}"
            );
            // It asks at whole microseconds, in which a fast rate yields more than one unit.
            let behind =
                u128::from(remaining) + u128::from(amount).div_ceil(u128::from(period.0)) + 1;
            assert!(
                u128::from(granted) + behind >= due,
                "{amount} per {period:?}: {granted} of {due}"
            );
        }
    }
}

/// The estimate's bound is reached, and not passed: 2 Q - 1 in one period.
#[test]
fn i1w_estimate_error_stays_within_its_stated_bound() {
    let terms = Terms {
        kind: Kind::SlidingWindow,
        burst: None,
        ..bucket(100, Micros(1_000_000), 1)
    };
    let algorithm = Algorithm::new(&terms).expect("representable");
    let window = START / 1_000_000 * 1_000_000;
    let mut state = algorithm
        .decide(None, 100, Timestamp::from_micros(window + 999_999))
        .state;
    let mut granted = 100;
    for micros in 1_000_000..=1_999_998u64 {
        let decided = algorithm.decide(state.as_ref(), 1, Timestamp::from_micros(window + micros));
        granted += u64::from(matches!(decided.standing.verdict, Verdict::Allow { .. }));
        state = decided.state;
    }
    assert_eq!(granted, 199, "all within one period of the first");
    assert!(algorithm.words().contains("199"), "{}", algorithm.words());
}

/// Where the oracle, which knows the definition only, has room, the core grants. (Each step of every trace in `algorithms`
/// says the same; this one looks at the brim.)
#[test]
fn i2_a_refusal_means_that_the_bucket_could_not_pay() {
    random::seeds(400, |rng| {
        let kind = random::pick(rng, &RATES);
        let Some(mut pair) = Pair::new(random::terms(rng, kind)) else {
            return;
        };
        let mut now = Timestamp::from_micros(START);
        for _ in 0..20 {
            let remaining = pair.algorithm.report(pair.state.as_ref(), now).remaining;
            pair.draw(remaining, now);
            pair.draw(1, now);
            now = now.after(Micros(random::pause(rng, &pair.terms, None)));
        }
    });
}

fn several(rng: &mut Rng) -> Vec<Limit> {
    (0..5)
        .map(|index| {
            loop {
                let kind = random::pick(rng, &RATES);
                if let Ok(algorithm) = Algorithm::new(&random::terms(rng, kind)) {
                    break limit(index, algorithm);
                }
            }
        })
        .collect()
}

/// All claims or none; a refusal writes nothing; a shadow claim neither vetoes nor is charged what it cannot pay; and the
/// order of claims changes neither verdicts nor buckets.
#[test]
fn i3_every_claim_or_none_in_any_order() {
    random::seeds(600, |rng| {
        let limits = several(rng);
        let mut states: Vec<Option<State>> = vec![None; limits.len()];
        let mut now = Timestamp::from_micros(START);
        for _ in 0..30 {
            now = now.after(Micros(rng.u64(0..2_000_000)));
            let claims: Vec<_> = limits
                .iter()
                .map(|limit| {
                    let cost = random::cost(rng, limit.algorithm.greatest_cost());
                    Claim {
                        enforced: rng.u8(..4) > 0,
                        ..Claim::new(limit, &[], cost)
                    }
                })
                .collect();
            let before = states.clone();
            let drawn = draw_all(&claims, &mut states, now);

            let pays =
                |place: usize| matches!(drawn.standings[place].verdict, Verdict::Allow { .. });
            assert_eq!(
                drawn.granted,
                (0..claims.len()).all(|place| pays(place) || !claims[place].enforced)
            );
            if !drawn.granted {
                assert_eq!(states, before);
            }
            for place in (0..claims.len()).filter(|place| !pays(*place)) {
                assert_eq!(
                    states[place], before[place],
                    "what cannot pay is not charged"
                );
            }

            let mut order: Vec<_> = (0..claims.len()).collect();
            rng.shuffle(&mut order);
            let shuffled: Vec<_> = order.iter().map(|place| claims[*place]).collect();
            let mut moved: Vec<_> = order.iter().map(|place| before[*place].clone()).collect();
            let again = draw_all(&shuffled, &mut moved, now);
            assert_eq!(again.granted, drawn.granted);
            assert_eq!(
                longest_waits(&again, &shuffled),
                longest_waits(&drawn, &claims)
            );
            for (place, original) in order.iter().enumerate() {
                assert_eq!(again.standings[place], drawn.standings[*original]);
                assert_eq!(moved[place], states[*original]);
            }
        }
    });
}

/// How long a request is held, and when it may be retried.
fn longest_waits(drawn: &Draw, claims: &[Claim<'_>]) -> (Micros, Option<Micros>) {
    let enforced = || {
        let all = claims.iter().zip(&drawn.standings);
        let enforced = all.filter(|(claim, _)| claim.enforced);
        enforced.map(|(_, standing)| standing.verdict)
    };
    (longest_hold(enforced()), longest_wait(enforced()))
}

/// A lone caller that waits as long as the slowest of its limits said is admitted by all; a microsecond less, it is not.
#[test]
fn i4_the_retry_time_of_several_limits_is_exact() {
    random::seeds(600, |rng| {
        let limits = several(rng);
        let mut states: Vec<Option<State>> = vec![None; limits.len()];
        let mut now = Timestamp::from_micros(START);
        for _ in 0..20 {
            now = now.after(Micros(rng.u64(0..100_000)));
            let claims: Vec<_> = limits
                .iter()
                .map(|limit| {
                    Claim::new(
                        limit,
                        &[],
                        rng.u64(1..=limit.algorithm.greatest_cost().min(4)),
                    )
                })
                .collect();
            let drawn = draw_all(&claims, &mut states, now);
            if drawn.granted {
                continue;
            }
            let told = longest_waits(&drawn, &claims)
                .1
                .expect("each cost fits its limit");
            let at =
                |wait: u64| draw_all(&claims, &mut states.clone(), now.after(Micros(wait))).granted;
            assert!(
                !at(told.0 - 1),
                "a microsecond early: {claims:?} {states:?}"
            );
            assert!(at(told.0), "after {told:?}: {claims:?} {states:?}");
        }
    });
}

/// Refunds never fill above the brim, charges never fall below the floor, and what is given back was taken: a reload
/// never adds a unit either.
#[test]
fn i5_nothing_settled_or_reloaded_makes_units_out_of_nothing() {
    random::seeds(2_000, |rng| {
        let kind = random::pick(rng, &RATES);
        let first = random::terms(rng, kind);
        let Ok(mut algorithm) = Algorithm::new(&first) else {
            return;
        };
        let (mut state, mut now) = (None::<State>, Timestamp::from_micros(START));
        for _ in 0..30 {
            now = now.after(Micros(random::pause(rng, &first, None)));
            let before = algorithm.report(state.as_ref(), now).remaining;
            let units = rng.u64(0..=20);
            match rng.u8(..6) {
                0 => {
                    algorithm.settle(&mut state, Change::Charge { more: units }, now);
                    assert!(algorithm.report(state.as_ref(), now).remaining <= before);
                }
                1 => {
                    algorithm.settle(&mut state, Change::Refund { units }, now);
                    let after = algorithm.report(state.as_ref(), now).remaining;
                    assert!(
                        after <= before + units && after <= algorithm.greatest_cost(),
                        "{first:?} {state:?}"
                    );
                }
                2 => {
                    let second = Terms {
                        kind,
                        ..random::terms(rng, kind)
                    };
                    let Ok(new) = Algorithm::new(&second) else {
                        continue;
                    };
                    let Algorithm::TokenBucket(_) = &new else {
                        continue;
                    };
                    if let Some(old) = &state {
                        let full = algorithm.expiry(old).is_some_and(|expiry| expiry <= now);
                        // Its last grant was a moment ago.
                        let mut kept =
                            StoredBucket::from_parts(algorithm.clone(), Some(old.clone()), 0);
                        kept.settle(&algorithm, Change::Charge { more: 0 }, now);
                        let other = kept.under(&new, now);
                        let after = new.report(other.state(), now).remaining;
                        assert!(
                            full || after <= before,
                            "{before} became {after}: {old:?} {first:?} -> {second:?} {other:?}"
                        );
                        state = other.state().cloned();
                    }
                    algorithm = new;
                }
                _ => {
                    let cost = random::cost(rng, algorithm.greatest_cost());
                    state = algorithm.decide(state.as_ref(), cost, now).state;
                }
            }
        }
    });
}

/// A request that waits has been promised its moment: whatever is settled in between, no two promises fall together on one
/// token.
#[test]
fn i5_a_refund_among_waiting_requests_promises_no_moment_twice() {
    for kind in [Kind::TokenBucket, Kind::SlidingLog] {
        let terms = Terms {
            kind,
            max_wait: Micros::from_secs(60),
            burst: (kind == Kind::TokenBucket).then_some(1),
            ..bucket(1, Micros::from_secs(1), 1)
        };
        let algorithm = Algorithm::new(&terms).expect("representable");
        let (mut state, now, mut promised) = (None, Timestamp::from_micros(START), Vec::new());
        for step in 0..20 {
            let decided = algorithm.decide(state.as_ref(), 1, now);
            let Verdict::Allow { wait } = decided.standing.verdict else {
                panic!("it may wait")
            };
            promised.push(wait.0);
            state = decided.state;
            if step % 3 == 1 {
                algorithm.settle(&mut state, Change::Refund { units: 1 }, now);
            }
        }
        assert!(
            promised
                .windows(2)
                .all(|pair| pair[1] >= pair[0] + 1_000_000),
            "{kind:?}: {promised:?}"
        );
    }
}

/// A request that leaves while it waits gives its place back if no other waits behind it; then the next one gets the same time.
#[test]
fn i5_a_place_given_back_among_waiting_requests_is_promised_once() {
    let terms = Terms {
        max_wait: Micros::from_secs(60),
        burst: Some(1),
        ..bucket(1, Micros::from_secs(1), 1)
    };
    let algorithm = Algorithm::new(&terms).expect("representable");
    let mut rng = Rng::with_seed(5);
    for _ in 0..200 {
        let (mut state, mut now) = (None, Timestamp::from_micros(START));
        // Who still waits or went, by due moment, with what they were told of the bucket.
        let mut promised: Vec<(Timestamp, Timestamp)> = Vec::new();
        for _ in 0..60 {
            now = now.after(Micros(rng.u64(0..600_000)));
            if rng.bool() || promised.is_empty() {
                let decided = algorithm.decide(state.as_ref(), 1, now);
                if let Verdict::Allow { wait } = decided.standing.verdict {
                    promised.push((now.after(wait), now.after(decided.standing.reset)));
                    state = decided.state;
                }
                continue;
            }
            let place = rng.usize(..promised.len());
            let (due, full_at) = promised[place];
            if due > now {
                algorithm.settle(&mut state, Change::Withdraw { units: 1, full_at }, now);
                promised.remove(place);
            }
        }
        promised.sort_unstable();
        assert!(
            promised
                .windows(2)
                .all(|pair| pair[1].0.since(pair[0].0).0 >= 1_000_000),
            "{promised:?}"
        );
    }
}

/// Time that runs backwards and forwards again yields what the furthest moment yields, once.
#[test]
fn i6_a_clock_that_steps_back_mints_nothing() {
    random::seeds(600, |rng| {
        let algorithm =
            Algorithm::new(&bucket(10, Micros::from_secs(1), 5)).expect("representable");
        let (mut state, mut now, mut furthest, mut granted) = (None, START, START, 0);
        for _ in 0..200 {
            now = if rng.bool() {
                now + rng.u64(0..500_000)
            } else {
                now - rng.u64(0..500_000)
            };
            furthest = furthest.max(now);
            let decided = algorithm.decide(state.as_ref(), 1, Timestamp::from_micros(now));
            granted += u64::from(matches!(decided.standing.verdict, Verdict::Allow { .. }));
            state = decided.state;
        }
        // A bucket that was full when the clock stepped back may count from there: START is not the first moment.
        let first = START - 200 * 500_000;
        assert!(granted <= 5 + (furthest - first) / 100_000);
    });
}

/// The greatest numbers there are, from the beginning of time to its end.
#[test]
fn i7_no_elapsed_time_overflows() {
    for shared in [false, true] {
        let bound = if shared { 1u64 << 53 } else { 1 << 62 };
        for kind in RATES {
            for (amount, period) in [
                (1u64, 86_400_000_000u64),
                (999_983, 1_000_000),
                (10_000_000, 1_000_000),
                (999, 3_153_600_000_000_000),
            ] {
                let burst = matches!(kind, Kind::TokenBucket | Kind::Interval)
                    .then(|| (bound - 1) / period)
                    .filter(|b| *b > 0);
                let terms = Terms {
                    kind,
                    burst,
                    shared,
                    ..bucket(amount, Micros(period), 1)
                };
                let Ok(algorithm) = Algorithm::new(&terms) else {
                    continue;
                };
                let mut state = None;
                for now in [
                    0,
                    1,
                    START,
                    START + 1,
                    u64::MAX / 4,
                    u64::MAX - 1,
                    u64::MAX,
                    0,
                    START,
                    u64::MAX,
                ] {
                    for cost in [0, 1, algorithm.greatest_cost(), u64::MAX] {
                        let now = Timestamp::from_micros(now);
                        state = algorithm.decide(state.as_ref(), cost, now).state;
                        algorithm.settle(&mut state, Change::Charge { more: u64::MAX }, now);
                        algorithm.settle(&mut state, Change::Refund { units: u64::MAX }, now);
                        algorithm.settle(&mut state, Change::Charge { more: cost }, now);
                        state.as_ref().map(|state| algorithm.expiry(state));
                    }
                }
            }
        }
    }
}

/// At its expiry a bucket says what no bucket says, of every algorithm.
#[test]
fn i8_a_bucket_that_expired_equals_none() {
    random::seeds(1_000, |rng| {
        let kind = random::pick(rng, &RATES);
        let terms = random::terms(rng, kind);
        let Ok(algorithm) = Algorithm::new(&terms) else {
            return;
        };
        let (mut state, mut now) = (None::<State>, Timestamp::from_micros(START));
        for _ in 0..15 {
            now = now.after(Micros(random::pause(rng, &terms, None)));
            state = algorithm
                .decide(
                    state.as_ref(),
                    random::cost(rng, algorithm.greatest_cost()),
                    now,
                )
                .state;
            if rng.u8(..3) == 0 {
                algorithm.settle(
                    &mut state,
                    Change::Charge {
                        more: rng.u64(0..30),
                    },
                    now,
                );
            }
            let Some(expiry) = state.as_ref().and_then(|state| algorithm.expiry(state)) else {
                continue;
            };
            let then = expiry.max(now).after(Micros(rng.u64(0..3)));
            let cost = random::cost(rng, algorithm.greatest_cost());
            let (kept, none) = (
                algorithm.decide(state.as_ref(), cost, then),
                algorithm.decide(None, cost, then),
            );
            assert_eq!(kept.standing, none.standing, "{terms:?} {state:?}");
        }
    });
}
