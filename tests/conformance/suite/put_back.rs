//! A server's clock that is put back, and forward again. (The clock of a process does not go back.)

use fastrand::Rng;
use tollgate_limit::draw::longest_wait;
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{
    Algorithm, Align, Change, Kind, Micros, Settlement, StoredBucket, Terms, Timestamp,
};
use tollgate_store::Store;

use super::{Twins, pause, random_limit};
use crate::random;
use crate::subject::{Subject, caller, claim, limit, terms};

/// Random traces with steps back and forward, small and large: the store pulls a bucket to the clock when the core does.
pub(crate) async fn a_clock_that_steps_back_and_forward_finds_buckets_as_the_core_does<
    S: Subject,
>() {
    if !S::SHARED {
        return;
    }
    for kind in S::kinds() {
        for seed in 0..2 * S::RUNS {
            let mut rng = Rng::with_seed(seed ^ 0xbac7);
            let limits = [random_limit::<S>(&mut rng, 0, *kind)];
            let limit = &limits[0];
            let Some(mut twins) = Twins::<S>::new(&limits).await else {
                return;
            };
            let key = caller("put back");
            let mut kept = StoredBucket::full(limit.algorithm.clone());
            let mut written = None;
            // Whether all is written as of now: what a refusal has seen of the time since, one store keeps and another does not.
            let mut fresh = true;
            let mut history = Vec::new();
            for step in 0..40 {
                match rng.u8(..3) {
                    0 if fresh => {
                        let back = random::pick(
                            &mut rng,
                            &[1, 999_999, 1_000_000, 1_000_001, 5_000_000, 3_600_000_000],
                        );
                        twins.now =
                            Timestamp::from_micros(twins.now.as_micros() - rng.u64(0..=back));
                        twins.subject.set_time(twins.now);
                    }
                    _ => twins.pass(pause(&mut rng, limit, None)),
                }
                let cost = random::cost(&mut rng, limit.algorithm.greatest_cost().min(1_000));
                if rng.u8(..4) == 0 {
                    let change = if rng.bool() {
                        Change::Charge { more: cost }
                    } else {
                        Change::Refund { units: cost }
                    };
                    kept.pull(written, twins.now);
                    kept.settle(&limit.algorithm, change, twins.now);
                    written = kept.written(twins.now);
                    twins
                        .subject
                        .store()
                        .settle(&[Settlement::new(limit, &key, change)]);
                    twins.subject.settled().await;
                }
                if kept.pull(written, twins.now) {
                    written = kept.written(twins.now);
                }
                let place = format!("seed {seed} step {step}");
                let claim = claim(limit, &key, cost);
                let (granted, drawn) = twins.draw_kept(&claim, &kept, &place, &mut history).await;
                fresh = cost > 0 && granted;
                if let Some(drawn) = drawn {
                    kept = drawn;
                    written = kept.written(twins.now);
                }
            }
        }
    }
}

/// A caller that has used everything up waits as long as any other does, and not for the hour by which the clock was put back.
pub(crate) async fn a_clock_put_back_by_an_hour_delays_no_caller_for_it<S: Subject>() {
    const TEN: Micros = Micros::from_secs(10);
    if !S::SHARED {
        return;
    }
    let mut all: Vec<Terms> = RATES.map(|kind| terms::<S>(kind, 20, TEN)).into();
    all.push(Terms {
        align: Align::Clock,
        ..terms::<S>(Kind::FixedWindow, 20, TEN)
    });
    for terms in all {
        let limit = |index| limit::<S>(index, Algorithm::new(&terms).expect("representable"));
        let limits = [limit(0), limit(1)];
        // Alone, and beside another limit.
        for count in [1, 2] {
            let Some(mut twins) = Twins::<S>::new(&limits).await else {
                return;
            };
            let key = caller("put back");
            let claims: Vec<_> = limits[..count]
                .iter()
                .map(|limit| claim(limit, &key, 1))
                .collect();
            let mut granted = 0;
            while twins
                .subject
                .store()
                .draw(&claims)
                .await
                .expect("the store answers")
                .granted
            {
                granted += 1;
            }
            assert_eq!(granted, 20, "{terms:?}");
            twins.now = Timestamp::from_micros(twins.now.as_micros() - 3_600_000_000);
            twins.subject.set_time(twins.now);
            let refused = twins
                .subject
                .store()
                .draw(&claims)
                .await
                .expect("the store answers");
            assert!(!refused.granted, "{terms:?}: nothing is added");
            let told =
                longest_wait(refused.standings.iter().map(|one| one.verdict)).expect("a time");
            assert!(told <= Micros(2 * TEN.0), "{terms:?}: {told:?}");
            for (wait, granted) in [(told.0 - 1, false), (1, true)] {
                twins.pass(Micros(wait));
                let drawn = twins
                    .subject
                    .store()
                    .draw(&claims)
                    .await
                    .expect("the store answers");
                assert_eq!(drawn.granted, granted, "{terms:?}: {told:?}");
            }
        }
    }
}
