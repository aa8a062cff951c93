//! Windows: units return only to the window that they came from. No charge leads a ceiling below zero.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{
    Algorithm, Align, Calendar, Change, Kind, Micros, Settlement, Terms, Timestamp,
};
use tollgate_store::Store;

use crate::random::START;
use crate::subject::{Subject, caller, claim, limit, terms};

const QUOTA: u64 = 100;
const PERIOD: u64 = 10_000_000;

/// Random reservations and settlements, some of which arrive after their window: the store has what the core has.
pub(crate) async fn units_are_given_back_only_to_their_window<S: Subject>() {
    let boundaries = (0..400).map(|step| Timestamp::from_micros(START + step * PERIOD));
    let calendar = Arc::new(Calendar {
        boundaries: boundaries.collect(),
        words: "ten seconds".to_owned(),
    });
    let of = |terms: Terms| Algorithm::new(&terms).expect("good terms");
    let window = |align: Align| Terms {
        align,
        ..terms::<S>(Kind::FixedWindow, QUOTA, Micros(PERIOD))
    };
    let kinds = [Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog];
    let mut all: Vec<Algorithm> = kinds
        .map(|kind| of(terms::<S>(kind, QUOTA, Micros(PERIOD))))
        .into();
    all.push(of(Terms {
        burst: Some(3 * QUOTA),
        ..terms::<S>(Kind::Interval, QUOTA, Micros(PERIOD))
    }));
    for align in [Align::FirstHit, Align::Clock, Align::Calendar(calendar)] {
        all.push(of(window(align)).ceiling());
    }
    let mut late = 0;
    for algorithm in all {
        for seed in 0..S::RUNS.min(3) {
            let mut rng = Rng::with_seed(seed);
            let limits = [limit::<S>(0, algorithm.clone())];
            let (limit, key) = (&limits[0], caller("window"));
            let mut now = Timestamp::from_micros(START);
            let Some(mut subject) = S::new(&limits, now).await else {
                return;
            };
            let (mut state, mut open) = (None, Vec::new());
            for step in 0..80 {
                if rng.u8(..3) == 0 {
                    now = now.after(Micros(rng.u64(..PERIOD / 2)));
                    subject.set_time(now);
                }
                if rng.bool() && !open.is_empty() {
                    let (units, window_end) = open.swap_remove(rng.usize(..open.len()));
                    late += u64::from(now >= window_end);
                    let change = if rng.u8(..4) == 0 {
                        Change::Charge { more: 3 * QUOTA }
                    } else {
                        Change::RefundWithin { units, window_end }
                    };
                    limit.algorithm.settle(&mut state, change, now);
                    let settlement = Settlement::new(limit, &key, change);
                    subject.store().settle(&[settlement]);
                    subject.settled().await;
                }
                let units = rng.u64(..QUOTA / 3);
                let expected = limit.algorithm.decide(state.as_ref(), units, now);
                let draw = subject.store().draw(&[claim(limit, &key, units)]).await;
                let standing = draw.expect("it answers").standings[0];
                assert_eq!(
                    standing, expected.standing,
                    "{algorithm:?} seed {seed} step {step}: {state:?}"
                );
                state = expected.state;
                if standing.verdict.is_allow() {
                    open.push((units, standing.window_end));
                }
            }
        }
    }
    assert!(late > 5, "only {late} came after their windows");
}
