//! The suite: each test is a promise of [`Store`], held against the core.

mod adversary;
mod ceilings;
mod edits;
mod overrides;
mod put_back;
mod reloads;
mod resets;

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::fixtures::peek_all;
use tollgate_limit::{
    Algorithm, Align, Calendar, Change, Claim, Draw, KeyBytes, Kind, Limit, Micros, Settlement,
    State, StoredBucket, Terms, Timestamp, Verdict, draw_all,
};
use tollgate_store::Store;

use crate::random::{self, START};
use crate::subject::{Subject, caller, claim, limit, terms};
pub(crate) use adversary::adversary_gets_no_more_than_the_largest_numbers;
pub(crate) use ceilings::units_are_given_back_only_to_their_window;
pub(crate) use edits::no_edit_of_a_limit_refills_a_bucket;
pub(crate) use overrides::{
    overrides_grant_no_more_than_their_numbers,
    raise_of_a_used_up_window_helps_at_once_and_is_told_its_end,
};
pub(crate) use put_back::{
    a_clock_put_back_by_an_hour_delays_no_caller_for_it,
    a_clock_that_steps_back_and_forward_finds_buckets_as_the_core_does,
};
pub(crate) use reloads::{
    a_burst_lowered_and_raised_again_leaves_what_was_not_drawn_from,
    reloads_leave_a_bucket_in_the_numbers_it_was_drawn_under,
};
pub(crate) use resets::{
    a_reset_fills_a_bucket_by_every_algorithm, what_was_drawn_before_a_reset_returns_nothing,
};

/// A store and the core side by side: the same calls go to both, and the answers must be equal.
struct Twins<S: Subject> {
    subject: S,
    states: Vec<Option<State>>,
    now: Timestamp,
}

impl<S: Subject> Twins<S> {
    async fn new(limits: &[Arc<Limit>]) -> Option<Self> {
        let now = Timestamp::from_micros(START);
        let subject = S::new(limits, now).await?;
        Some(Self {
            subject,
            states: limits.iter().map(|_| None).collect(),
            now,
        })
    }

    /// Draws `claim` from the store and, as the core does, from `kept`: both must say the same.
    /// Returns whether that was granted, and what is kept now, if it changed. The `place` in the
    /// test and its `history` are for the message.
    async fn draw_kept(
        &self,
        claim: &Claim<'_>,
        kept: &StoredBucket,
        place: &str,
        history: &mut Vec<String>,
    ) -> (bool, Option<StoredBucket>) {
        let algorithm = &claim.limit.algorithm;
        let found = kept.under(algorithm, self.now);
        let before = found.state().cloned();
        let mut states = [before.clone()];
        let claims = [*claim];
        let expected = draw_all(&claims, &mut states, self.now);
        let drawn = self.subject.store().draw(&claims).await;
        let drawn = drawn.expect("the store answers");
        let asked = format!(
            "{} by {algorithm:?} at {:?}: {kept:?}",
            claim.cost, self.now
        );
        assert_eq!(
            (drawn.granted, &drawn.standings),
            (expected.granted, &expected.standings),
            "{place}: {asked} after {history:#?}"
        );
        history.push(asked);
        let [state] = states;
        let changed = claim.cost > 0 && state != before;
        let now = changed.then(|| StoredBucket::from_parts(found.algorithm().clone(), state, 0));
        (drawn.granted, now)
    }

    fn pass(&mut self, span: Micros) {
        // No process runs for more than a decade.
        let decade = Timestamp::from_micros(START + 315_000_000_000_000);
        self.now = self.now.after(span).min(decade);
        self.subject.set_time(self.now);
    }

    /// Draws from both; `claims` of limits whose index is their place in `states`.
    async fn draw(&mut self, claims: &[Claim<'_>]) -> Draw {
        let mut states: Vec<_> = claims
            .iter()
            .map(|claim| self.states[claim.limit.index].take())
            .collect();
        let before = states.clone();
        let expected = draw_all(claims, &mut states, self.now);
        for (claim, state) in claims.iter().zip(states) {
            self.states[claim.limit.index] = state;
        }
        let drawn = self
            .subject
            .store()
            .draw(claims)
            .await
            .expect("the store answers");
        assert_eq!(
            (drawn.granted, &drawn.standings),
            (expected.granted, &expected.standings),
            "{claims:?} of {before:?} at {:?}",
            self.now
        );
        drawn
    }

    async fn settle(&mut self, limit: &Limit, key: &KeyBytes, change: Change) {
        limit
            .algorithm
            .settle(&mut self.states[limit.index], change, self.now);
        self.subject
            .store()
            .settle(&[Settlement::new(limit, key, change)]);
        self.subject.settled().await;
    }
}

/// Random terms this subject can keep.
fn random_limit<S: Subject>(rng: &mut Rng, index: usize, kind: Kind) -> Arc<Limit> {
    loop {
        let mut terms = random::terms(rng, kind);
        terms.shared = S::SHARED;
        let calendar = matches!(terms.align, Align::Calendar(_));
        if kind == Kind::InFlight {
            terms.burst = None;
            terms.debt = 0;
            terms.max_wait = Micros::ZERO;
        }
        let settled = settled(rng);
        let made =
            Algorithm::new(&terms).and_then(|algorithm| algorithm.settling(settled, S::SHARED));
        if let (Ok(algorithm), false) = (made, calendar && !S::calendars()) {
            return limit::<S>(index, algorithm);
        }
    }
}

/// What answers may cost above their estimate, for every other limit. (Of a copy: the traces are what they were without.)
fn settled(rng: &Rng) -> u64 {
    let mut rng = rng.clone();
    if rng.bool() { rng.u64(0..5_000) } else { 0 }
}

fn pause(rng: &mut Rng, limit: &Limit, told: Option<Micros>) -> Micros {
    let Some(quota) = limit.algorithm.quota() else {
        return Micros(rng.u64(0..1_000_000));
    };
    let terms = Terms {
        ..terms::<crate::local::Local>(limit.algorithm.kind(), quota.amount, quota.period)
    };
    Micros(random::pause(rng, &terms, told))
}

/// One meaning on every store: random limits, random traces, equal answers to the last field.
pub(crate) async fn every_algorithm_answers_as_the_core_does<S: Subject>() {
    for kind in S::kinds() {
        for seed in 0..S::RUNS {
            let mut rng = Rng::with_seed(seed);
            let limits = [random_limit::<S>(&mut rng, 0, *kind)];
            let Some(mut twins) = Twins::<S>::new(&limits).await else {
                return;
            };
            let (key, mut told) = (caller("only"), None);
            for _ in 0..25 {
                twins.pass(pause(&mut rng, &limits[0], told));
                let cost = random::cost(&mut rng, limits[0].algorithm.greatest_cost());
                let drawn = twins.draw(&[claim(&limits[0], &key, cost)]).await;
                told = match drawn.standings[0].verdict {
                    Verdict::Allow { .. } => None,
                    Verdict::Deny { retry_after } => retry_after,
                };
            }
        }
    }
}

/// Any mixture of limits, enforced and not, in one call.
pub(crate) async fn several_limits_are_charged_all_or_none<S: Subject>() {
    for seed in 0..S::RUNS {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let limits: Vec<_> = (0..4)
            .map(|index| {
                let kind = random::pick(&mut rng, S::kinds());
                random_limit::<S>(&mut rng, index, kind)
            })
            .collect();
        let Some(mut twins) = Twins::<S>::new(&limits).await else {
            return;
        };
        let key = caller("several");
        for _ in 0..25 {
            let slowest = &limits[rng.usize(..4)];
            twins.pass(pause(&mut rng, slowest, None));
            let mut claims = Vec::new();
            for limit in &limits {
                let cost = random::cost(&mut rng, limit.algorithm.greatest_cost());
                let (chosen, enforced) = (rng.u8(..4) > 0, rng.u8(..4) > 0);
                if chosen {
                    claims.push(Claim {
                        enforced,
                        ..claim(limit, &key, cost)
                    });
                }
            }
            rng.shuffle(&mut claims);
            twins.draw(&claims).await;
        }
    }
}

/// Charges, refunds and releases, in between draws.
pub(crate) async fn settlements_land_as_in_the_core<S: Subject>() {
    for kind in S::kinds() {
        for seed in 0..S::RUNS {
            let mut rng = Rng::with_seed(seed ^ 0xc0de);
            let limits = [random_limit::<S>(&mut rng, 0, *kind)];
            let Some(mut twins) = Twins::<S>::new(&limits).await else {
                return;
            };
            let key = caller("settled");
            for _ in 0..25 {
                twins.pass(pause(&mut rng, &limits[0], None));
                let cost = random::cost(&mut rng, limits[0].algorithm.greatest_cost().min(1_000));
                twins.draw(&[claim(&limits[0], &key, cost)]).await;
                let dearest = limits[0]
                    .algorithm
                    .greatest_cost()
                    .min(1_000)
                    .max(limits[0].algorithm.settled());
                let units = rng.u64(0..=dearest);
                match rng.u8(..5) {
                    0 => {
                        twins
                            .settle(&limits[0], &key, Change::Charge { more: units })
                            .await
                    }
                    1 => {
                        twins
                            .settle(&limits[0], &key, Change::Refund { units })
                            .await
                    }
                    2 => {
                        twins
                            .settle(&limits[0], &key, Change::Release { units })
                            .await
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Gateways of several generations of one limit, as in a rolling change: who draws sees the bucket in his numbers, who
/// corrects does it in the bucket's own, and what smaller numbers have clamped is not forgotten. In a process there is one
/// generation at a time, but the same holds of the tiers of a limit, on every store.
pub(crate) async fn generations_and_tiers_of_a_limit_share_its_buckets<S: Subject>() {
    for kind in S::kinds() {
        for seed in 0..2 * S::RUNS {
            let tiers = !S::SHARED || seed % 2 == 1;
            let mut rng = Rng::with_seed(seed ^ 0x9e4e);
            let first = random_limit::<S>(&mut rng, 0, *kind);
            let align = match &first.algorithm {
                Algorithm::FixedWindow(window) => window.align().clone(),
                _ => Align::FirstHit,
            };
            let mut generations = vec![first.clone()];
            while generations.len() < 3 {
                let kind = *kind;
                let mut terms = random::terms(&mut rng, kind);
                terms.shared = S::SHARED;
                if kind == Kind::FixedWindow {
                    terms.align = align.clone();
                }
                if let Some(quota) = first.algorithm.quota() {
                    if kind != Kind::TokenBucket || rng.bool() {
                        terms.period = quota.period;
                    }
                    if rng.u8(..3) == 0 {
                        terms.amount = quota.amount;
                    }
                }
                if kind == Kind::InFlight {
                    (terms.burst, terms.debt, terms.max_wait) = (None, 0, Micros::ZERO);
                }
                let settled = settled(&rng);
                if let Ok(algorithm) = Algorithm::new(&terms)
                    .and_then(|algorithm| algorithm.settling(settled, S::SHARED))
                {
                    let mut variant = Limit::clone(&limit::<S>(0, algorithm));
                    if tiers {
                        variant.index = generations.len();
                        variant.tier = Some(format!("tier-{}", variant.index).into());
                    }
                    generations.push(Arc::new(variant));
                }
            }
            let Some(mut twins) = Twins::<S>::new(&generations[..if tiers { 3 } else { 1 }]).await
            else {
                return;
            };
            let key = caller("through a change");
            let mut kept = StoredBucket::full(generations[0].algorithm.clone());
            let mut history = Vec::new();
            for step in 0..40 {
                let slowest = &generations[rng.usize(..3)];
                twins.pass(pause(&mut rng, slowest, None));
                let limit = &generations[rng.usize(..3)];
                let cost = random::cost(&mut rng, limit.algorithm.greatest_cost().min(1_000));
                if rng.u8(..3) == 0 {
                    let change = match rng.u8(..3) {
                        0 => Change::Charge {
                            more: cost.max(rng.u64(0..=limit.algorithm.settled())),
                        },
                        1 => Change::Refund { units: cost },
                        _ => Change::Release { units: cost },
                    };
                    kept.settle(&limit.algorithm, change, twins.now);
                    twins
                        .subject
                        .store()
                        .settle(&[Settlement::new(limit, &key, change)]);
                    twins.subject.settled().await;
                    history.push(format!(
                        "{change:?} by {:?} at {:?}: {kept:?}",
                        limit.algorithm, twins.now
                    ));
                }
                let place = format!("seed {seed} step {step}");
                let claim = claim(limit, &key, cost);
                let (_, drawn) = twins.draw_kept(&claim, &kept, &place, &mut history).await;
                kept = drawn.unwrap_or(kept);
            }
        }
    }
}

/// Days of 23 to 25 hours, weeks and months: drawn from, settled and looked at for years, by generations with little and
/// with much debt, at moments that mean something.
pub(crate) async fn calendar_windows_are_the_cores_however_deep_the_debt_and_long_the_wait<
    S: Subject,
>() {
    const HOUR: u64 = 3_600_000_000;
    for seed in 0..2 * S::RUNS {
        let mut rng = Rng::with_seed(seed ^ 0xca1e);
        let (shortest, longest) = [(23, 25), (167, 169), (28 * 24, 31 * 24)][rng.usize(..3)];
        let mut boundary = START - rng.u64(0..400 * 24 * HOUR);
        let mut boundaries = Vec::new();
        for _ in 0..2_000 {
            boundaries.push(Timestamp::from_micros(boundary));
            boundary += rng.u64(shortest..=longest) * HOUR;
        }
        let calendar = Arc::new(Calendar {
            boundaries,
            words: "window".to_owned(),
        });
        // In a process there is one generation at a time.
        let generations: Vec<_> = (0..if S::SHARED { 3 } else { 1 })
            .map(|_| {
                let amount = rng.u64(1..=4);
                let terms = Terms {
                    align: Align::Calendar(calendar.clone()),
                    debt: if rng.bool() {
                        rng.u64(0..=50 * amount)
                    } else {
                        0
                    },
                    max_wait: Micros(if rng.bool() { rng.u64(0..=HOUR) } else { 0 }),
                    ..terms::<S>(Kind::FixedWindow, amount, Micros(longest * HOUR))
                };
                limit::<S>(0, Algorithm::new(&terms).expect("representable"))
            })
            .collect();
        let Some(mut twins) = Twins::<S>::new(&generations[..1]).await else {
            return;
        };
        let key = caller("by the calendar");
        let mut kept = StoredBucket::full(generations[0].algorithm.clone());
        let mut told = None;
        for step in 0..60 {
            let end = calendar.window(twins.now).1.since(twins.now).0;
            twins.pass(Micros(match (rng.u8(..8), told.take()) {
                (0..2, Some(Micros(told))) => told,
                (2, Some(Micros(told))) => told - 1,
                (3, _) => end - rng.u64(0..=HOUR).min(end),
                (4, _) => end,
                (5, _) => rng.u64(0..longest * HOUR),
                (6, _) => rng.u64(0..20 * longest * HOUR),
                _ => 0,
            }));
            let limit = &generations[rng.usize(..generations.len())];
            let most = limit.algorithm.greatest_cost();
            if rng.u8(..4) == 0 {
                let change = match rng.u8(..2) {
                    0 => Change::Charge {
                        more: rng.u64(0..=most),
                    },
                    _ => Change::Refund {
                        units: rng.u64(0..=most),
                    },
                };
                kept.settle(&limit.algorithm, change, twins.now);
                twins
                    .subject
                    .store()
                    .settle(&[Settlement::new(limit, &key, change)]);
                twins.subject.settled().await;
            }
            let found = kept.under(&limit.algorithm, twins.now);
            let before = found.state().cloned();
            let mut states = [before.clone()];
            let cost = if rng.bool() {
                most
            } else {
                rng.u64(1..=most.min(3))
            };
            let claims = [claim(limit, &key, cost)];
            let expected = draw_all(&claims, &mut states, twins.now);
            let drawn = twins
                .subject
                .store()
                .draw(&claims)
                .await
                .expect("the store answers");
            assert_eq!(
                drawn, expected,
                "seed {seed} step {step}: {cost} of {kept:?} at {:?}",
                twins.now
            );
            if let Verdict::Deny { retry_after } = drawn.standings[0].verdict {
                told = retry_after;
            }
            let [state] = states;
            if state != before {
                kept = StoredBucket::from_parts(found.algorithm().clone(), state, 0);
            }
        }
    }
}

/// A lone caller that waits as long as it was told is admitted; one microsecond less, it is not.
pub(crate) async fn a_refused_request_passes_exactly_when_told<S: Subject>() {
    for kind in S::kinds().iter().filter(|kind| **kind != Kind::InFlight) {
        for (amount, period) in [(1, 86_400), (7, 3), (100, 60), (50, 1)] {
            let algorithm = Algorithm::new(&terms::<S>(*kind, amount, Micros::from_secs(period)))
                .expect("representable");
            let limits = [limit::<S>(0, algorithm)];
            let Some(mut twins) = Twins::<S>::new(&limits).await else {
                return;
            };
            let key = caller("patient");
            assert!(twins.draw(&[claim(&limits[0], &key, amount)]).await.granted);
            twins.pass(Micros(12_345));
            let refused = twins.draw(&[claim(&limits[0], &key, 1)]).await;
            // At the fastest of these rates a unit has come back by now.
            let Verdict::Deny {
                retry_after: Some(told),
            } = refused.standings[0].verdict
            else {
                panic!("{kind:?}: {refused:?}")
            };
            twins.pass(Micros(told.0 - 1));
            assert!(
                !twins.draw(&[claim(&limits[0], &key, 1)]).await.granted,
                "{kind:?} a microsecond early"
            );
            twins.pass(Micros(1));
            assert!(
                twins.draw(&[claim(&limits[0], &key, 1)]).await.granted,
                "{kind:?} after {told:?}"
            );
        }
    }
}

/// A refused request spends nothing anywhere.
pub(crate) async fn a_refusal_by_one_limit_leaves_the_others_as_they_were<S: Subject>() {
    let limits = per_minute::<S>(&[1, 10, 20]);
    let Some(mut twins) = Twins::<S>::new(&limits).await else {
        return;
    };
    let key = caller("spender");
    let claims: Vec<_> = limits.iter().map(|limit| claim(limit, &key, 1)).collect();
    assert!(twins.draw(&claims).await.granted);
    for _ in 0..30 {
        assert!(!twins.draw(&claims).await.granted);
    }
    let others = [claim(&limits[1], &key, 9), claim(&limits[2], &key, 19)];
    let drawn = twins.draw(&others).await;
    assert!(drawn.granted, "thirty refusals took nothing: {drawn:?}");
}

/// The same calls with the claims in any order.
pub(crate) async fn the_order_of_claims_does_not_matter<S: Subject>() {
    let mut totals = Vec::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let limits = per_minute::<S>(&[5, 3, 8]);
        let Some(mut twins) = Twins::<S>::new(&limits).await else {
            return;
        };
        let key = caller("orderly");
        let claims = order.map(|place| claim(&limits[place], &key, 1));
        let mut granted = 0;
        for _ in 0..40 {
            granted += u32::from(twins.draw(&claims).await.granted);
            twins.pass(Micros::from_secs(3));
        }
        totals.push(granted);
    }
    assert!(totals.iter().all(|total| *total == totals[0]), "{totals:?}");
}

/// A limit that is not enforced counts what it would have admitted, and no more.
pub(crate) async fn a_shadow_limit_never_vetoes_and_never_goes_into_debt<S: Subject>() {
    let limits = per_minute::<S>(&[10, 2]);
    let Some(mut twins) = Twins::<S>::new(&limits).await else {
        return;
    };
    let key = caller("shadowed");
    for round in 0..10 {
        let claims = [
            claim(&limits[0], &key, 1),
            Claim {
                enforced: false,
                ..claim(&limits[1], &key, 1)
            },
        ];
        let drawn = twins.draw(&claims).await;
        assert!(drawn.granted);
        assert_eq!(
            matches!(drawn.standings[1].verdict, Verdict::Allow { .. }),
            round < 2
        );
    }
    // Enforced now, it stands where two requests left it: one unit is back after half a minute.
    twins.pass(Micros::from_secs(30));
    assert!(twins.draw(&[claim(&limits[1], &key, 1)]).await.granted);
}

/// Concurrency: the place of a request that ended is free.
pub(crate) async fn a_place_in_flight_is_free_again_once_released<S: Subject>() {
    if !S::kinds().contains(&Kind::InFlight) {
        return;
    }
    let algorithm = Algorithm::new(&terms::<S>(Kind::InFlight, 3, Micros::ZERO)).expect("a number");
    let limits = [limit::<S>(0, algorithm)];
    let Some(mut twins) = Twins::<S>::new(&limits).await else {
        return;
    };
    let key = caller("busy");
    for _ in 0..3 {
        assert!(twins.draw(&[claim(&limits[0], &key, 1)]).await.granted);
    }
    let refused = twins.draw(&[claim(&limits[0], &key, 1)]).await;
    assert_eq!(
        refused.standings[0].verdict,
        Verdict::Deny { retry_after: None },
        "the time when a place falls free is not known"
    );
    twins
        .settle(&limits[0], &key, Change::Release { units: 1 })
        .await;
    assert!(twins.draw(&[claim(&limits[0], &key, 1)]).await.granted);
    assert!(!twins.draw(&[claim(&limits[0], &key, 1)]).await.granted);
}

/// Looking is free, and sees what a draw would get.
pub(crate) async fn a_peek_charges_nothing<S: Subject>() {
    let limits = per_minute::<S>(&[4, 9]);
    let Some(mut twins) = Twins::<S>::new(&limits).await else {
        return;
    };
    let key = caller("curious");
    for _ in 0..6 {
        let claims = [claim(&limits[0], &key, 1), claim(&limits[1], &key, 1)];
        let expected = peek_all(&claims, &twins.states, twins.now);
        for _ in 0..3 {
            assert_eq!(
                twins
                    .subject
                    .store()
                    .peek(&claims)
                    .await
                    .expect("the store answers"),
                expected
            );
        }
        twins.draw(&claims).await;
        twins.pass(Micros::from_secs(1));
    }
}

/// One caller's spending is not another's, one limit's not another's.
pub(crate) async fn keys_and_limits_have_buckets_of_their_own<S: Subject>() {
    let limits = per_minute::<S>(&[1, 1]);
    let now = Timestamp::from_micros(START);
    let Some(subject) = S::new(&limits, now).await else {
        return;
    };
    let callers: Vec<_> = ["a", "b", ""]
        .map(caller)
        .into_iter()
        .chain([caller(&"long".repeat(100))])
        .collect();
    for expected in [true, false] {
        for limit in &limits {
            for key in &callers {
                let drawn = subject
                    .store()
                    .draw(&[claim(limit, key, 1)])
                    .await
                    .expect("the store answers");
                assert_eq!(drawn.granted, expected);
            }
        }
    }
}

/// One a day with the greatest burst there is, ten million a second, years of idling.
pub(crate) async fn the_extremes_neither_wrap_nor_round<S: Subject>() {
    let day = Micros::from_secs(86_400);
    let most = ((1u64 << 53) - 1) / day.0;
    for (amount, period, burst) in [
        (1, day, 1),
        (1, day, most),
        (10_000_000, Micros::from_secs(1), 10),
        (10_000_000, Micros::from_secs(1), 1 << 40),
    ] {
        let terms = Terms {
            burst: Some(burst),
            ..terms::<S>(Kind::TokenBucket, amount, period)
        };
        let limits = [limit::<S>(
            0,
            Algorithm::new(&terms).expect("representable"),
        )];
        let Some(mut twins) = Twins::<S>::new(&limits).await else {
            return;
        };
        let key = caller("extreme");
        assert!(twins.draw(&[claim(&limits[0], &key, burst)]).await.granted);
        for pause in [0, 1, 86_399_999_999, 1, 300_000_000_000_000] {
            twins.pass(Micros(pause));
            twins.draw(&[claim(&limits[0], &key, 1)]).await;
            twins.draw(&[claim(&limits[0], &key, burst)]).await;
            twins.draw(&[claim(&limits[0], &key, u64::MAX)]).await;
        }
    }
}

fn per_minute<S: Subject>(bursts: &[u64]) -> Vec<Arc<Limit>> {
    let limit = |(index, burst): (usize, &u64)| {
        let terms = Terms {
            burst: Some(*burst),
            ..terms::<S>(Kind::TokenBucket, 2, Micros::from_secs(60))
        };
        limit::<S>(index, Algorithm::new(&terms).expect("representable"))
    };
    bursts.iter().enumerate().map(limit).collect()
}
