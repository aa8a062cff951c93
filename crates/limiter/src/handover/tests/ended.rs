//! The process that has the buckets ends, and its predecessor has them again.

use super::*;

/// Hands the buckets of `limiter` over to another one.
fn handed_over(limiter: &Limiter<Backend>, now: Timestamp) -> Arc<Mortal> {
    limiter.freeze();
    let mut saved = Vec::new();
    limiter.save_for_handover(&mut saved).expect("saved");
    let backend = Arc::new(Backend::None);
    let restored = Limiter::restored(
        limiter.limits(),
        backend,
        Clock::manual(now),
        std::io::Cursor::new(saved),
    );
    let successor = Mortal::new(&["jobs", "units"], restored.expect("restored").0);
    limiter.hand_to(Arc::clone(&successor) as Arc<dyn Successor>);
    successor
}

/// Places that were held before the handover, that the other process granted, and that were freed
/// there: all of them count, and no other.
#[tokio::test]
async fn handover_process_with_the_buckets_ends_and_places_of_running_requests_are_counted_here() {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let terms = fixtures::terms(Kind::InFlight, 2, Micros::from_secs(1));
    let limits = [Arc::new(fixtures::limit("jobs", &terms))];
    let backend = Arc::new(Backend::None);
    let limiter = Limiter::new(&limits, backend, Clock::manual(now), ColdStart::Full);
    let claims = [Claim::new(&limits[0], b"k", 1)];
    let draw = async || match limiter.check(&claims, now).await {
        Decision::Allow(permit) => Some(permit),
        _ => None,
    };
    let before = draw().await.expect("a place");
    let other = handed_over(&limiter, now);
    let there = draw().await.expect("a place");
    assert!(draw().await.is_none(), "two are held");
    drop(before);
    let again = draw().await.expect("the place of the first");
    other.ended.store(true, Ordering::Relaxed);
    assert!(draw().await.is_none(), "two requests run here");
    drop(there);
    let last = draw().await.expect("a place");
    assert!(draw().await.is_none());
    drop((again, last));
    for _ in 0..5 {
        assert!(draw().await.is_some(), "no request runs");
    }
}

/// The copy of a bucket was not charged for what the other process granted.
#[tokio::test]
async fn handover_process_with_the_buckets_ends_and_its_charges_are_not_given_back_here() {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let terms = Terms {
        burst: Some(10),
        ..fixtures::terms(Kind::TokenBucket, 10, Micros::from_secs(60))
    };
    let limits = [Arc::new(Limit {
        refundable: true,
        ..fixtures::limit("units", &terms)
    })];
    let backend = Arc::new(Backend::None);
    let limiter = Limiter::new(&limits, backend, Clock::manual(now), ColdStart::Full);
    let draw = async |cost| {
        let claims = [Claim::new(&limits[0], b"k", cost)];
        match limiter.check(&claims, now).await {
            Decision::Allow(permit) => permit,
            other => panic!("{other:?}"),
        }
    };
    let left = || {
        limiter
            .local()
            .peek_at(&[Claim::new(&limits[0], b"k", 0)], now)[0]
            .remaining
    };
    let before = draw(2).await;
    let other = handed_over(&limiter, now);
    let there = draw(3).await;
    other.ended.store(true, Ordering::Relaxed);
    let here = draw(4).await;
    assert_eq!(left(), 4);
    drop(there);
    assert_eq!(left(), 4, "never taken from this copy");
    drop(here);
    drop(before);
    assert_eq!(left(), 10);
}
