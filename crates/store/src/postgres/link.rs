//! The connection to a PostgreSQL: establishes it, checks it, and decides batches over it.

mod document;
mod fault;
mod functions;
mod transaction;

use std::cell::{Cell, OnceCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{RwLock, oneshot};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};

use self::fault::{Fault, obstacle, words};
use self::transaction::{OpenTransaction, join};
use super::audit::{Facts, VERSION};
use super::mark;
use super::several::{self};
use super::{AddressError, PostgresOptions};
use crate::batch::{
    Answer, Batch, Link, NewDocument, Obstacle, Shared, ToldDocument, Trouble, Wanted, Wants,
};
use crate::simple::is_simple;
use crate::sql::decide::Decider;
use crate::sql::elsewhere::Elsewhere;
use crate::sql::mark::Mark;
use crate::sql::{
    ATTEMPTS_MAX, CONNECT_WITHIN, FAREWELL, HOUSEKEEPING, PAGE, SWEEP_WITHIN, SWEEPS, SWEEPS_MAX,
    idle_within, pause_before,
};
use crate::tls::Connector;
use crate::wire_form::signed;

pub(super) struct PostgresLink {
    config: Config,
    tls: Connector,
    options: PostgresOptions,
    shared: Arc<Shared>,
    decider: Decider,
    elsewhere: Elsewhere,
}

/// A session, and the server it leads to.
pub(super) struct Session {
    client: Rc<Client>,
    /// Why its connection ended, once it has.
    ended: Rc<OnceCell<String>>,
    /// Dropped with the session, which ends its connection.
    _alive: oneshot::Sender<()>,
    /// The server runs single statements one after the other. A transaction of several round trips
    /// needs the session for itself: another statement would become part of it.
    turn: RwLock<()>,
    /// The print of the mark at the last heartbeat, which the functions leave in the rows they write.
    print: Cell<i64>,
    /// The key at which the last sweep ended.
    swept: Cell<Vec<u8>>,
    /// Whether there is a table for the document of overrides.
    has_document: bool,
    /// The statement that must precede our own, if the session's defaults are not the ones we need.
    begin: Option<String>,
}

impl Session {
    /// The trouble of a failed statement. Its text includes why the session ended, which the error of
    /// the statement often does not say.
    fn trouble(&self, fault: Fault) -> Trouble {
        let trouble = fault.into_trouble(&self.client);
        match (trouble, self.ended.get()) {
            (Trouble::Lost(words), Some(why)) => Trouble::Lost(format!("{words}: {why}")),
            (Trouble::Unfit(words), Some(why)) => Trouble::Unfit(format!("{words}: {why}")),
            (trouble, _) => trouble,
        }
    }
}

/// Reads an address.
pub(super) fn address(url: &str) -> Result<Config, AddressError> {
    // `sslmode=require` here verifies the certificate and the name; libpq's other modes mean less.
    let url = url
        .replace("sslmode=verify-full", "sslmode=require")
        .replace("sslmode=verify-ca", "sslmode=require");
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        // The error's own text may repeat the address.
        AddressError(if error.code().is_some() {
            "refused".into()
        } else {
            "malformed".into()
        })
    })?;
    if config.get_hosts().is_empty() {
        return Err(AddressError("no host".into()));
    }
    config
        .connect_timeout(CONNECT_WITHIN)
        .application_name("tollgate");
    Ok(config)
}

impl PostgresLink {
    pub(super) fn new(options: PostgresOptions, shared: Arc<Shared>) -> Result<Self, String> {
        let mut config = address(&options.url).map_err(|error| error.to_string())?;
        if options.tls.is_said() {
            config.ssl_mode(SslMode::Require);
        }
        let tls = options.tls.connector()?;
        let decider = Decider::new(options.pinned.is_some());
        Ok(Self {
            config,
            tls,
            options,
            shared,
            decider,
            elsewhere: Elsewhere::default(),
        })
    }

    async fn session(&self) -> Result<Session, Obstacle> {
        let told = |error: tokio_postgres::Error| obstacle(&error);
        let (client, connection) = self.config.connect(self.tls.clone()).await.map_err(told)?;
        let (alive, gone) = oneshot::channel::<()>();
        let ended = Rc::new(OnceCell::new());
        let tell = ended.clone();
        tokio::task::spawn_local(async move {
            let mut connection = pin!(connection);
            tokio::select! {
                // Stored before the connection is dropped, which is when the users of the client
                // see that it has ended.
                outcome = &mut connection => if let Err(error) = outcome {
                    let _ = tell.set(words(&error));
                },
                // It waits for the server to close the connection; a dead server never does.
                _ = gone => drop(tokio::time::timeout(FAREWELL, connection).await),
            }
        });
        let client = Rc::new(client);
        let mut facts = Facts::ask(&client).await.map_err(told)?;
        if self.options.create && !facts.complete() && !facts.standby {
            // In a writing transaction, whatever the defaults. If this fails the connection is
            // given up, and the transaction with it.
            let schema = super::schema_sql();
            let create =
                format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {schema}; COMMIT");
            let created = client.batch_execute(&create).await;
            let why = |error| {
                Obstacle::lasting(format!(
                    "the table and functions cannot be made: {}",
                    words(&error)
                ))
            };
            created.map_err(why)?;
            facts = Facts::ask(&client).await.map_err(told)?;
        }
        let has_document = if facts.standby {
            false
        } else {
            document::is_there(&client, self.options.create)
                .await
                .map_err(told)?
        };
        self.audited(&facts);
        if let Some(obstacle) = facts.obstacle() {
            return Err(Obstacle {
                words: obstacle,
                lasting: !facts.standby,
            });
        }
        let synchronous = self.options.synchronous_commit;
        // An unlogged table does not wait for the disk.
        let plain = facts.isolation == "read committed"
            && !facts.read_only
            && (synchronous || !facts.logged());
        Ok(Session {
            client,
            ended,
            _alive: alive,
            turn: RwLock::new(()),
            print: Cell::new(0),
            swept: Cell::default(),
            has_document,
            begin: (!plain).then(|| self.begin()),
        })
    }

    fn audited(&self, facts: &Facts) {
        let (ours, synchronous) = (
            self.options.clock.now().as_micros(),
            self.options.synchronous_commit,
        );
        self.shared
            .audited(facts.audit(ours, synchronous, self.shared.has_long_quotas()));
    }

    /// Opens a transaction with the settings we need, whatever the database's defaults. A gateway
    /// that stops midway holds its locks for at most [`idle_within`].
    fn begin(&self) -> String {
        let commit = if self.options.synchronous_commit {
            "on"
        } else {
            "off"
        };
        let idle = idle_within(self.options.answer_within).0 / 1000;
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = {commit};
             SET LOCAL idle_in_transaction_session_timeout = '{idle}ms'"
        )
    }

    fn pinned(&self) -> Option<i64> {
        self.options
            .pinned
            .as_ref()
            .map(|clock| signed(clock.now().as_micros()))
    }

    /// One statement that returns a row, in a transaction of its own if the session's defaults are
    /// not the ones we need.
    async fn one(
        &self,
        session: &Session,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, tokio_postgres::Error> {
        let Some(begin) = &session.begin else {
            return session.client.query_typed_one(statement, parameters).await;
        };
        let mut open = OpenTransaction::new(session);
        // One round trip. After an error COMMIT rolls everything back, and the error is reported.
        let ((begun, row), committed) = join(
            join(
                session.client.batch_execute(begin),
                session.client.query_typed_one(statement, parameters),
            ),
            session.client.batch_execute("COMMIT"),
        )
        .await;
        open.closed = committed.is_ok();
        begun?;
        let row = row?;
        committed?;
        Ok(row)
    }

    /// A statement that no request waits for: requests may run between two of them.
    async fn chore(
        &self,
        session: &Session,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, tokio_postgres::Error> {
        let _turn = session.turn.read().await;
        self.one(session, statement, parameters).await
    }

    /// Maintains the mark of the server's data, so that a limit that needs it finds it.
    async fn keep_mark(&self, session: &Session) -> Result<(), Fault> {
        let read = {
            let _turn = session.turn.read().await;
            session
                .client
                .query_typed(mark::READ, &[(&mark::KEY, Type::BYTEA)])
                .await?
        };
        let mark = match read.first() {
            Some(row) => mark::of(row)?,
            None => {
                let (print, pinned) = (Mark::new_print(), self.pinned());
                mark::of(
                    &self
                        .chore(session, mark::MAKE, &mark::parameters(&print, &pinned))
                        .await?,
                )?
            }
        };
        session.print.set(mark.print);
        Ok(())
    }
}

impl Link for PostgresLink {
    type Connection = Session;

    async fn connect(&self) -> Result<Session, Obstacle> {
        let attempt = async {
            let session = self.session().await?;
            self.housekeep(&session)
                .await
                .map_err(|trouble| Obstacle::from(trouble.into_words()))?;
            Ok(session)
        };
        tokio::time::timeout(CONNECT_WITHIN, attempt)
            .await
            .unwrap_or_else(|_| Err(Obstacle::from(String::from("no connection in time"))))
    }

    async fn call(&self, session: &Session, batch: &Batch) -> Result<Answer, Trouble> {
        let mut attempts = 0;
        loop {
            let there = {
                let _turn = session.turn.read().await;
                if session.client.is_closed() {
                    // Nothing was sent.
                    let closed = Fault::Undone("the session has ended".into());
                    return Err(session.trouble(closed));
                }
                self.decided_there(session, batch).await
            };
            let outcome = match there {
                Ok(None) => {
                    let _turn = session.turn.write().await;
                    self.transaction(session, batch).await
                }
                Ok(Some(answer)) => Ok(answer),
                Err(fault) => Err(fault),
            };
            match outcome {
                Ok(answer) => return Ok(answer),
                // Rolled back by the server: nothing was charged, so a retry charges once.
                Err(Fault::Conflict(_)) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    tokio::time::sleep(pause_before(attempts)).await;
                }
                Err(fault) => return Err(session.trouble(fault)),
            }
        }
    }

    fn lane_of(&self, wants: &Wants) -> u32 {
        let leased = |wanted: &Wanted| {
            wanted.shape.lease().is_some()
                && self
                    .shared
                    .leases
                    .as_ref()
                    .is_some_and(|leases| leases.holds(wanted))
        };
        if wants.is_empty()
            || wants
                .iter()
                .any(|wanted| leased(wanted) || self.is_elsewhere(&wanted.name))
        {
            // Messages about leases, and requests on buckets with leases: the functions leave these
            // to the transaction.
            2
        } else if is_simple(wants) {
            0
        } else if several::carries_wants(wants) {
            1
        } else {
            2
        }
    }

    fn has_document(&self, session: &Session) -> bool {
        session.has_document
    }

    async fn document(
        &self,
        session: &Session,
        known: u64,
        new: Option<&NewDocument>,
    ) -> Result<ToldDocument, Trouble> {
        self.read_document(session, known, new)
            .await
            .map_err(|fault| session.trouble(fault))
    }

    fn sends_again(&self) -> bool {
        true
    }

    async fn housekeep(&self, session: &Session) -> Result<(), Trouble> {
        let housekeeping = async {
            let beat = "WITH beat AS (
                            INSERT INTO tollgate_gateways VALUES ($1, clock_timestamp())
                            ON CONFLICT (id) DO UPDATE SET seen = excluded.seen
                        ), gone AS (
                            DELETE FROM tollgate_gateways
                            WHERE seen < clock_timestamp() - interval '1 minute' AND id > 0
                        )
                        SELECT count(*) + 1, tollgate_version() FROM tollgate_gateways
                        WHERE id <> $1 AND seen > clock_timestamp() - interval '10 seconds' AND id > 0";
            let row = self
                .chore(session, beat, &[(&self.decider.id, Type::INT8)])
                .await?;
            if row.try_get::<_, i64>(1)? != VERSION {
                return Err(Fault::Replaced);
            }
            let replicas: i64 = row.try_get(0)?;
            self.shared
                .shared_by(u32::try_from(replicas).unwrap_or(u32::MAX));
            self.keep_mark(session).await?;
            if self.shared.is_audit_due() {
                let _turn = session.turn.write().await;
                self.audited(&Facts::ask(&session.client).await?);
            }
            if self.options.pinned.is_some() {
                // The server's clock cannot be compared with rows dated by another clock.
                return Ok(());
            }
            let enough = self.options.clock.now().after(SWEEP_WITHIN);
            for turn in 1..=SWEEPS_MAX {
                let from = session.swept.take();
                let sweep = include_str!("sweep.sql");
                let row = self
                    .chore(session, sweep, &[(&from.as_slice(), Type::BYTEA)])
                    .await?;
                let (page, gone): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
                if page < PAGE {
                    // The end of the table.
                    break;
                }
                session
                    .swept
                    .set(row.try_get::<_, Option<Vec<u8>>>(0)?.unwrap_or_default());
                // A flood of one-time callers leaves many full pages: continue while pages yield
                // rows.
                if (turn >= SWEEPS && gone < PAGE / 2) || self.options.clock.now() >= enough {
                    break;
                }
            }
            Ok::<_, Fault>(())
        };
        match housekeeping.await {
            // Another gateway swept there; the next sweep follows.
            Ok(()) | Err(Fault::Conflict(_)) => Ok(()),
            Err(fault) => Err(session.trouble(fault)),
        }
    }

    fn housekeep_every(&self) -> Duration {
        HOUSEKEEPING
    }
}
