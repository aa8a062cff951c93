use super::*;
use crate::{Decision, Limiter, Override, Permit};
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{Kind, Limit, Micros, Placement, fixtures};
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
            since: clock.now(),
            until: START.after(Micros::from_secs(60)),
        }));
    };
    let take = |key: &[u8]| -> Option<Permit> {
        let claims = [Claim::new(&limit, key, 1)];
        match limiter.decide(&claims, clock.now()).at_once() {
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

/// A gateway with one local limit, and a caller whose bucket is empty.
struct Exhausted {
    limit: Arc<Limit>,
    limiter: Limiter<LocalStore>,
    clock: Clock,
}

impl Exhausted {
    fn new(kind: Kind, amount: u64, period: u64) -> Self {
        let terms = fixtures::terms(kind, amount, Micros::from_secs(period));
        let limit = Arc::new(fixtures::limit("each", &terms));
        let limits = [Arc::clone(&limit)];
        let clock = Clock::manual(START);
        let server = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
        let limiter = Limiter::new(&limits, Arc::new(server), clock.clone(), ColdStart::Full);
        let new = Self {
            limit,
            limiter,
            clock,
        };
        while new.ask().is_ok() {}
        new
    }

    /// What a request is told: it passes, or how long it has to wait.
    fn ask(&self) -> Result<(), Option<Micros>> {
        let claims = [Claim::new(&self.limit, b"k", 1)];
        match self.limiter.decide(&claims, self.clock.now()).at_once() {
            Some(Decision::Allow(mut permit)) => {
                permit.forwarded();
                Ok(())
            }
            Some(Decision::Deny(denied)) => Err(denied.retry_after()),
            other => panic!("{other:?}"),
        }
    }

    fn put(&self, amount: u64, period: u64, lasts: Micros) -> Override {
        let rate = tollgate_limit::Rate::new(amount, Micros::from_secs(period));
        let bucket = self.limiter.bucket_hash(&self.limit, b"k");
        let own = Override {
            limit: Arc::clone(&self.limit.name),
            placement: Placement::Local,
            bucket: bucket.expect("a name"),
            effect: Effect::Numbers {
                rate: Some(rate),
                burst: None,
            },
            since: self.clock.now(),
            until: self.clock.now().after(lasts),
        };
        self.limiter.put_overrides([own.clone()]);
        own
    }

    fn pass(&self, millis: u64) {
        self.clock.advance(Micros(millis * 1_000));
    }
}

#[test]
fn raise_helps_a_caller_that_is_out_at_once() {
    for kind in RATES {
        let caller = Exhausted::new(kind, 2, 3_600);
        caller.pass(9_000);
        // The period of windows is part of their names.
        let period = match kind {
            Kind::TokenBucket => 1,
            _ => 3_600,
        };
        caller.put(10, period, Micros::from_secs(60));
        caller.pass(2_000);
        assert_eq!(caller.ask(), Ok(()), "{kind:?}");
    }
}

#[test]
fn lowered_rate_is_in_force_from_the_next_grant_on() {
    let caller = Exhausted::new(Kind::TokenBucket, 10, 1);
    caller.put(1, 3_600, Micros::from_secs(600));
    assert!(caller.ask().is_err());
    caller.pass(1_000);
    assert_eq!(
        caller.ask(),
        Ok(()),
        "what passed counts at the rate of its last grant"
    );
    let wait = caller.ask().expect_err("its burst is one").expect("a time");
    assert_eq!(wait, Micros::from_secs(3_600));
}
