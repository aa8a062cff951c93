//! The shared stores, on real servers started here, deciding at a manual clock's time.
//!
//! One server of each kind serves all tests of the process and goes with it; each test keys its buckets by a secret of
//! its own, so that none sees another's.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::limit::{Claim, Limit, Micros, Timestamp};
use tollgate::store::Store;
use tollgate::store::postgres::{PostgresOptions, PostgresStore};
use tollgate::store::redis::{Address, RedisOptions, RedisStore};

use crate::servers::{Postgres, Redis, available, for_the_process};
use crate::subject::Subject;

/// A store with its clock.
pub(crate) struct Shared<S> {
    store: S,
    clock: Clock,
    limit: Arc<Limit>,
}

impl<S: Store> Shared<S> {
    async fn of(store: S, clock: Clock, limits: &[Arc<Limit>]) -> Self {
        Self { store, clock, limit: limits[0].clone() }
    }

    fn pass_to(&self, now: Timestamp) {
        self.clock.advance(now.since(self.clock.now()));
    }

    /// Corrections go before the requests of a call: when a later request is answered they have landed.
    async fn settle_all(&self) {
        let claim = Claim { limit: &self.limit, key: b"nobody", cost: 0, enforced: true };
        self.store.peek(&[claim]).await.expect("the store answers");
    }
}

impl Subject for Shared<RedisStore> {
    type Store = RedisStore;
    const SHARED: bool = true;
    const RUNS: u64 = 30;

    async fn new(limits: &[Arc<Limit>], now: Timestamp) -> Option<Self> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let url = URL.get_or_init(|| available("redis-server").then(|| for_the_process(Redis::start, Redis::url)));
        let clock = Clock::manual(now);
        let store = RedisStore::start(RedisOptions {
            address: Address::parse(url.as_ref()?).expect("an address"),
            answer_within: Micros::from_secs(5),
            key_secret: fastrand::u128(..).to_le_bytes().to_vec(),
            clock: Clock::system(),
            pinned: Some(clock.clone()),
            local_refusals: false,
        });
        let store = store.expect("a thread");
        assert!(store.ready(Duration::from_secs(10)).await, "{:?}", store.health());
        Some(Self::of(store, clock, limits).await)
    }

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn set_time(&mut self, now: Timestamp) {
        self.pass_to(now);
    }

    async fn settled(&self) {
        self.settle_all().await;
    }
}

impl Subject for Shared<PostgresStore> {
    type Store = PostgresStore;
    const SHARED: bool = true;
    const RUNS: u64 = 10;

    async fn new(limits: &[Arc<Limit>], now: Timestamp) -> Option<Self> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let start = || Postgres::start_with(&["fsync=off"]);
        let url = URL.get_or_init(|| Postgres::available().then(|| for_the_process(start, Postgres::url)));
        let clock = Clock::manual(now);
        let store = PostgresStore::start(PostgresOptions {
            url: url.clone()?,
            answer_within: Micros::from_secs(5),
            key_secret: fastrand::u128(..).to_le_bytes().to_vec(),
            clock: Clock::system(),
            pinned: Some(clock.clone()),
            local_refusals: false,
            create: true,
            synchronous_commit: false,
        });
        let store = store.expect("a thread");
        assert!(store.ready(Duration::from_secs(10)).await, "{:?}", store.health());
        Some(Self::of(store, clock, limits).await)
    }

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    fn set_time(&mut self, now: Timestamp) {
        self.pass_to(now);
    }

    async fn settled(&self) {
        self.settle_all().await;
    }
}
