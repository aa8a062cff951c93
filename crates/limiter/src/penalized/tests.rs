use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::stored::STORED_WITHIN;
use super::*;
use crate::Limiter;
use tollgate_limit::Settlement;
use tollgate_limit::{Draw, Standing, WhenDown, fixtures};
use tollgate_store::StoreError;
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const BLOCK: Micros = Micros::from_secs(600);
const PENALTY: Penalty = Penalty {
    refusals: 3,
    span: Micros::from_secs(60),
    block: BLOCK,
};

/// A store that gateways share, and that may be away.
#[derive(Debug)]
struct Server {
    store: LocalStore,
    away: AtomicBool,
    asked: AtomicU32,
    /// So many settlements are lost.
    loses: AtomicU32,
}

impl Server {
    fn draws(&self) -> Result<&LocalStore, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.away.load(Ordering::Relaxed) {
            true => Err(StoreError::Unavailable("away".to_owned())),
            false => Ok(&self.store),
        }
    }
}

impl Store for Server {
    async fn draw_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        self.draws()?.draw_until(claims, deadline).await
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        let less = |left: u32| left.checked_sub(1);
        let order = Ordering::Relaxed;
        if self.loses.fetch_update(order, order, less).is_err() {
            self.store.settle(settlements);
        }
    }

    async fn peek_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        self.draws()?.peek_until(claims, deadline).await
    }
}

/// One an hour, and a penalty.
fn limit(index: usize, name: &str, placement: Placement) -> Limit {
    Limit {
        index,
        placement,
        when_down: WhenDown::LocalShare,
        penalty: Some(PENALTY),
        ..fixtures::limit(
            name,
            &fixtures::terms(tollgate_limit::Kind::TokenBucket, 1, Micros::from_secs(60)),
        )
    }
}

struct Fleet {
    clock: Clock,
    limit: Arc<Limit>,
    server: Arc<Server>,
    gateways: [Limiter<Server>; 2],
    runtime: tokio::runtime::Runtime,
}

impl Fleet {
    fn of(placement: Placement) -> Self {
        let limit = Arc::new(limit(0, "each", placement));
        let limits = [Arc::clone(&limit)];
        let clock = Clock::manual(START);
        let own = limits.iter().cloned();
        let buckets = buckets(&limits).into_iter().flatten().map(Arc::new);
        let stored: Vec<Arc<Limit>> = own.chain(buckets).collect();
        let server = Arc::new(Server {
            store: LocalStore::new(&stored, clock.clone(), ColdStart::Full),
            away: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            loses: AtomicU32::new(0),
        });
        let gateway = || Limiter::new(&limits, Arc::clone(&server), clock.clone(), ColdStart::Full);
        Self {
            gateways: [gateway(), gateway()],
            limit,
            server,
            clock,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime"),
        }
    }

    fn decide(&self, gateway: usize, key: &[u8]) -> Result<(), Denied> {
        let claims = [Claim::new(&self.limit, key, 1)];
        let now = self.clock.now();
        match self
            .runtime
            .block_on(self.gateways[gateway].check(&claims, now))
        {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(denied) => Err(denied),
            Decision::Unavailable(why) => panic!("{why:?}"),
        }
    }

    fn denied(&self, gateway: usize, key: &[u8]) -> Denied {
        self.decide(gateway, key).expect_err("a refusal")
    }

    /// Takes the unit, and the refusals up to the one that blocks.
    fn provoke(&self, gateway: usize, key: &[u8]) -> Denied {
        assert!(self.decide(gateway, key).is_ok());
        for _ in 0..2 {
            assert!(!self.denied(gateway, key).is_penalty());
        }
        self.denied(gateway, key)
    }
}

#[test]
fn penalty_blocks_a_key_that_is_refused_too_often_until_its_end() {
    for placement in [Placement::Local, Placement::Shared] {
        let fleet = Fleet::of(placement);
        let blocked = fleet.provoke(0, b"bad");
        assert!(blocked.is_penalty() && blocked.is_blocked());
        assert_eq!(blocked.retry_after(), Some(BLOCK), "{placement:?}");
        assert!(blocked.is_refused_by(0));
        assert!(fleet.decide(0, b"good").is_ok(), "another key");
        // Requests during the block neither shorten nor prolong it, though the bucket could pay.
        for _ in 0..599 {
            fleet.clock.advance(Micros::from_secs(1));
            assert!(fleet.denied(0, b"bad").is_penalty());
        }
        let left = fleet.denied(0, b"bad").retry_after();
        assert_eq!(left, Some(Micros::from_secs(1)));
        fleet.clock.advance(Micros(999_999));
        assert_eq!(fleet.denied(0, b"bad").retry_after(), Some(Micros(1)));
        fleet.clock.advance(Micros(1));
        // It is counted from the beginning.
        let again = fleet.provoke(0, b"bad");
        assert_eq!(again.retry_after(), Some(BLOCK), "{placement:?}");
        let told = fleet.gateways[0].take_penalties();
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0].key.as_slice(), b"bad");
        assert_eq!(told[0].until, START.after(BLOCK));
        assert_eq!(fleet.gateways[0].penalty_counts().imposed, 2);
    }
}

#[test]
fn penalty_of_one_gateway_is_obeyed_by_all_of_its_store() {
    let fleet = Fleet::of(Placement::Shared);
    fleet.provoke(0, b"bad");
    fleet.clock.advance(Micros::from_secs(100));
    let denied = fleet.denied(1, b"bad");
    assert!(denied.is_penalty());
    assert_eq!(denied.retry_after(), Some(Micros::from_secs(500)));
    assert!(fleet.gateways[1].take_penalties().is_empty(), "told once");
    // What it knows saves it from asking, for a second.
    let asked = fleet.server.asked.load(Ordering::Relaxed);
    fleet.clock.advance(KNOWN_FOR);
    assert!(fleet.denied(1, b"bad").is_penalty());
    assert!(fleet.denied(1, b"bad").is_penalty());
    assert_eq!(fleet.server.asked.load(Ordering::Relaxed), asked + 1);
    // Lifted by the other gateway.
    fleet.gateways[0].lift_penalty(&fleet.limit, b"bad");
    assert!(fleet.decide(0, b"bad").is_ok());
    assert!(fleet.denied(1, b"bad").is_penalty(), "not told yet");
    fleet.gateways[1].ask_again();
    assert!(!fleet.denied(1, b"bad").is_penalty());
}

#[test]
fn penalty_stays_in_force_when_the_store_fails_after_another_one_was_lifted() {
    let fleet = Fleet::of(Placement::Shared);
    fleet.provoke(0, b"bad");
    fleet.gateways[0].ask_again();
    fleet.server.away.store(true, Ordering::Relaxed);
    assert!(fleet.denied(0, b"bad").is_penalty());
    fleet.server.away.store(false, Ordering::Relaxed);
    fleet.clock.advance(KNOWN_FOR);
    assert!(fleet.denied(0, b"bad").is_penalty());
}

#[test]
fn penalty_that_the_store_did_not_take_is_stored_later() {
    // One attempt of two is lost; both; both and the one of the next request.
    for lost in 1..=3 {
        let fleet = Fleet::of(Placement::Shared);
        fleet.server.loses.store(lost, Ordering::Relaxed);
        assert_eq!(fleet.provoke(0, b"bad").retry_after(), Some(BLOCK));
        let is_obeyed = || fleet.denied(1, b"bad").is_penalty();
        assert_eq!(is_obeyed(), lost == 1, "{lost}");
        for _ in 1..lost {
            fleet.clock.advance(KNOWN_FOR);
            assert!(fleet.denied(0, b"bad").is_penalty(), "{lost}");
        }
        assert!(is_obeyed(), "{lost}");
        // Lifted as any other.
        fleet.clock.advance(KNOWN_FOR);
        assert!(fleet.denied(0, b"bad").is_penalty(), "{lost}");
        fleet.gateways[1].lift_penalty(&fleet.limit, b"bad");
        fleet.clock.advance(KNOWN_FOR);
        assert!(fleet.decide(0, b"bad").is_ok() || !fleet.denied(0, b"bad").is_penalty());
    }
}

#[test]
fn penalty_that_the_store_never_takes_stays_on_its_gateway_until_its_end() {
    let fleet = Fleet::of(Placement::Shared);
    fleet.server.loses.store(u32::MAX, Ordering::Relaxed);
    fleet.provoke(0, b"bad");
    for _ in 0..STORED_WITHIN.0 / KNOWN_FOR.0 {
        fleet.clock.advance(KNOWN_FOR);
        assert!(fleet.denied(0, b"bad").is_penalty());
    }
    // Stored so late, it would end too late.
    fleet.server.loses.store(0, Ordering::Relaxed);
    fleet.clock.advance(Micros(BLOCK.0 - STORED_WITHIN.0 - 1));
    assert!(fleet.denied(0, b"bad").is_penalty());
    fleet.clock.advance(Micros(1));
    assert!(fleet.decide(0, b"bad").is_ok());
}

#[test]
fn penalty_is_not_for_refusals_without_the_store_and_outlasts_an_outage() {
    let fleet = Fleet::of(Placement::Shared);
    fleet.provoke(0, b"bad");
    fleet.server.away.store(true, Ordering::Relaxed);
    assert!(fleet.decide(0, b"other").is_ok());
    for _ in 0..10 {
        assert!(!fleet.denied(0, b"other").is_penalty());
    }
    fleet.clock.advance(Micros::from_secs(599));
    assert!(fleet.denied(0, b"bad").is_penalty());
    fleet.clock.advance(Micros::from_secs(1));
    assert!(fleet.decide(0, b"bad").is_ok());
}

#[test]
fn penalty_is_lifted_by_an_override_without_a_limit() {
    let fleet = Fleet::of(Placement::Local);
    fleet.provoke(0, b"bad");
    let gateway = &fleet.gateways[0];
    let bucket = gateway.bucket_hash(&fleet.limit, b"bad").expect("a name");
    gateway.put_overrides([super::super::Override {
        limit: Arc::clone(&fleet.limit.name),
        placement: Placement::Local,
        bucket,
        effect: Effect::Unlimited,
        since: START,
        until: START.after(Micros::from_secs(10)),
    }]);
    assert!(fleet.decide(0, b"bad").is_ok());
    gateway.put_overrides([]);
    assert!(fleet.denied(0, b"bad").is_penalty());
    gateway.lift_penalty(&fleet.limit, b"bad");
    assert!(!fleet.denied(0, b"bad").is_penalty());
}

#[test]
fn penalty_for_requests_that_never_fit_says_that_they_never_do() {
    let fleet = Fleet::of(Placement::Local);
    let claims = [Claim::new(&fleet.limit, b"bad", 2)];
    let check = || {
        let decided = fleet.gateways[0].check(&claims, fleet.clock.now());
        match fleet.runtime.block_on(decided) {
            Decision::Deny(denied) => denied,
            other => panic!("{other:?}"),
        }
    };
    // More than the bucket can ever grant: each refusal says so, also the one that blocks the key.
    for _ in 0..3 {
        assert_eq!(check().retry_after(), None);
    }
    assert!(check().is_penalty());
}
