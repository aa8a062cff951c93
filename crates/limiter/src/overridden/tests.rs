use super::*;
use crate::Override;
use crate::{Limiter, Permit};
use tollgate_limit::{Kind, fixtures};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// The places of a concurrency limit are raised, lowered, blocked and unlimited while requests hold
/// some: none is lost, and none is given twice.
#[test]
fn override_of_places_counts_those_that_are_held() {
    let limit = Arc::new(fixtures::limit(
        "jobs",
        &fixtures::terms(Kind::InFlight, 2, Micros::ZERO),
    ));
    let limits = [Arc::clone(&limit)];
    let clock = Clock::manual(START);
    let server = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    let limiter = Limiter::new(&limits, Arc::new(server), clock.clone(), ColdStart::Full);
    let bucket = limiter.bucket_hash(&limit, b"k").expect("a name");
    let put = |effect: Option<Effect>| {
        limiter.put_overrides(effect.map(|effect| Override {
            limit: Arc::clone(&limit.name),
            placement: limit.placement,
            bucket,
            effect,
            until: START.after(Micros::from_secs(60)),
        }));
    };
    let take = |key: &[u8]| -> Option<Permit> {
        let claims = [Claim::new(&limit, key, 1)];
        match limiter.try_check(&claims, clock.now()) {
            Some(Decision::Allow(permit)) => Some(permit),
            Some(Decision::Deny(_)) => None,
            other => panic!("{other:?}"),
        }
    };
    let all = || {
        std::iter::from_fn(|| take(b"k"))
            .take(20)
            .collect::<Vec<_>>()
    };
    let mut held = all();
    assert_eq!(held.len(), 2);
    put(Some(Effect::Places(5)));
    held.extend(all());
    assert_eq!(held.len(), 5, "three more");
    assert_eq!(take(b"other").into_iter().count(), 1);
    put(Some(Effect::Places(3)));
    assert!(take(b"k").is_none());
    held.truncate(3);
    assert!(take(b"k").is_none(), "as many are held as there are");
    held.truncate(2);
    held.extend(all());
    assert_eq!(held.len(), 3);
    put(Some(Effect::Block));
    held.clear();
    assert!(take(b"k").is_none());
    put(Some(Effect::Unlimited));
    assert_eq!(all().len(), 20);
    put(Some(Effect::Places(1)));
    let one = all();
    assert_eq!(one.len(), 1, "what was held without a limit is not counted");
    // The end: the limit's own places, and none of them lost.
    put(None);
    assert_eq!(all().len(), 1);
    drop(one);
    assert_eq!(all().len(), 2);
    put(Some(Effect::Places(4)));
    clock.advance(Micros::from_secs(60));
    assert_eq!(all().len(), 2, "it has ended by itself");
}
