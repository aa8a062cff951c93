use std::sync::Mutex;

use super::*;
use crate::Override;
use crate::{Limiter, Permit};
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{Draw, Kind, Settlement, fixtures};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore};
use tollgate_store::{HashKey, StoreError};

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
        match self.limiter.try_check(&claims, self.clock.now()) {
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
fn raise_counts_from_its_beginning_and_not_from_the_next_request() {
    for kind in RATES {
        let caller = Exhausted::new(kind, 2, 3_600);
        caller.pass(9_000);
        caller.put(10, 1, Micros::from_secs(60));
        caller.pass(2_000);
        assert_eq!(caller.ask(), Ok(()), "{kind:?}");
    }
}

#[test]
fn lifted_override_of_a_resting_caller_counts_until_it_was_lifted() {
    let caller = Exhausted::new(Kind::TokenBucket, 10, 1);
    let own = caller.put(1, 3_600, Micros::from_secs(600));
    assert!(caller.ask().is_err());
    caller.pass(100_000);
    let until = caller.clock.now();
    caller.limiter.put_overrides([Override { until, ..own }]);
    caller.pass(90);
    assert!(
        caller.ask().is_err(),
        "a hundred seconds at its rate are little"
    );
    caller.pass(10);
    assert_eq!(caller.ask(), Ok(()), "and its own rate since then");
}

#[test]
fn refusal_under_a_lowered_rate_waits_for_its_end_and_not_for_the_rate() {
    for kind in RATES {
        let caller = Exhausted::new(kind, 1, 1);
        caller.pass(2_000);
        caller.put(1, 3_600, Micros::from_secs(2));
        while caller.ask().is_ok() {}
        let wait = caller.ask().expect_err("refused").expect("a time");
        let most = Micros::from_secs(4);
        assert!(wait <= most, "{kind:?}: {wait:?}");
        caller.clock.advance(wait);
        assert_eq!(caller.ask(), Ok(()), "{kind:?}");
    }
    let caller = Exhausted::new(Kind::TokenBucket, 1, 1);
    caller.pass(1_000);
    caller.put(1, 3_600, Micros::from_secs(2));
    assert!(caller.ask().is_ok() && caller.ask().is_err());
    caller.pass(6_000);
    assert_eq!(caller.ask(), Ok(()), "its own rate since the end");
}

/// The gateway learns of an override a moment after it was set, and has granted in between.
#[test]
fn raise_that_is_learnt_late_counts_no_time_before_the_last_grants() {
    let caller = Exhausted::new(Kind::TokenBucket, 10, 1);
    caller.pass(1_000);
    while caller.ask().is_ok() {}
    let now = caller.clock.now();
    let bucket = caller.limiter.bucket_hash(&caller.limit, b"k");
    caller.limiter.put_overrides([Override {
        limit: Arc::clone(&caller.limit.name),
        placement: Placement::Local,
        bucket: bucket.expect("a name"),
        effect: Effect::Numbers {
            rate: Some(tollgate_limit::Rate::new(100, Micros::from_secs(1))),
            burst: Some(10),
        },
        since: Timestamp::from_micros(now.as_micros() - 50_000),
        until: now.after(Micros::from_secs(60)),
    }]);
    assert!(caller.ask().is_err(), "the burst was granted just now");
    caller.pass(10);
    assert_eq!((caller.ask(), caller.ask().is_err()), (Ok(()), true));
}

/// A shared store without a response, which records the numbers that buckets take on.
#[derive(Default)]
struct Silent(Mutex<Vec<(Arc<str>, u64, Micros)>>);

impl Store for Silent {
    async fn draw_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        Err(StoreError::Timeout)
    }

    fn settle(&self, _: &[Settlement<'_>]) {}

    async fn peek_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        Err(StoreError::Timeout)
    }

    fn take_numbers(&self, limit: &Limit, _: &[u8], ago: Micros) {
        let told = (Arc::clone(&limit.name), limit.algorithm.burst(), ago);
        self.0.lock().expect("not poisoned").push(told);
    }

    fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> Option<u128> {
        Some(HashKey::new(b"secret").bucket(limit, key))
    }
}

/// Otherwise the bucket would refill at its old rate for as long as it refuses, whatever its callers
/// are told.
#[test]
fn override_of_a_shared_bucket_begins_although_another_claim_is_blocked() {
    let limit = |index, name: &str| {
        Arc::new(Limit {
            index,
            placement: Placement::Shared,
            ..fixtures::limit(
                name,
                &fixtures::terms(Kind::TokenBucket, 10, Micros::from_secs(60)),
            )
        })
    };
    let limits = [limit(0, "blocked"), limit(1, "raised")];
    let clock = Clock::manual(START);
    let limiter = Limiter::new(&limits, Arc::new(Silent::default()), clock, ColdStart::Full);
    let put = |limit: &Arc<Limit>, effect| Override {
        limit: Arc::clone(&limit.name),
        placement: limit.placement,
        bucket: limiter.bucket_hash(limit, b"k").expect("a name"),
        effect,
        since: START,
        until: START.after(Micros::from_secs(60)),
    };
    let raised = Effect::Numbers {
        rate: None,
        burst: Some(70),
    };
    limiter.put_overrides([put(&limits[0], Effect::Block), put(&limits[1], raised)]);
    let claims = [&limits[0], &limits[1]].map(|limit| Claim::new(limit, b"k", 1));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let ago = Micros::from_secs(9);
    for _ in 0..2 {
        let decision = runtime.block_on(limiter.check(&claims, START.after(ago)));
        assert!(matches!(decision, Decision::Deny(_)), "{decision:?}");
        let told = limiter.shared().0.lock().expect("not poisoned").clone();
        let own = |limit: &Arc<Limit>, burst| (Arc::clone(&limit.name), burst, ago);
        assert_eq!(told, [own(&limits[0], 10), own(&limits[1], 70)]);
    }
}
