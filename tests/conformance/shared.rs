//! The shared stores, on real servers started here, deciding at a manual clock's time.
//!
//! One server of each kind serves all tests of the process and goes with it; each test keys its buckets by a secret of
//! its own, so that none sees another's.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tollgate_limit::{Claim, Limit, Micros, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::redis::{self, Address};
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteOptions, RemoteStore, Store, mysql, postgres};

use crate::servers::{Galera, Maria, Postgres, Redis, Spanning, available, for_the_process};
use crate::subject::Subject;

/// A kind of server.
pub(crate) trait Server: 'static {
    /// Random traces played.
    const RUNS: u64;

    /// A store that decides at this clock's time; `None`: there is no such server here.
    fn open(clock: Clock, key_secret: Vec<u8>) -> Option<RemoteStore>;
}

/// Options of a store that decides at a clock's time, for this test alone.
fn options(clock: Clock, key_secret: Vec<u8>) -> RemoteOptions {
    RemoteOptions {
        pinned: Some(clock),
        local_refusals: false,
        synchronous_commit: false,
        ..RemoteOptions::new(Micros::from_secs(5), key_secret, Clock::system())
    }
}

/// Redis.
pub(crate) struct OnRedis;

impl Server for OnRedis {
    const RUNS: u64 = 30;

    fn open(clock: Clock, key_secret: Vec<u8>) -> Option<RemoteStore> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let url = URL.get_or_init(|| {
            available("redis-server").then(|| for_the_process(Redis::start, Redis::url))
        });
        let store = redis::start(
            Address::parse(url.as_ref()?).expect("an address"),
            options(clock, key_secret),
        );
        Some(store.expect("a thread"))
    }
}

/// PostgreSQL.
pub(crate) struct OnPostgres;

impl Server for OnPostgres {
    const RUNS: u64 = 10;

    fn open(clock: Clock, key_secret: Vec<u8>) -> Option<RemoteStore> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let start = || Postgres::start_with(&["fsync=off"]);
        let url = URL
            .get_or_init(|| Postgres::available().then(|| for_the_process(start, Postgres::url)));
        let store = postgres::start(url.as_ref()?, &Tls::default(), options(clock, key_secret));
        Some(store.expect("a thread"))
    }
}

/// PostgreSQL whose tables are views: they have no system columns, as in databases that span machines.
pub(crate) struct OnViews;

impl Server for OnViews {
    const RUNS: u64 = 3;

    fn open(clock: Clock, key_secret: Vec<u8>) -> Option<RemoteStore> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let start = || {
            let server = Postgres::start_with(&["fsync=off"]);
            let tables = postgres::spanning_schema_sql().replace("tollgate_", "plain_");
            server.psql("postgres", &tables);
            for table in ["buckets", "gateways", "overrides"] {
                let view = format!("CREATE VIEW tollgate_{table} AS SELECT * FROM plain_{table}");
                server.psql("postgres", &view);
            }
            server
        };
        let url = URL
            .get_or_init(|| Postgres::available().then(|| for_the_process(start, Postgres::url)));
        let store = postgres::start(url.as_ref()?, &Tls::default(), options(clock, key_secret));
        Some(store.expect("a thread"))
    }
}

/// PostgreSQL behind a proxy that refuses and disturbs as databases that span machines do.
pub(crate) struct OnSpanning;

impl Server for OnSpanning {
    const RUNS: u64 = 1;

    fn open(clock: Clock, key_secret: Vec<u8>) -> Option<RemoteStore> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let start = || {
            let server = Postgres::start_with(&["fsync=off"]);
            let proxy = Spanning::to(server.port);
            proxy.disturb(1);
            (server, proxy)
        };
        let url = URL.get_or_init(|| {
            Postgres::available().then(|| for_the_process(start, |(_, proxy)| proxy.url()))
        });
        let store = postgres::start(url.as_ref()?, &Tls::default(), options(clock, key_secret));
        Some(store.expect("a thread"))
    }
}

/// MariaDB.
pub(crate) struct OnMysql;

impl Server for OnMysql {
    const RUNS: u64 = 10;

    fn open(clock: Clock, key_secret: Vec<u8>) -> Option<RemoteStore> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let start = || Maria::start_with(&["innodb-flush-log-at-trx-commit=0"]);
        let url =
            URL.get_or_init(|| Maria::available().then(|| for_the_process(start, Maria::url)));
        let store = mysql::start(url.as_ref()?, &Tls::default(), options(clock, key_secret));
        Some(store.expect("a thread"))
    }
}

/// A Galera node that has joined two others. (All tests use the same one: each node has a mark of its own.)
pub(crate) struct OnGalera;

impl Server for OnGalera {
    const RUNS: u64 = 2;

    fn open(clock: Clock, key_secret: Vec<u8>) -> Option<RemoteStore> {
        static URL: OnceLock<Option<String>> = OnceLock::new();
        let url = URL.get_or_init(|| {
            let url = |cluster: &Galera| cluster.nodes[2].url();
            Galera::available().then(|| for_the_process(Galera::start, url))
        });
        let url = url.as_ref()?;
        let store = mysql::start(url, &Tls::default(), options(clock, key_secret));
        Some(store.expect("a thread"))
    }
}

/// A store on such a server, with its clock.
pub(crate) struct Shared<K> {
    store: RemoteStore,
    clock: Clock,
    limit: Arc<Limit>,
    kind: PhantomData<K>,
}

impl<K: Server> Subject for Shared<K> {
    type Store = RemoteStore;
    const SHARED: bool = true;
    const RUNS: u64 = K::RUNS;

    async fn new(limits: &[Arc<Limit>], now: Timestamp) -> Option<Self> {
        let clock = Clock::manual(now);
        let store = K::open(clock.clone(), fastrand::u128(..).to_le_bytes().to_vec())?;
        assert!(
            store.ready(Duration::from_secs(10)).await,
            "{:?}",
            store.health()
        );
        Some(Self {
            store,
            clock,
            limit: limits[0].clone(),
            kind: PhantomData,
        })
    }

    fn store(&self) -> &RemoteStore {
        &self.store
    }

    fn set_time(&mut self, now: Timestamp) {
        // (By what is left to the end of all numbers it goes back.)
        self.clock.advance(Micros(
            now.as_micros().wrapping_sub(self.clock.now().as_micros()),
        ));
    }

    /// Corrections go before the requests of a call: when a later request is answered they have landed.
    async fn settled(&self) {
        let claim = Claim::new(&self.limit, b"unknown", 0);
        self.store.peek(&[claim]).await.expect("the store answers");
    }
}
