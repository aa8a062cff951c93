//! Bursts that a reload lowers and another raises again: one meaning on every store.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{
    Algorithm, Change, Kind, Limit, Micros, Settlement, StoredBucket, Terms, Timestamp, draw_all,
};
use tollgate_store::Store;

use super::pause;
use crate::random::{self, START};
use crate::subject::{Subject, caller, claim, limit, terms};

const HOUR: Micros = Micros::from_secs(3600);

fn numbers<S: Subject>(kind: Kind, most: u64) -> [Arc<Limit>; 1] {
    let terms = match kind {
        Kind::TokenBucket => Terms {
            burst: Some(most),
            ..terms::<S>(kind, 20, HOUR)
        },
        Kind::Interval => Terms {
            burst: Some(most),
            ..terms::<S>(kind, 2, Micros(HOUR.0 / 10))
        },
        _ => terms::<S>(kind, most, HOUR),
    };
    [limit::<S>(
        0,
        Algorithm::new(&terms).expect("representable"),
    )]
}

/// How many requests `limit` grants to the caller at once, counted up to `most`.
pub(super) async fn left<S: Subject>(
    subject: &S,
    limit: &Limit,
    key: &tollgate_limit::KeyBytes,
    most: u64,
) -> u64 {
    let mut granted = 0;
    while granted < most
        && subject
            .store()
            .draw(&[claim(limit, key, 1)])
            .await
            .expect("the store answers")
            .granted
    {
        granted += 1;
    }
    granted
}

/// 20 with 18 left, lowered to 5 and raised to 20. A caller without draws meanwhile loses nothing. A token bucket that is drawn
/// from under the 5 has what they leave, also where a settlement gives the draw back; all others have 20 less what was used.
/// No caller has more than before.
pub(crate) async fn a_burst_lowered_and_raised_again_leaves_what_was_not_drawn_from<S: Subject>() {
    for kind in RATES {
        let (of_busy, of_returned) = match kind {
            Kind::TokenBucket => (4, 5),
            _ => (17, 18),
        };
        for restart in [false, true] {
            let [large, small] = [20, 5].map(|most| numbers::<S>(kind, most));
            let Some(mut subject) = S::new(&large, Timestamp::from_micros(START)).await else {
                return;
            };
            let [idle, busy, fresh, settled, spent, returned, undone] = [
                "idle", "busy", "fresh", "settled", "spent", "returned", "undone",
            ]
            .map(caller);
            for key in [&idle, &busy, &settled, &returned] {
                assert_eq!(left(&subject, &large[0], key, 2).await, 2);
            }
            assert_eq!(left(&subject, &large[0], &spent, 18).await, 18);
            subject.reload(&small, restart);
            assert_eq!(left(&subject, &small[0], &busy, 1).await, 1);
            // Refused: nothing is drawn.
            let dear = [claim(&small[0], &idle, 6)];
            assert!(
                !subject
                    .store()
                    .draw(&dear)
                    .await
                    .expect("the store answers")
                    .granted
            );
            for key in [&returned, &undone] {
                assert_eq!(left(&subject, &small[0], key, 2).await, 2);
                let back = Settlement::new(&small[0], key, Change::Refund { units: 2 });
                subject.store().settle(&[back]);
            }
            let charge = Settlement::new(&small[0], &settled, Change::Charge { more: 1 });
            subject.store().settle(&[charge]);
            subject.settled().await;
            subject.reload(&large, restart);
            let what = format!("{kind:?}, restart: {restart}");
            assert_eq!(left(&subject, &large[0], &idle, 100).await, 18, "{what}");
            assert_eq!(
                left(&subject, &large[0], &busy, 100).await,
                of_busy,
                "{what}"
            );
            assert_eq!(left(&subject, &large[0], &spent, 100).await, 2, "{what}");
            assert_eq!(left(&subject, &large[0], &fresh, 100).await, 20, "{what}");
            assert_eq!(left(&subject, &large[0], &settled, 100).await, 17, "{what}");
            assert_eq!(
                left(&subject, &large[0], &returned, 100).await,
                of_returned,
                "{what}"
            );
            assert_eq!(left(&subject, &large[0], &undone, 100).await, 20, "{what}");

            // Lowered for good.
            subject.reload(&small, restart);
            assert_eq!(
                left(&subject, &small[0], &caller("new"), 100).await,
                5,
                "{what}"
            );
        }
    }
}

/// Random reloads of a process, each of which a shared store would learn of with the next request.
pub(crate) async fn reloads_leave_a_bucket_in_the_numbers_it_was_drawn_under<S: Subject>() {
    if S::SHARED {
        // (There it is `generations_and_tiers_of_a_limit_share_its_buckets`.)
        return;
    }
    for kind in RATES {
        for seed in 0..S::RUNS {
            let mut rng = Rng::with_seed(seed ^ 0x7e10);
            let most = [(); 3].map(|()| rng.u64(1..30));
            let generations = most.map(|most| numbers::<S>(kind, most));
            let mut now = Timestamp::from_micros(START);
            let mut limits = &generations[0];
            let Some(mut subject) = S::new(limits, now).await else {
                return;
            };
            let key = caller("through reloads");
            let mut kept = StoredBucket::full(limits[0].algorithm.clone());
            let mut history = Vec::new();
            for step in 0..40 {
                let span = match rng.u8(..4) {
                    0 => Micros(0),
                    1 => Micros(rng.u64(..HOUR.0 / 10)),
                    _ => pause(&mut rng, &limits[0], None),
                };
                now = now.after(Micros(span.0.min(2 * HOUR.0)));
                subject.set_time(now);
                if rng.u8(..3) == 0 {
                    limits = &generations[rng.usize(..3)];
                    subject.reload(limits, rng.bool());
                }
                let limit = &limits[0];
                let cost = random::cost(&mut rng, limit.algorithm.greatest_cost());
                if rng.u8(..4) == 0 {
                    let change = if rng.bool() {
                        Change::Charge { more: cost }
                    } else {
                        Change::Refund { units: cost }
                    };
                    kept.settle(&limit.algorithm, change, now);
                    subject
                        .store()
                        .settle(&[Settlement::new(limit, &key, change)]);
                }
                let found = kept.under(&limit.algorithm, now);
                let before = found.state().cloned();
                let mut states = [before.clone()];
                let claims = [claim(limit, &key, cost)];
                let expected = draw_all(&claims, &mut states, now);
                let drawn = subject
                    .store()
                    .draw(&claims)
                    .await
                    .expect("the store answers");
                let asked = format!("{cost} by {:?} at {now:?}: {kept:?}", limit.algorithm);
                assert_eq!(
                    drawn, expected,
                    "seed {seed} step {step}: {asked} after {history:#?}"
                );
                history.push(asked);
                let [state] = states;
                if cost > 0 && state != before {
                    kept = StoredBucket::from_parts(found.algorithm().clone(), state, 0);
                }
            }
        }
    }
}
