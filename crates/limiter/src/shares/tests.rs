mod reloads;
mod restarts;
mod upgrades;

use std::collections::HashMap;
use std::sync::Mutex as Locked;

use super::*;
use crate::{Deadline, Decision, Effect, Limiter, Override};
use tollgate_limit::{Draw, Kind, Micros, Standing, Terms, fixtures};
use tollgate_store::StoreError;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A store that does not answer, and what it knows.
#[derive(Default)]
struct Gone {
    known: Locked<HashMap<Vec<u8>, u64>>,
    stand_in: Locked<Option<Weak<dyn StandIn>>>,
    settled: Locked<Vec<Change>>,
    /// Requests are sent, and not answered.
    slow: bool,
    /// The number of gateways that an earlier process knew.
    assumed: AtomicU32,
}

impl Gone {
    fn owed(&self) -> Vec<(Vec<u8>, u64)> {
        let stand_in = self
            .stand_in
            .lock()
            .expect("not poisoned")
            .clone()
            .expect("a limiter has it");
        let owed = stand_in.upgrade().expect("a limiter lives").owed();
        let mut owed: Vec<_> = owed
            .into_iter()
            .map(|owed| (owed.key.to_vec(), owed.units))
            .collect();
        owed.sort();
        owed
    }

    fn shared_by(&self, replicas: u32) {
        let stand_in = self
            .stand_in
            .lock()
            .expect("not poisoned")
            .clone()
            .expect("a limiter has it");
        stand_in
            .upgrade()
            .expect("a limiter lives")
            .shared_by(replicas);
    }
}

impl Store for Gone {
    async fn draw_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        Err(if self.slow {
            StoreError::Timeout
        } else {
            StoreError::Unavailable("gone".to_owned())
        })
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        self.settled
            .lock()
            .expect("not poisoned")
            .extend(settlements.iter().map(|settlement| settlement.change));
    }

    async fn peek_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        Err(StoreError::Timeout)
    }

    fn replicas(&self) -> u32 {
        2
    }

    fn assume_replicas(&self, replicas: u32) {
        self.assumed.store(replicas, Ordering::Relaxed);
    }

    fn at_most(&self, claim: &Claim<'_>) -> Option<u64> {
        self.known
            .lock()
            .expect("not poisoned")
            .get(claim.key)
            .copied()
    }

    fn bucket_hash(&self, _: &Limit, _: &[u8]) -> Option<u128> {
        Some(1)
    }

    fn substitute(&self, stand_in: Weak<dyn StandIn>) {
        *self.stand_in.lock().expect("not poisoned") = Some(stand_in);
    }
}

/// 40 a second.
fn forty() -> Arc<Limit> {
    let terms = Terms {
        burst: Some(40),
        ..fixtures::terms(Kind::TokenBucket, 40, Micros::from_secs(1))
    };
    let limit = fixtures::limit("l", &terms);
    Arc::new(Limit {
        placement: Placement::Shared,
        when_down: WhenDown::LocalShare,
        ..limit
    })
}

fn limiter(store: Gone) -> (Limiter<Gone>, Clock, Arc<Limit>) {
    let (clock, limit) = (Clock::manual(START), forty());
    let limiter = Limiter::new(
        &[Arc::clone(&limit)],
        Arc::new(store),
        clock.clone(),
        ColdStart::Full,
    );
    (limiter, clock, limit)
}

/// Asks until refused; how many were granted.
fn drain(limiter: &Limiter<Gone>, limit: &Limit, key: &[u8]) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let claim = [Claim::new(limit, key, 1)];
    let granted = |_: &u64| {
        let deadline = Deadline::default();
        let deciding = limiter.decide(&claim, limiter.local().clock().now());
        match runtime.block_on(deciding.finish(&deadline)) {
            Decision::Allow(mut permit) => {
                permit.forwarded();
                true
            }
            _ => false,
        }
    };
    (0..).take_while(granted).count() as u64
}

#[test]
fn share_begins_with_at_most_its_part_of_the_store() {
    let (limiter, clock, limit) = limiter(Gone::default());
    let known = &limiter.shared().known;
    assert_eq!(drain(&limiter, &limit, b"unknown"), 20, "it may be full");
    known
        .lock()
        .expect("not poisoned")
        .extend([(b"empty".to_vec(), 0), (b"some".to_vec(), 13)]);
    assert_eq!(
        (
            drain(&limiter, &limit, b"empty"),
            drain(&limiter, &limit, b"some")
        ),
        (0, 6)
    );
    // The rate, as long as the outage goes on; what the store has at most grows alike.
    clock.advance(Micros(500_000));
    known
        .lock()
        .expect("not poisoned")
        .extend([(b"empty".to_vec(), 20), (b"some".to_vec(), 33)]);
    assert_eq!(
        (
            drain(&limiter, &limit, b"empty"),
            drain(&limiter, &limit, b"some")
        ),
        (10, 10)
    );
}

#[test]
fn share_of_places_is_that_of_their_override() {
    let terms = fixtures::terms(Kind::InFlight, 100, Micros::ZERO);
    let limit = Arc::new(Limit {
        placement: Placement::Shared,
        ..fixtures::limit("jobs", &terms)
    });
    let limiter = Limiter::new(
        &[Arc::clone(&limit)],
        Arc::new(Gone::default()),
        Clock::manual(START),
        ColdStart::Full,
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let (claim, deadline) = ([Claim::new(&limit, b"k", 1)], Deadline::default());
    let take = || {
        let deciding = limiter.decide(&claim, START);
        match runtime.block_on(deciding.finish(&deadline)) {
            Decision::Allow(permit) => Some(permit),
            _ => None,
        }
    };
    for (places, share) in [(1, 1), (10, 5), (100, 50)] {
        limiter.put_overrides([Override {
            limit: Arc::clone(&limit.name),
            placement: limit.placement,
            bucket: limiter.bucket_hash(&limit, b"k").expect("a name"),
            effect: Effect::Places(places),
            since: START,
            until: START.after(Micros::from_secs(60)),
        }]);
        let held: Vec<_> = std::iter::from_fn(take).take(200).collect();
        assert_eq!(held.len(), share, "of {places}");
    }
}

#[test]
fn share_grants_are_owed_once_and_no_more_than_the_share_is_missing() {
    let (limiter, clock, limit) = limiter(Gone::default());
    let store = limiter.shared();
    for _ in 0..4 {
        clock.advance(Micros(500_000));
        drain(&limiter, &limit, b"busy");
    }
    drain(&limiter, &limit, b"early");
    clock.advance(Micros(900_000));
    assert_eq!(drain(&limiter, &limit, b"late"), 20);
    // (18 have come back to those that were empty.)
    let owed = [
        (b"busy".to_vec(), 2),
        (b"early".to_vec(), 2),
        (b"late".to_vec(), 20),
    ];
    assert_eq!(store.owed(), owed);
    assert_eq!(store.owed(), []);
    // Another outage: what was owed before is not owed again.
    assert_eq!(drain(&limiter, &limit, b"busy"), 18);
    assert_eq!(store.owed(), [(b"busy".to_vec(), 18)]);
}

#[test]
fn share_grants_of_requests_that_were_sent_are_not_owed() {
    let (limiter, _, limit) = limiter(Gone {
        slow: true,
        ..Gone::default()
    });
    assert_eq!(drain(&limiter, &limit, b"k"), 20);
    assert_eq!(limiter.shared().owed(), []);
}

#[test]
fn share_grants_after_a_peek_without_a_response_are_owed() {
    let (limiter, _, limit) = limiter(Gone::default());
    let claim = [Claim::new(&limit, b"k", 1)];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let deadline = Deadline::default();
    let looked = runtime.block_on(limiter.look(&claim, START, &deadline));
    assert!(looked.is_ok(), "the store answers nothing");
    let decision = runtime.block_on(limiter.decide(&claim, START).finish(&deadline));
    let Decision::Allow(mut permit) = decision else {
        panic!("not allowed: {decision:?}")
    };
    permit.forwarded();
    // A draw that got no answer may have charged; a look has not.
    assert_eq!(limiter.shared().owed(), [(b"k".to_vec(), 1)]);
}

#[test]
fn share_grants_are_owed_after_a_reload_too_and_not_to_another_store() {
    let (limiter, _, limit) = limiter(Gone::default());
    drain(&limiter, &limit, b"k");
    let (next, _) = limiter.next(&[Arc::clone(&limit)], Arc::clone(limiter.shared()));
    assert_eq!(drain(&next, &limit, b"k"), 0);
    let (other, _) = next.next(&[Arc::clone(&limit)], Arc::new(Gone::default()));
    assert_eq!(other.shared().owed(), []);
    assert_eq!(next.shared().owed(), [(b"k".to_vec(), 20)]);
}

#[test]
fn share_grants_beyond_the_room_for_debts_go_to_the_queue_of_the_store() {
    let (limiter, _, limit) = limiter(Gone::default());
    let shares = &limiter.generation.shares;
    for key in 0..100_000_u32 {
        shares.owe(&limit, &key.to_le_bytes(), 1, &**limiter.shared());
    }
    let queued = limiter.shared().settled.lock().expect("not poisoned").len();
    assert_eq!(queued, 100_000 - super::super::debts::DEBTS_MAX);
}

#[test]
fn share_tables_are_divided_before_an_outage_and_never_by_a_request() {
    let (limiter, _, limit) = limiter(Gone::default());
    let shares = &limiter.generation.shares;
    // Not divided yet, though there are more gateways: a request takes what is there.
    shares.replicas.store(4, Ordering::Release);
    let before = shares.divided.load_full();
    assert_eq!(drain(&limiter, &limit, b"k"), 20);
    assert!(Arc::ptr_eq(&before, &shares.divided.load()));
    shares.replicas.store(2, Ordering::Release);
    // Told by a heartbeat.
    limiter.shared().shared_by(4);
    let mut looks = 0;
    while shares.divided.load().replicas != 4 {
        looks += 1;
        assert!(looks < 100_000_000, "divided by another thread");
        std::thread::yield_now();
    }
    let divided = shares.divided.load_full();
    assert_eq!(
        (
            drain(&limiter, &limit, b"k"),
            drain(&limiter, &limit, b"other")
        ),
        (0, 10)
    );
    assert!(Arc::ptr_eq(&divided, &shares.divided.load()));
}

#[test]
fn shares_whose_buckets_went_to_the_next_policy_are_not_divided() {
    let (limiter, _, limit) = limiter(Gone::default());
    assert_eq!(drain(&limiter, &limit, b"k"), 20);
    let (next, _) = limiter.next(&[Arc::clone(&limit)], Arc::clone(limiter.shared()));
    // A thread that was started before comes late.
    let old = &limiter.generation.shares;
    old.replicas.store(1, Ordering::Release);
    old.divide();
    assert_eq!(
        (drain(&limiter, &limit, b"k"), drain(&next, &limit, b"k")),
        (0, 0)
    );
    assert_eq!(
        (
            drain(&limiter, &limit, b"other"),
            drain(&next, &limit, b"other")
        ),
        (20, 0)
    );
}

#[test]
fn share_grants_that_could_not_be_charged_are_owed_again_and_bounded_again() {
    let (limiter, clock, limit) = limiter(Gone::default());
    assert_eq!(drain(&limiter, &limit, b"k"), 20);
    let shares = &limiter.generation.shares;
    let owed = shares.owed();
    assert!(shares.owe_again(owed).is_empty());
    clock.advance(Micros(500_000));
    assert_eq!(limiter.shared().owed(), [(b"k".to_vec(), 10)]);
}
