//! A server of any kind of store, for tests that say the same of each.

use std::time::Duration;

use tollgate_limit::Micros;
use tollgate_store::clock::Clock;
use tollgate_store::redis::{self, Address};
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteOptions, RemoteStore, mysql, postgres};

use crate::faults::{ANSWER_WITHIN, PATIENCE};
use crate::servers::{Maria, Postgres, Redis, available};

/// Commits of MariaDB that wait for no disk: these tests end the server's process, not its machine.
pub const QUICK: &str = "innodb-flush-log-at-trx-commit=2";

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Redis,
    Postgres,
    /// A PostgreSQL whose tables are views, which have no system columns: it is used as a database that
    /// spans machines.
    Views,
    Mysql,
}

/// A server of a test's own.
#[derive(Debug)]
pub enum Server {
    Redis(Redis),
    Postgres(Postgres),
    Views(Postgres),
    Mysql(Maria),
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
            Self::Postgres | Self::Views | Self::Mysql => self.start(),
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
            Self::Views => Postgres::available().then(|| {
                let server = Postgres::start_with(&with("fsync=off"));
                server.psql("postgres", &views());
                Server::Views(server)
            }),
            Self::Mysql => {
                Maria::available().then(|| Server::Mysql(Maria::start_with(&with(QUICK))))
            }
        }
    }

    /// Opens a store on a server of this kind.
    pub fn open(self, url: &str, change: impl FnOnce(&mut RemoteOptions)) -> RemoteStore {
        self.open_encrypted(url, &Tls::default(), change)
    }

    /// The same over TLS.
    pub fn open_encrypted(
        self,
        url: &str,
        tls: &Tls,
        change: impl FnOnce(&mut RemoteOptions),
    ) -> RemoteStore {
        // No test is about the deadline unless it says so: the machine may be busy.
        let within = Micros::from_secs(10);
        let mut options = RemoteOptions::new(within, b"a test's secret", Clock::system());
        change(&mut options);
        let store = match self {
            Self::Redis => {
                let address = Address::parse(url).and_then(|address| address.with_tls(tls));
                redis::start(address.unwrap(), options)
            }
            Self::Postgres | Self::Views => postgres::start(url, tls, options),
            Self::Mysql => mysql::start(url, tls, options),
        };
        store.unwrap()
    }

    /// A store that has connected.
    pub async fn connect(self, url: &str) -> RemoteStore {
        self.connect_with(url, |_| ()).await
    }

    /// The same with other options.
    pub async fn connect_with(
        self,
        url: &str,
        change: impl FnOnce(&mut RemoteOptions),
    ) -> RemoteStore {
        let store = self.open(url, change);
        assert!(store.ready(PATIENCE).await, "{:?}", store.health());
        store
    }

    /// A store whose deadline the test is about; the others must not fail because this machine is busy.
    pub async fn connect_in_haste(self, url: &str) -> RemoteStore {
        let within = match self {
            Self::Redis => ANSWER_WITHIN,
            Self::Postgres | Self::Views | Self::Mysql => Duration::from_millis(100),
        };
        let within = Micros(u64::try_from(within.as_micros()).unwrap());
        self.connect_with(url, |options| options.answer_within = within)
            .await
    }
}

impl Server {
    pub fn kind(&self) -> StoreKind {
        match self {
            Self::Redis(_) => StoreKind::Redis,
            Self::Postgres(_) => StoreKind::Postgres,
            Self::Views(_) => StoreKind::Views,
            Self::Mysql(_) => StoreKind::Mysql,
        }
    }

    /// What the file calls its kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Postgres(_) | Self::Views(_) => "postgres",
            Self::Mysql(_) => "mysql",
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Postgres(server) | Self::Views(server) => server.url(),
            Self::Mysql(server) => server.url(),
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port,
            Self::Postgres(server) | Self::Views(server) => server.port,
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
    pub async fn connect_with(&self, change: impl FnOnce(&mut RemoteOptions)) -> RemoteStore {
        self.kind().connect_with(&self.url(), change).await
    }

    /// The output of statements in an SQL database.
    pub fn sql(&self, statements: &str) -> String {
        match self {
            Self::Redis(_) => panic!("a Redis has no SQL"),
            Self::Postgres(server) => server.psql("postgres", statements),
            Self::Views(server) => server.psql("postgres", &of_tables(statements)),
            Self::Mysql(server) => server.sql(statements),
        }
    }

    /// Signals its process.
    pub fn signal(&self, signal: &str) {
        match self {
            Self::Redis(server) => server.process().signal(signal),
            Self::Postgres(server) | Self::Views(server) => server.signal(signal),
            Self::Mysql(server) => server.process().signal(signal),
        }
    }

    /// Stops it at once, as a crash does.
    pub fn crash(&mut self) {
        match self {
            Self::Redis(server) => server.kill(),
            Self::Postgres(server) | Self::Views(server) => server.crash(),
            Self::Mysql(server) => server.crash(),
        }
    }

    /// Starts it again.
    pub fn run(&mut self) {
        match self {
            Self::Redis(server) => server.run(),
            Self::Postgres(server) | Self::Views(server) => server.run(),
            Self::Mysql(server) => server.run(),
        }
    }

    /// Takes every bucket away.
    pub fn clear(&self) {
        match self {
            Self::Redis(server) => drop(server.ask("FLUSHALL")),
            Self::Postgres(_) | Self::Views(_) => drop(self.sql("TRUNCATE tollgate_buckets")),
            Self::Mysql(_) => drop(self.sql("DELETE FROM tollgate_buckets")),
        }
    }
}

/// The statements about the tables behind the views.
pub fn of_tables(statements: &str) -> String {
    TABLES.iter().fold(statements.to_owned(), |text, table| {
        text.replace(&format!("tollgate_{table}"), &format!("plain_{table}"))
    })
}

const TABLES: [&str; 3] = ["buckets", "gateways", "overrides"];

/// Makes the tables by other names, and views in their place.
fn views() -> String {
    let made = of_tables(postgres::spanning_schema_sql());
    let views =
        TABLES.map(|table| format!("CREATE VIEW tollgate_{table} AS SELECT * FROM plain_{table};"));
    made + &views.concat()
}
