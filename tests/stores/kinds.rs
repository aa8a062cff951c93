//! A server of any kind of store, for tests that say the same of each.

use tollgate_limit::Micros;
use tollgate_store::RemoteStore;
use tollgate_store::clock::Clock;
use tollgate_store::mysql::MysqlOptions;
use tollgate_store::postgres::PostgresOptions;
use tollgate_store::redis::{Address, RedisOptions};
use tollgate_store::tls::Tls;

use crate::faults::PATIENCE;
use crate::mysql_faults::QUICK;
use crate::servers::{Maria, Postgres, Redis, available};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Redis,
    Postgres,
    Mysql,
}

/// A server of a test's own.
#[derive(Debug)]
pub enum Server {
    Redis(Redis),
    Postgres(Postgres),
    Mysql(Maria),
}

/// What a test may change of a store's options; every kind has these.
#[derive(Debug)]
pub struct Options {
    pub url: String,
    pub answer_within: Micros,
    pub clock: Clock,
    pub pinned: Option<Clock>,
    pub local_refusals: bool,
    /// Whether commits wait for the disk, where that is the gateway's choice (PostgreSQL).
    pub synchronous_commit: bool,
}

impl StoreKind {
    /// A server whose commits wait for no disk. `None`: its program is not installed.
    pub fn start(self) -> Option<Server> {
        self.start_with(&[])
    }

    /// The same, with data that outlive its process.
    pub fn start_durable(self) -> Option<Server> {
        match self {
            Self::Redis => self.start_with(&["--appendonly", "yes"]),
            Self::Postgres | Self::Mysql => self.start(),
        }
    }

    /// The same with settings of its own kind.
    pub fn start_with(self, settings: &[&str]) -> Option<Server> {
        let with = |own: &'static str| [&[own], settings].concat();
        match self {
            Self::Redis => {
                available("redis-server").then(|| Server::Redis(Redis::start_with(settings)))
            }
            Self::Postgres => Postgres::available()
                .then(|| Server::Postgres(Postgres::start_with(&with("fsync=off")))),
            Self::Mysql => {
                Maria::available().then(|| Server::Mysql(Maria::start_with(&with(QUICK))))
            }
        }
    }

    /// Opens a store on a server of this kind.
    pub fn open(self, url: &str, change: impl FnOnce(&mut Options)) -> RemoteStore {
        let mut options = Options {
            url: url.to_owned(),
            // No test is about the deadline unless it says so: the machine may be busy.
            answer_within: Micros::from_secs(10),
            clock: Clock::system(),
            pinned: None,
            local_refusals: true,
            synchronous_commit: true,
        };
        change(&mut options);
        let Options {
            url,
            answer_within,
            clock,
            pinned,
            local_refusals,
            synchronous_commit,
        } = options;
        let key_secret = b"a test's secret".to_vec();
        let store = match self {
            Self::Redis => RedisOptions {
                address: Address::parse(&url).unwrap(),
                answer_within,
                key_secret,
                clock,
                pinned,
                local_refusals,
                long_quotas: false,
            }
            .start(),
            Self::Postgres => PostgresOptions {
                url,
                answer_within,
                key_secret,
                clock,
                pinned,
                local_refusals,
                create: true,
                synchronous_commit,
                tls: Tls::default(),
                long_quotas: false,
            }
            .start(),
            Self::Mysql => MysqlOptions {
                url,
                answer_within,
                key_secret,
                clock,
                pinned,
                local_refusals,
                create: true,
                tls: Tls::default(),
                long_quotas: false,
            }
            .start(),
        };
        store.unwrap()
    }
}

impl Server {
    pub fn kind(&self) -> StoreKind {
        match self {
            Self::Redis(_) => StoreKind::Redis,
            Self::Postgres(_) => StoreKind::Postgres,
            Self::Mysql(_) => StoreKind::Mysql,
        }
    }

    /// What the file calls its kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Postgres(_) => "postgres",
            Self::Mysql(_) => "mysql",
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::Mysql(server) => server.url(),
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port,
            Self::Postgres(server) => server.port,
            Self::Mysql(server) => server.port,
        }
    }

    /// Its address through a proxy on another port.
    pub fn url_through(&self, port: u16) -> String {
        let own = format!(":{}/", self.port());
        self.url().replace(&own, &format!(":{port}/"))
    }

    /// A store on it that has connected.
    pub async fn connect(&self) -> RemoteStore {
        self.connect_with(|_| ()).await
    }

    /// The same with other options.
    pub async fn connect_with(&self, change: impl FnOnce(&mut Options)) -> RemoteStore {
        let store = self.kind().open(&self.url(), change);
        assert!(store.ready(PATIENCE).await, "{:?}", store.health());
        store
    }

    /// Stops it at once, as a crash does.
    pub fn crash(&mut self) {
        match self {
            Self::Redis(server) => server.kill(),
            Self::Postgres(server) => server.crash(),
            Self::Mysql(server) => server.crash(),
        }
    }

    /// Starts it again.
    pub fn run(&mut self) {
        match self {
            Self::Redis(server) => server.run(),
            Self::Postgres(server) => server.run(),
            Self::Mysql(server) => server.run(),
        }
    }

    /// Takes every bucket away.
    pub fn clear(&self) {
        match self {
            Self::Redis(server) => drop(server.ask("FLUSHALL")),
            Self::Postgres(server) => drop(server.psql("postgres", "TRUNCATE tollgate_buckets")),
            Self::Mysql(server) => drop(server.sql("DELETE FROM tollgate_buckets")),
        }
    }
}
