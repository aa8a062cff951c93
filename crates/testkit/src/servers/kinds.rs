//! A server of any kind of store, for tests that say the same of each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex};

use tollgate_limit::Micros;
use tollgate_store::clock::Clock;
use tollgate_store::redis::{self, Address};
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteOptions, RemoteStore, mysql, postgres};

use super::{Galera, Maria, PATIENCE, Postgres, Redis, Spanning, available, wait_until};

/// Commits of MariaDB that wait for no disk: these tests end the server's process, not its machine.
pub const QUICK: &str = "innodb-flush-log-at-trx-commit=2";

/// A kind of store, or a way to use one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Redis,
    Postgres,
    Mysql,
    /// A PostgreSQL whose tables are views, which have no system columns: it is used as a database that
    /// spans machines.
    Views,
    /// The same in a database whose isolation is SERIALIZABLE.
    Serializable,
    /// A PostgreSQL behind a proxy that refuses what databases that span machines refuse, and has one in a
    /// hundred statements meet a conflict.
    Proxy,
    /// Three Galera nodes. One cluster serves the process: each server is a database of its own on it, and
    /// there is one at a time.
    Galera,
}

/// A server of a test's own.
#[derive(Debug)]
pub struct Server {
    kind: StoreKind,
    program: Program,
    proxy: Option<Spanning>,
}

#[derive(Debug)]
enum Program {
    Redis(Redis),
    Postgres(Postgres),
    Maria(Maria),
    Galera(Turn),
}

impl StoreKind {
    /// The kind of this name in the list of a suite.
    ///
    /// # Panics
    /// When there is none.
    pub fn named(name: &str) -> Self {
        let all = [
            Self::Redis,
            Self::Postgres,
            Self::Mysql,
            Self::Views,
            Self::Serializable,
            Self::Proxy,
            Self::Galera,
        ];
        let found = all
            .into_iter()
            .find(|kind| format!("{kind:?}").eq_ignore_ascii_case(name));
        found.unwrap_or_else(|| panic!("no kind of store is named {name}"))
    }

    /// What the file calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Mysql | Self::Galera => "mysql",
            Self::Postgres | Self::Views | Self::Serializable | Self::Proxy => "postgres",
        }
    }

    pub fn is_mysql(self) -> bool {
        self.name() == "mysql"
    }

    /// A server whose commits wait for no disk. `None`: its program is not installed.
    pub fn start(self) -> Option<Server> {
        self.start_with(&[])
    }

    /// The same, with data that outlive its process.
    pub fn start_durable(self) -> Option<Server> {
        match self {
            Self::Redis => self.start_with(&["--appendonly", "yes"]),
            _ => self.start(),
        }
    }

    /// The same with settings of its own kind.
    ///
    /// # Panics
    /// When Galera's nodes are to have settings: they run already.
    pub fn start_with(self, settings: &[&str]) -> Option<Server> {
        let with = |own: &[&'static str]| [own, settings].concat();
        let postgres =
            |own: &[&'static str]| Postgres::available().then(|| Postgres::start_with(&with(own)));
        let program = match self {
            Self::Redis => {
                available("redis-server").then(|| Program::Redis(Redis::start_with(settings)))
            }
            Self::Postgres | Self::Proxy => postgres(&["fsync=off"]).map(Program::Postgres),
            Self::Views | Self::Serializable => {
                let isolation = "default_transaction_isolation=serializable";
                let own = [isolation, "fsync=off"];
                let server = postgres(&own[usize::from(self == Self::Views)..]);
                server.map(|server| {
                    server.psql("postgres", &views());
                    Program::Postgres(server)
                })
            }
            Self::Mysql => {
                Maria::available().then(|| Program::Maria(Maria::start_with(&with(&[QUICK]))))
            }
            Self::Galera => {
                assert!(settings.is_empty(), "Galera's nodes run already");
                Galera::available().then(|| Program::Galera(Turn::take()))
            }
        };
        program.map(|program| {
            let proxy = match &program {
                Program::Postgres(server) if self == Self::Proxy => {
                    let proxy = Spanning::to(server.port);
                    proxy.disturb(1);
                    Some(proxy)
                }
                _ => None,
            };
            Server {
                kind: self,
                program,
                proxy,
            }
        })
    }

    /// Opens a store on a server of this kind.
    pub fn open(self, url: &str, change: impl FnOnce(&mut RemoteOptions)) -> RemoteStore {
        self.open_encrypted(url, &Tls::default(), change)
    }

    /// The same over TLS.
    ///
    /// # Panics
    /// When the address is invalid.
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
        let store = match self.name() {
            "redis" => {
                let address = Address::parse(url).and_then(|address| address.with_tls(tls));
                redis::start(address.unwrap(), options)
            }
            "mysql" => mysql::start(url, tls, options),
            _ => postgres::start(url, tls, options),
        };
        store.unwrap()
    }

    /// A store that has connected.
    pub async fn connect(self, url: &str) -> RemoteStore {
        self.connect_with(url, |_| ()).await
    }

    /// The same with other options.
    ///
    /// # Panics
    /// When it does not connect.
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
            Self::Redis => Micros(20_000),
            _ => Micros(100_000),
        };
        self.connect_with(url, |options| options.answer_within = within)
            .await
    }
}

impl Server {
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// What the file calls its kind.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Its address; that of the first of several nodes.
    pub fn url(&self) -> String {
        self.url_at(0)
    }

    /// The address for the store, or the gateway, of this number: they take turns on several nodes.
    pub fn url_at(&self, place: usize) -> String {
        match (&self.program, &self.proxy) {
            (Program::Galera(turn), _) => turn.url_at(place),
            (_, Some(proxy)) => proxy.url(),
            (Program::Redis(server), _) => server.url(),
            (Program::Postgres(server), _) => server.url(),
            (Program::Maria(server), _) => server.url(),
        }
    }

    pub fn port(&self) -> u16 {
        match (&self.program, &self.proxy) {
            (_, Some(proxy)) => proxy.port,
            (Program::Redis(server), _) => server.port,
            (Program::Postgres(server), _) => server.port,
            (Program::Maria(server), _) => server.port,
            (Program::Galera(turn), _) => turn.cluster().nodes[0].port,
        }
    }

    /// Its address through a proxy on another port.
    pub fn url_through(&self, port: u16) -> String {
        let own = format!(":{}/", self.port());
        self.url().replace(&own, &format!(":{port}/"))
    }

    /// A store on it that has connected: on several nodes the first one to the first of them, and so on.
    pub async fn connect(&self) -> RemoteStore {
        self.connect_with(|_| ()).await
    }

    /// The same with other options.
    pub async fn connect_with(&self, change: impl FnOnce(&mut RemoteOptions)) -> RemoteStore {
        let place = match &self.program {
            Program::Galera(turn) => turn.connected.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        self.kind.connect_with(&self.url_at(place), change).await
    }

    /// The Redis that it is.
    ///
    /// # Panics
    /// When it is another.
    pub fn redis(&self) -> &Redis {
        match &self.program {
            Program::Redis(server) => server,
            other => panic!("not a Redis: {other:?}"),
        }
    }

    /// The PostgreSQL that it is.
    ///
    /// # Panics
    /// When it is another.
    pub fn postgres(&self) -> &Postgres {
        match &self.program {
            Program::Postgres(server) => server,
            other => panic!("not a PostgreSQL: {other:?}"),
        }
    }

    /// The proxy before it.
    ///
    /// # Panics
    /// When there is none.
    pub fn proxy(&self) -> &Spanning {
        self.proxy.as_ref().expect("a proxy")
    }

    /// The cluster that it is on.
    ///
    /// # Panics
    /// When it is on none.
    pub fn galera(&self) -> &Galera {
        match &self.program {
            Program::Galera(turn) => turn.cluster(),
            other => panic!("not Galera: {other:?}"),
        }
    }

    /// The output of statements in an SQL database.
    ///
    /// # Panics
    /// When they fail.
    pub fn sql(&self, statements: &str) -> String {
        match &self.program {
            Program::Redis(_) => panic!("a Redis has no SQL"),
            Program::Postgres(server) if self.has_views() => {
                server.psql("postgres", &of_tables(statements))
            }
            Program::Postgres(server) => server.psql("postgres", statements),
            Program::Maria(server) => server.sql(statements),
            Program::Galera(turn) => turn.cluster().nodes[0].sql(&turn.there(statements)),
        }
    }

    fn has_views(&self) -> bool {
        matches!(self.kind, StoreKind::Views | StoreKind::Serializable)
    }

    /// Signals its process, or that of its first node.
    pub fn signal(&self, signal: &str) {
        match &self.program {
            Program::Redis(server) => server.process().signal(signal),
            Program::Postgres(server) => server.signal(signal),
            Program::Maria(server) => server.process().signal(signal),
            Program::Galera(turn) => turn.cluster().nodes[0].process().signal(signal),
        }
    }

    /// Stops it, or its first node, as an operator does.
    pub fn stop(&mut self) {
        match &mut self.program {
            Program::Redis(server) => server.kill(),
            Program::Postgres(server) => server.stop(),
            Program::Maria(server) => server.stop(),
            Program::Galera(turn) => turn.cluster_mut().nodes[0].stop(),
        }
    }

    /// Stops it, or its first node, at once, as a crash does.
    pub fn crash(&mut self) {
        match &mut self.program {
            Program::Redis(server) => server.kill(),
            Program::Postgres(server) => server.crash(),
            Program::Maria(server) => server.crash(),
            Program::Galera(turn) => turn.cluster_mut().nodes[0].crash(),
        }
    }

    /// Starts it again.
    pub fn run(&mut self) {
        match &mut self.program {
            Program::Redis(server) => server.run(),
            Program::Postgres(server) => server.run(),
            Program::Maria(server) => server.run(),
            Program::Galera(turn) => turn.cluster_mut().run_first(),
        }
    }

    /// Takes every bucket away.
    pub fn clear(&self) {
        match &self.program {
            Program::Redis(server) => drop(server.ask("FLUSHALL")),
            Program::Postgres(_) => drop(self.sql("TRUNCATE tollgate_buckets")),
            Program::Maria(server) => drop(server.sql("DELETE FROM tollgate_buckets")),
            Program::Galera(turn) => {
                let nodes = &turn.cluster().nodes;
                // (A row that another node changes meanwhile is a conflict.)
                let clear = turn.there("DELETE FROM tollgate_buckets");
                wait_until("empty table", || nodes[0].try_sql(&clear).is_ok());
                // The other nodes follow.
                let follow =
                    turn.there("SET wsrep_sync_wait = 1; SELECT COUNT(*) FROM tollgate_buckets");
                for node in nodes {
                    node.sql(&follow);
                }
            }
        }
    }
}

/// The turn of one test on the cluster of the process.
#[derive(Debug)]
struct Turn {
    cluster: Option<Galera>,
    database: String,
    connected: AtomicUsize,
}

/// The cluster between two turns; `None`: the next one starts it.
static CLUSTER: LazyLock<(Sender<Option<Galera>>, Mutex<Receiver<Option<Galera>>>)> =
    LazyLock::new(|| {
        let (give, take) = channel();
        give.send(None).expect("it is kept");
        (give, Mutex::new(take))
    });

impl Turn {
    /// Waits for the turn. A cluster that a test has left broken is replaced.
    fn take() -> Self {
        let given = CLUSTER.1.lock().expect("no test fails with it").recv();
        let mut turn = Self {
            cluster: given.expect("it is given back"),
            database: format!("turn_{:x}", fastrand::u64(..)),
            connected: AtomicUsize::new(0),
        };
        let cluster = turn.cluster.get_or_insert_with(Galera::start);
        cluster.joined();
        cluster.nodes[0].sql(&format!("CREATE DATABASE {}", turn.database));
        turn
    }

    fn cluster(&self) -> &Galera {
        let cluster = self.cluster.as_ref();
        cluster.expect("it is given back at the end")
    }

    fn cluster_mut(&mut self) -> &mut Galera {
        let cluster = self.cluster.as_mut();
        cluster.expect("it is given back at the end")
    }

    fn url_at(&self, place: usize) -> String {
        let nodes = &self.cluster().nodes;
        let url = nodes[place % nodes.len()].url();
        url.replace("/tollgate", &format!("/{}", self.database))
    }

    /// Statements in its database.
    fn there(&self, statements: &str) -> String {
        format!("USE {};\n{statements}", self.database)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let cluster = self.cluster.take().filter(|_| !std::thread::panicking());
        let _ = CLUSTER.0.send(cluster);
    }
}

/// The statements about the tables behind the views.
fn of_tables(statements: &str) -> String {
    TABLES.iter().fold(statements.to_owned(), |text, table| {
        text.replace(&format!("tollgate_{table}"), &format!("plain_{table}"))
    })
}

const TABLES: [&str; 3] = ["buckets", "gateways", "overrides"];

/// Makes the tables of a database that spans machines by other names, and views in their place: they
/// have no system columns.
pub fn views() -> String {
    let made = of_tables(postgres::spanning_schema_sql());
    let views =
        TABLES.map(|table| format!("CREATE VIEW tollgate_{table} AS SELECT * FROM plain_{table};"));
    made + &views.concat()
}
