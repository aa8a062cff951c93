//! An operator's reset: a refund of all that a bucket can lack, which begins a generation.

use std::sync::Arc;

use tollgate_limit::{
    Algorithm, Change, Corrects, Kind, Limit, Micros, Settlement, Terms, Timestamp,
};
use tollgate_store::Store;

use crate::random::START;
use crate::subject::{Subject, caller, claim, limit, terms};

/// Whatever was drawn, owed and settled: after a reset the bucket grants its burst, and no unit more; another caller's
/// bucket stays as it was.
pub(crate) async fn a_reset_fills_a_bucket_by_every_algorithm<S: Subject>() {
    let now = Timestamp::from_micros(START);
    for kind in S::kinds() {
        for debt in [0, 7] {
            let lends = matches!(kind, Kind::TokenBucket | Kind::Interval | Kind::FixedWindow);
            if *kind == Kind::InFlight || (debt > 0 && !lends) {
                continue;
            }
            let terms = Terms {
                debt,
                ..terms::<S>(*kind, 10, Micros::from_secs(3_600))
            };
            let algorithm = Algorithm::new(&terms).expect("good terms");
            let depth = algorithm.depth().expect("it has buckets");
            let limits = [Arc::new(Limit {
                resettable: true,
                ..Limit::clone(&limit::<S>(0, algorithm))
            })];
            let Some(subject) = S::new(&limits, now).await else {
                return;
            };
            let [reset, other] = ["reset", "other"].map(caller);
            for key in [&reset, &other] {
                assert_eq!(drawn(&subject, &limits[0], key).await, 10, "{kind:?}");
            }
            let more = Change::Charge { more: 5 };
            subject
                .store()
                .settle(&[Settlement::new(&limits[0], &reset, more)]);
            subject.settled().await;
            subject
                .store()
                .settle(&[filling(&limits[0], &reset, depth)]);
            subject.settled().await;
            let looked = [claim(&limits[0], &reset, 1)];
            let standing = subject.store().peek(&looked).await.expect("it answers");
            assert_eq!(standing[0].remaining(), 10, "{kind:?} with debt {debt}");
            assert_eq!(drawn(&subject, &limits[0], &reset).await, 10, "{kind:?}");
            assert_eq!(drawn(&subject, &limits[0], &other).await, 0, "{kind:?}");
        }
    }
}

/// An operator's reset of a bucket.
fn filling<'a>(limit: &'a Limit, key: &'a [u8], units: u64) -> Settlement<'a> {
    Settlement {
        corrects: Corrects::Reset,
        ..Settlement::new(limit, key, Change::Refund { units })
    }
}

/// A request reserves most of a bucket, the bucket is reset and used up, and then the request gives back what it did not
/// use: the new generation grants its burst and no unit more. What it grants itself comes back as ever.
pub(crate) async fn what_was_drawn_before_a_reset_returns_nothing<S: Subject>() {
    for kind in S::kinds() {
        if *kind == Kind::InFlight {
            continue;
        }
        let mut now = Timestamp::from_micros(START);
        let algorithm = Algorithm::new(&terms::<S>(*kind, 1000, Micros::from_secs(360_000)));
        let algorithm = algorithm.expect("good terms");
        let depth = algorithm.depth().expect("it has buckets");
        let limits = [Arc::new(Limit {
            resettable: true,
            ..Limit::clone(&limit::<S>(0, algorithm))
        })];
        let Some(mut subject) = S::new(&limits, now).await else {
            return;
        };
        let key = caller("tenant");
        let reserved = [claim(&limits[0], &key, 890)];
        let mut give_back = Vec::new();
        for generation in 0..2 {
            let drawn = subject.store().draw(&reserved).await.expect("it answers");
            assert!(drawn.granted, "{kind:?}, generation {generation}");
            let window_end = drawn.standings[0].window_end;
            let change = match window_end == Timestamp::default() {
                true => Change::Refund { units: 890 },
                false => Change::RefundWithin {
                    units: 890,
                    window_end,
                },
            };
            give_back.push(Settlement {
                corrects: Corrects::draw_of(drawn.at),
                ..Settlement::new(&limits[0], &key, change)
            });
            if generation == 0 {
                subject.store().settle(&[filling(&limits[0], &key, depth)]);
                subject.settled().await;
                now = now.after(Micros(1));
                subject.set_time(now);
            }
        }
        for (settlement, left) in give_back.iter().zip([110, 1000]) {
            subject.store().settle(&[*settlement]);
            subject.settled().await;
            let looked = [claim(&limits[0], &key, 1)];
            let standing = subject.store().peek(&looked).await.expect("it answers");
            assert_eq!(standing[0].remaining(), left, "{kind:?}");
        }
    }
}

/// How many single units, of at most thirty, a bucket grants.
async fn drawn<S: Subject>(subject: &S, limit: &Limit, key: &[u8]) -> u64 {
    let mut granted = 0;
    for _ in 0..30 {
        let asked = [tollgate_limit::Claim::new(limit, key, 1)];
        let standing = subject.store().peek(&asked).await.expect("it answers");
        // Units that are lent come after the burst.
        if standing[0].remaining() == 0 {
            break;
        }
        let draw = subject.store().draw(&asked).await.expect("it answers");
        granted += u64::from(draw.granted);
    }
    granted
}
