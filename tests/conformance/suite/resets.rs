//! An operator's reset: a refund of all that a bucket can lack.

use std::sync::Arc;

use tollgate_limit::{Algorithm, Change, Kind, Limit, Micros, Settlement, Terms, Timestamp};
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
            let fill = Change::Refund { units: depth };
            subject
                .store()
                .settle(&[Settlement::new(&limits[0], &reset, fill)]);
            subject.settled().await;
            let looked = [claim(&limits[0], &reset, 1)];
            let standing = subject.store().peek(&looked).await.expect("it answers");
            assert_eq!(standing[0].remaining, 10, "{kind:?} with debt {debt}");
            assert_eq!(drawn(&subject, &limits[0], &reset).await, 10, "{kind:?}");
            assert_eq!(drawn(&subject, &limits[0], &other).await, 0, "{kind:?}");
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
        if standing[0].remaining == 0 {
            break;
        }
        let draw = subject.store().draw(&asked).await.expect("it answers");
        granted += u64::from(draw.granted);
    }
    granted
}
