use std::sync::atomic::AtomicBool;

use super::*;
use crate::{Decision, Denied, Effect, Limiter, Override};
use tollgate_limit::{Draw, Kind, Micros, Settlement, Standing, WhenDown, fixtures};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore};
use tollgate_store::{Deadline, Store, StoreError};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const BLOCK: Micros = Micros::from_secs(600);
const PENALTY: Penalty = Penalty {
    refusals: 3,
    span: Micros::from_secs(60),
    block: BLOCK,
};

fn at(seconds: u64) -> Timestamp {
    START.after(Micros::from_secs(seconds))
}

/// A table, and the keys of one of its sets.
struct OneSet {
    limit: Limit,
    penalties: Penalties,
    keys: Vec<[u8; 4]>,
}

impl OneSet {
    fn new() -> Self {
        let penalties = Penalties::new(HashKey::new(b"a secret"));
        let limit = fixtures::per_minute("each", 1, 1);
        let set_of = |key: &[u8; 4]| place(penalties.names.bucket(&limit, key));
        let first = 0_u32.to_le_bytes();
        let keys = (0..u32::MAX).map(u32::to_le_bytes);
        let keys = keys.filter(|key| set_of(key) == set_of(&first)).take(12);
        Self {
            keys: keys.collect(),
            limit,
            penalties,
        }
    }

    /// A refusal of a key, whose bucket needs no longer.
    fn refused(&self, key: usize, seconds: u64) -> Option<Block> {
        let claim = Claim::new(&self.limit, &self.keys[key], 1);
        let now = at(seconds);
        self.penalties.refused(&claim, PENALTY, now, now)
    }

    fn block(&self, key: usize, seconds: u64) -> Option<Block> {
        let key = &self.keys[key];
        self.penalties.block(&self.limit, key, at(seconds))
    }

    fn provoke(&self, key: usize, seconds: u64) -> Block {
        assert_eq!(self.refused(key, seconds), None);
        assert_eq!(self.refused(key, seconds), None);
        self.refused(key, seconds).expect("the third")
    }
}

#[test]
fn refusals_are_counted_within_a_span_from_the_first() {
    let set = OneSet::new();
    for (key, seconds) in [(0, 0), (0, 59), (0, 60), (0, 61), (1, 62)] {
        // The span is over at 60: the refusals of that moment begin another one.
        assert_eq!(set.refused(key, seconds), None, "{key} at {seconds}");
    }
    assert!(set.refused(0, 119).is_some());
}

#[test]
fn flood_of_keys_displaces_no_key_with_more_refusals_and_no_block() {
    let set = OneSet::new();
    let block = set.provoke(0, 0);
    set.refused(1, 0);
    set.refused(1, 0);
    for key in (2..12).cycle().take(1_000) {
        set.refused(key, 1);
    }
    assert_eq!(set.block(0, 1), Some(block));
    assert!(set.refused(1, 1).is_some(), "its third");
    assert_eq!(set.penalties.uncounted.load(Ordering::Relaxed), 0);
}

#[test]
fn table_that_is_full_of_blocks_takes_no_new_one_and_counts_the_refusals() {
    let set = OneSet::new();
    for key in 0..WAYS {
        set.provoke(key, 0);
    }
    for _ in 0..5 {
        assert_eq!(set.refused(WAYS, 1), None);
    }
    assert_eq!(set.penalties.uncounted.load(Ordering::Relaxed), 5);
    assert!((0..WAYS).all(|key| set.block(key, 1).is_some()));
    // When they have ended there is room again.
    set.provoke(WAYS, 600);
    assert_eq!(set.penalties.uncounted.load(Ordering::Relaxed), 5);
}

#[test]
fn imposed_blocks_wait_in_a_bounded_list() {
    let gateway = Gateway::of(Placement::Local);
    for key in 0..NEWS_MAX + 3 {
        gateway.provoke(&key.to_le_bytes());
    }
    assert_eq!(gateway.limiter.take_penalties().len(), NEWS_MAX);
    let counts = gateway.limiter.penalty_counts();
    assert_eq!((counts.imposed, counts.untold), (NEWS_MAX as u64 + 3, 3));
    assert!(gateway.limiter.take_penalties().is_empty());
}

/// A store that may be away.
#[derive(Debug)]
struct Server {
    store: LocalStore,
    away: AtomicBool,
}

impl Server {
    fn draws(&self) -> Result<&LocalStore, StoreError> {
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
        self.store.settle(settlements);
    }

    async fn peek_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        self.draws()?.peek_until(claims, deadline).await
    }
}

struct Gateway {
    clock: Clock,
    limit: Arc<Limit>,
    server: Arc<Server>,
    limiter: Limiter<Server>,
    runtime: tokio::runtime::Runtime,
}

impl Gateway {
    /// One request a minute, and a penalty.
    fn of(placement: Placement) -> Self {
        Self::with(placement, Micros::from_secs(60), BLOCK)
    }

    fn with(placement: Placement, period: Micros, block: Micros) -> Self {
        let limit = Arc::new(Limit {
            placement,
            when_down: WhenDown::LocalShare,
            penalty: Some(Penalty { block, ..PENALTY }),
            ..fixtures::limit("each", &fixtures::terms(Kind::TokenBucket, 1, period))
        });
        let limits = [Arc::clone(&limit)];
        let clock = Clock::manual(START);
        let server = Arc::new(Server {
            store: LocalStore::new(&limits, clock.clone(), ColdStart::Full),
            away: AtomicBool::new(false),
        });
        let shared = Arc::clone(&server);
        Self {
            limiter: Limiter::new(&limits, shared, clock.clone(), ColdStart::Full),
            limit,
            server,
            clock,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime"),
        }
    }

    /// Puts the limit with another penalty in force.
    fn reload(&mut self, penalty: Option<Penalty>) {
        self.limit = Arc::new(Limit {
            penalty,
            ..Limit::clone(&self.limit)
        });
        let limits = [Arc::clone(&self.limit)];
        self.limiter = self.limiter.next(&limits, Arc::clone(&self.server)).0;
    }

    fn decide(&self, key: &[u8], cost: u64) -> Result<(), Denied> {
        let claims = [Claim::new(&self.limit, key, cost)];
        let deadline = Deadline::default();
        let decided = self
            .limiter
            .decide(&claims, self.clock.now())
            .finish(&deadline);
        match self.runtime.block_on(decided) {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(denied) => Err(denied),
            Decision::Unavailable(why) => panic!("{why:?}"),
        }
    }

    fn denied(&self, key: &[u8]) -> Denied {
        self.decide(key, 1).expect_err("a refusal")
    }

    /// Takes the unit, and the refusals up to the one that blocks.
    fn provoke(&self, key: &[u8]) -> Denied {
        assert!(self.decide(key, 1).is_ok());
        for _ in 0..2 {
            assert!(!self.denied(key).is_penalty());
        }
        self.denied(key)
    }

    fn put(&self, effect: Effect, seconds: u64) {
        let bucket = self.limiter.bucket_hash(&self.limit, b"bad");
        self.limiter.put_overrides([Override {
            limit: Arc::clone(&self.limit.name),
            placement: self.limit.placement,
            bucket: bucket.expect("a name"),
            effect,
            since: START,
            until: at(seconds),
        }]);
    }
}

#[test]
fn penalty_blocks_a_key_that_is_refused_too_often_until_its_end() {
    for placement in [Placement::Local, Placement::Shared] {
        let gateway = Gateway::of(placement);
        let blocked = gateway.provoke(b"bad");
        assert!(blocked.is_penalty() && blocked.refused().eq([0]));
        assert_eq!(blocked.retry_after(), Some(BLOCK), "{placement:?}");
        assert!(gateway.decide(b"good", 1).is_ok(), "another key");
        // Requests during the block neither shorten nor prolong it, though the bucket could pay.
        for _ in 0..599 {
            gateway.clock.advance(Micros::from_secs(1));
            assert!(gateway.denied(b"bad").is_penalty());
        }
        gateway.clock.advance(Micros(999_999));
        assert_eq!(gateway.denied(b"bad").retry_after(), Some(Micros(1)));
        gateway.clock.advance(Micros(1));
        // It is counted from the beginning.
        let again = gateway.provoke(b"bad");
        assert_eq!(again.retry_after(), Some(BLOCK), "{placement:?}");
        let imposed = gateway.limiter.take_penalties();
        assert_eq!(imposed.len(), 2, "{imposed:?}");
        assert_eq!(imposed[0].key.as_slice(), b"bad");
        assert_eq!(imposed[0].until, START.after(BLOCK));
        assert_eq!(gateway.limiter.penalty_counts().imposed, 2);
    }
}

/// A short block over a bucket that needs a day: a lone caller that waits as long as each refusal
/// says is admitted, and both ends are known.
#[test]
fn penalty_over_a_bucket_that_needs_longer_says_the_later_wait_and_its_own_end() {
    let day = Micros::from_secs(86_400);
    for placement in [Placement::Local, Placement::Shared] {
        let gateway = Gateway::with(placement, day, Micros::from_secs(3));
        let said = gateway.provoke(b"bad");
        assert_eq!(said.retry_after(), Some(day), "{placement:?}");
        let block = said.outcomes()[0].block().expect("a block");
        assert_eq!((block.until, block.admits), (at(3), START.after(day)));
        gateway.clock.advance(Micros::from_secs(2));
        let later = gateway.denied(b"bad");
        assert_eq!(later.outcomes()[0].block(), Some(block));
        assert_eq!(later.retry_after(), Some(Micros(day.0 - 2_000_000)));
        gateway.clock.advance(Micros::from_secs(1));
        let after = gateway.denied(b"bad");
        assert!(!after.is_blocked(), "the bucket refuses it now");
        let wait = after.retry_after().expect("a wait");
        gateway.clock.advance(Micros(wait.0 - 1));
        assert_eq!(gateway.denied(b"bad").retry_after(), Some(Micros(1)));
        gateway.clock.advance(Micros(1));
        assert!(gateway.decide(b"bad", 1).is_ok(), "{placement:?}");
    }
}

#[test]
fn penalty_ends_when_it_was_said_to_end_whatever_a_later_file_says() {
    for placement in [Placement::Local, Placement::Shared] {
        for seconds in [Some(3), Some(6_000), None] {
            let mut gateway = Gateway::of(placement);
            gateway.provoke(b"bad");
            gateway.reload(seconds.map(|seconds| Penalty {
                block: Micros::from_secs(seconds),
                ..PENALTY
            }));
            gateway.clock.advance(Micros(BLOCK.0 - 1));
            assert_eq!(gateway.denied(b"bad").retry_after(), Some(Micros(1)));
            gateway.clock.advance(Micros(1));
            assert!(gateway.decide(b"bad", 1).is_ok(), "{seconds:?}");
        }
    }
}

#[test]
fn penalty_is_not_for_refusals_without_the_store_and_outlasts_an_outage() {
    let gateway = Gateway::of(Placement::Shared);
    gateway.provoke(b"bad");
    gateway.server.away.store(true, Ordering::Relaxed);
    assert!(gateway.decide(b"other", 1).is_ok());
    for _ in 0..10 {
        assert!(!gateway.denied(b"other").is_penalty());
    }
    gateway.clock.advance(Micros::from_secs(599));
    assert!(gateway.denied(b"bad").is_penalty());
    gateway.clock.advance(Micros::from_secs(1));
    assert!(gateway.decide(b"bad", 1).is_ok());
}

#[test]
fn penalty_is_lifted_by_an_override_without_a_limit() {
    let gateway = Gateway::of(Placement::Local);
    gateway.provoke(b"bad");
    gateway.put(Effect::Unlimited, 10);
    assert!(gateway.decide(b"bad", 1).is_ok());
    gateway.limiter.put_overrides([]);
    assert!(gateway.denied(b"bad").is_penalty());
    assert!(gateway.limiter.lift_penalty(&gateway.limit, b"bad"));
    assert!(!gateway.denied(b"bad").is_penalty());
    assert!(!gateway.limiter.lift_penalty(&gateway.limit, b"bad"));
}

/// Of an operator's block and a penalty, the one that ends later says the wait.
#[test]
fn penalty_and_an_operators_block_refuse_until_the_later_end() {
    let gateway = Gateway::of(Placement::Local);
    gateway.provoke(b"bad");
    for (seconds, later) in [(300, 600), (900, 900)] {
        gateway.put(Effect::Block, seconds);
        let denied = gateway.denied(b"bad");
        assert_eq!(denied.retry_after(), Some(Micros::from_secs(later)));
        assert_eq!(denied.is_penalty(), later == 600);
    }
}

#[test]
fn penalty_for_requests_that_never_fit_says_that_they_never_do() {
    let gateway = Gateway::of(Placement::Local);
    let check = || gateway.decide(b"bad", 2).expect_err("a refusal");
    // More than the bucket can ever grant: each refusal says so, also the one that blocks the key.
    for _ in 0..3 {
        assert_eq!(check().retry_after(), None);
    }
    assert!(check().is_penalty());
}

#[test]
fn penalty_and_its_counts_survive_a_restart_until_their_ends() {
    for placement in [Placement::Local, Placement::Shared] {
        let gateway = Gateway::with(placement, Micros::from_secs(3_600), BLOCK);
        let block = gateway.provoke(b"bad").outcomes()[0].block();
        assert!(gateway.decide(b"half", 1).is_ok());
        gateway.denied(b"half");
        gateway.denied(b"half");
        let mut state = std::io::Cursor::new(Vec::new());
        gateway.limiter.save(&mut state).expect("written");
        gateway.clock.advance(Micros::from_secs(1));
        let restart = |state: &std::io::Cursor<Vec<u8>>| {
            let limits = [Arc::clone(&gateway.limit)];
            let (shared, clock) = (Arc::clone(&gateway.server), gateway.clock.clone());
            let restored = Limiter::restored(&limits, shared, clock, state.clone());
            restored.expect("a snapshot").0
        };
        let mut after = Gateway::with(placement, Micros::from_secs(3_600), BLOCK);
        (after.limiter, after.clock) = (restart(&state), gateway.clock.clone());
        assert_eq!(after.denied(b"bad").outcomes()[0].block(), block);
        assert!(after.denied(b"half").is_penalty(), "the third refusal");
        gateway.clock.advance(BLOCK);
        let after = restart(&state);
        assert!(!after.generation.penalties.may_block(gateway.clock.now()));
    }
}
