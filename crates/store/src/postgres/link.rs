//! The connection to a PostgreSQL: establishes it, checks it, and decides batches over it.

mod document;
mod draw;
mod fault;
mod transaction;

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use tokio::sync::{Notify, RwLock, oneshot};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Row};

pub(super) use self::draw::DRAW_OF;
use self::fault::{Fault, obstacle, words};
use self::transaction::{OpenTransaction, ReceiptRow, join};
use super::audit::{Facts, VERSION};
use super::engine::Engine;
use super::{AddressError, mark};
use crate::audit::Finding;
use crate::batch::{Answer, Batch, NewDocument, Obstacle, StoredDocument, Trouble, Wants};
use crate::sql::database::{Base, Beat, Database, Swept};
use crate::sql::mark::{Mark, receipt_key};
use crate::sql::{CONNECT_WITHIN, FAREWELL, PAGE, idle_within};
use crate::tls::{Connector, Tls};

pub(super) struct PostgresLink {
    config: Config,
    tls: Connector,
    base: Base,
    /// Whether the database of the last session spans machines.
    spans: Cell<bool>,
    /// The level of the mark at the last heartbeat, in a database that spans machines.
    seen: Cell<i64>,
}

/// A session, and the server it leads to.
pub(super) struct Session {
    client: Rc<Client>,
    engine: Engine,
    /// The key of its receipts in a database that spans machines, and the number of the last one.
    receipt_key: [u8; 12],
    last_receipt: Cell<u64>,
    /// Why its connection ended, once it has.
    ended: Rc<OnceCell<String>>,
    closed: Rc<Notify>,
    /// Notified when the server notifies the session of a change of the document.
    notified: Rc<Notify>,
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
    /// The receipt of the next transaction in a database that spans machines: it tells whether the
    /// transaction was made if its COMMIT fails.
    fn next_receipt(&self) -> ReceiptRow {
        let number = self.last_receipt.get() + 1;
        self.last_receipt.set(number);
        ReceiptRow::new(self.receipt_key, number)
    }
}

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
    pub(super) fn new(url: &str, tls: &Tls, base: Base) -> Result<Self, String> {
        let mut config = address(url).map_err(|error| error.to_string())?;
        if tls.is_said() {
            config.ssl_mode(SslMode::Require);
        }
        Ok(Self {
            config,
            tls: tls.connector()?,
            base,
            spans: Cell::new(false),
            seen: Cell::new(0),
        })
    }

    fn findings(&self, facts: &Facts) -> Vec<Finding> {
        let options = &self.base.options;
        let ours = options.clock.now().as_micros();
        let long_quotas = self.base.shared.has_long_quotas();
        facts.audit(ours, options.synchronous_commit, long_quotas)
    }

    /// Opens a transaction with the settings we need, whatever the database's defaults. A gateway
    /// that stops midway holds its locks for at most [`idle_within`]. A database that spans machines
    /// keeps its own isolation.
    fn begin(&self, engine: Engine) -> String {
        let commit = if self.base.options.synchronous_commit {
            "on"
        } else {
            "off"
        };
        let idle = idle_within(self.base.options.answer_within).0 / 1000;
        let idle = format!("SET LOCAL idle_in_transaction_session_timeout = '{idle}ms'");
        match engine {
            Engine::Postgres => {
                format!("{BEGIN}; SET LOCAL synchronous_commit = {commit}; {idle}")
            }
            // It has no such setting, and no locks.
            Engine::Dsql => "BEGIN READ WRITE".into(),
            _ => format!("BEGIN READ WRITE; {idle}"),
        }
    }

    /// One statement that returns a row, behind a BEGIN if the session's defaults need one.
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

    fn seen(&self, session: &Session) -> Option<i64> {
        session.engine.spans().then(|| self.seen.get())
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
}

impl Database for PostgresLink {
    type Session = Session;
    type Fault = Fault;

    fn base(&self) -> &Base {
        &self.base
    }

    async fn session(&self) -> Result<Session, Obstacle> {
        let obstacle_of = |error: tokio_postgres::Error| obstacle(&error);
        let connected = self.config.connect(self.tls.clone()).await;
        let (client, mut connection) = connected.map_err(obstacle_of)?;
        let (alive, gone) = oneshot::channel::<()>();
        let ended = Rc::new(OnceCell::new());
        let closed = Rc::new(Notify::new());
        let notified = Rc::new(Notify::new());
        let (tell, close, notify) = (ended.clone(), closed.clone(), notified.clone());
        tokio::task::spawn_local(async move {
            let mut running = pin!(async {
                while let Some(message) = poll_fn(|context| connection.poll_message(context)).await
                {
                    match message {
                        Ok(AsyncMessage::Notification(_)) => notify.notify_one(),
                        Ok(_) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            });
            tokio::select! {
                // Stored before the connection is dropped, by which users of the client see its end.
                outcome = &mut running => {
                    if let Err(error) = outcome {
                        let _ = tell.set(words(&error));
                    }
                    close.notify_one();
                }
                // It waits for the server to close the connection; a dead server never does.
                _ = gone => drop(tokio::time::timeout(FAREWELL, running).await),
            }
        });
        let client = Rc::new(client);
        let (engine, words) = Engine::ask(&client).await.map_err(obstacle_of)?;
        let mut facts = Facts::ask(&client, engine).await.map_err(obstacle_of)?;
        if self.base.options.create && !facts.complete() && !facts.standby {
            make(&client, engine).await?;
            facts = Facts::ask(&client, engine).await.map_err(obstacle_of)?;
        }
        self.base.shared.found(words);
        let has_document = if facts.standby {
            false
        } else {
            document::is_there(&client, self.base.options.create)
                .await
                .map_err(obstacle_of)?
        };
        self.base.shared.audited(self.findings(&facts));
        if let Some(obstacle) = facts.obstacle() {
            return Err(Obstacle {
                words: obstacle,
                lasting: !facts.standby,
            });
        }
        let synchronous = self.base.options.synchronous_commit;
        // An unlogged table does not wait for the disk.
        let plain = !facts.read_only
            && (engine.spans()
                || facts.isolation == "read committed" && (synchronous || !facts.logged()));
        self.spans.set(engine.spans());
        Ok(Session {
            client,
            engine,
            receipt_key: receipt_key(Mark::new_print()),
            last_receipt: Cell::new(0),
            ended,
            closed,
            notified,
            _alive: alive,
            turn: RwLock::new(()),
            print: Cell::new(0),
            swept: Cell::default(),
            has_document,
            begin: (!plain).then(|| self.begin(engine)),
        })
    }

    async fn decide(&self, session: &Session, batch: &Batch) -> Result<Answer, Fault> {
        if !session.engine.spans() {
            let _turn = session.turn.read().await;
            if session.client.is_closed() {
                return Err(Fault::Undone("the session has ended".into()));
            }
            if let Some(answer) = self.decided_there(session, batch).await? {
                return Ok(answer);
            }
        }
        let _turn = session.turn.write().await;
        self.transaction(session, batch).await
    }

    async fn ended(session: &Session) {
        session.closed.notified().await;
    }

    fn carries(&self, wants: &Wants) -> bool {
        !self.spans.get() && draw::carries_wants(wants)
    }

    async fn beat(&self, session: &Session) -> Result<Beat, Fault> {
        let document = if session.has_document {
            "coalesce((SELECT epoch FROM tollgate_overrides WHERE id = 1), 0)"
        } else {
            "NULL::bigint"
        };
        let insert = "INSERT INTO tollgate_gateways VALUES ($1, clock_timestamp())
                      ON CONFLICT (id) DO UPDATE SET seen = excluded.seen";
        let id = &self.base.decider.id;
        // CockroachDB changes a table once in a statement, so spanning databases use `keep_mark`.
        let (first, print, join) = if session.engine.spans() {
            let own = format!("{insert} RETURNING id");
            self.chore(session, &own, &[(id, Type::INT8)]).await?;
            (String::new(), "NULL::bigint", "")
        } else {
            (format!("beat AS ({insert}), "), "mark.epoch", mark::JOIN)
        };
        let beat = format!(
            "WITH {first}gone AS (
                 DELETE FROM tollgate_gateways
                 WHERE seen < clock_timestamp() - interval '1 minute' AND id > 0
             )
             SELECT gateways.count + 1, tollgate_version(), {print},
                    coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), {document}
             FROM (SELECT count(*) FROM tollgate_gateways
                   WHERE id <> $1 AND seen > clock_timestamp() - interval '10 seconds' AND id > 0
                  ) AS gateways {join}"
        );
        let pinned = self.base.pinned();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(id, Type::INT8), (&pinned, Type::INT8)];
        let row = self.chore(session, &beat, &parameters).await?;
        if row.try_get::<_, i64>(1)? != VERSION {
            return Err(Fault::Replaced);
        }
        Ok(Beat {
            gateways: row.try_get(0)?,
            print: row.try_get(2)?,
            now: row.try_get(3)?,
            document: row.try_get(4)?,
        })
    }

    async fn keep_mark(&self, session: &Session, print: Option<i64>) -> Result<i64, Fault> {
        let seen = self.seen(session);
        let print = match print {
            Some(print) => print,
            None => {
                let (print, pinned) = (Mark::new_print(), self.base.pinned());
                let (make, parameters) = mark::make(&print, &pinned, seen.as_ref());
                let row = self.chore(session, make, &parameters).await?;
                if seen.is_some() {
                    self.seen.set(row.try_get(3)?);
                }
                mark::of(&row)?.print
            }
        };
        session.print.set(print);
        Ok(print)
    }

    async fn listen(&self, session: &Session) {
        let listening = {
            let _turn = session.turn.read().await;
            session.client.batch_execute(document::LISTEN).await
        };
        // Without it the heartbeats find each change.
        if listening.is_ok() {
            loop {
                self.base.shared.documents.changed();
                session.notified.notified().await;
            }
        }
    }

    async fn audit(&self, session: &Session) -> Result<Vec<Finding>, Fault> {
        let _turn = session.turn.write().await;
        Ok(self.findings(&Facts::ask(&session.client, session.engine).await?))
    }

    async fn sweep_page(&self, session: &Session) -> Result<Swept, Fault> {
        let from = session.swept.take();
        let sweep = match session.engine {
            Engine::Postgres => include_str!("sweep.sql"),
            _ => SWEEP_SPANNING,
        };
        let parameters = [(&from.as_slice() as _, Type::BYTEA)];
        let row = self.chore(session, sweep, &parameters).await?;
        let (rows, gone) = (row.try_get(1)?, row.try_get(2)?);
        if rows == PAGE {
            let last: Option<Vec<u8>> = row.try_get(0)?;
            session.swept.set(last.unwrap_or_default());
        }
        Ok(Swept { rows, gone })
    }

    fn keeps_document(session: &Session) -> bool {
        session.has_document
    }

    async fn write_document(&self, session: &Session, new: &NewDocument) -> Result<bool, Fault> {
        document::write(self, session, new).await
    }

    async fn read_document(&self, session: &Session, known: u64) -> Result<StoredDocument, Fault> {
        document::read(self, session, known).await
    }

    fn is_conflict(fault: &Fault) -> bool {
        matches!(fault, Fault::Conflict(_))
    }

    /// Its text includes why the session ended, which the error of the statement often does not say.
    fn trouble(session: &Session, fault: Fault, _charges: bool) -> Trouble {
        let trouble = fault.into_trouble(&session.client);
        match (trouble, session.ended.get()) {
            (Trouble::Lost(words), Some(why)) => Trouble::Lost(format!("{words}: {why}")),
            (Trouble::Unfit(words), Some(why)) => Trouble::Unfit(format!("{words}: {why}")),
            (trouble, _) => trouble,
        }
    }
}

/// Begins a transaction that writes, even if the session's defaults say otherwise.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// As `sweep.sql`, for databases that may have no SKIP LOCKED.
const SWEEP_SPANNING: &str = "WITH page AS (
    SELECT key, expires FROM tollgate_buckets WHERE key > $1 ORDER BY key LIMIT 500
), gone AS (
    DELETE FROM tollgate_buckets
    WHERE key IN (SELECT key FROM page WHERE expires < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000)
        AND expires < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000
    RETURNING 1
)
SELECT (SELECT key FROM page ORDER BY key DESC LIMIT 1), (SELECT count(*) FROM page), (SELECT count(*) FROM gone)";

/// The advisory lock of a gateway that makes the table and functions: `tollgate` in ASCII.
const MAKING: i64 = i64::from_be_bytes(*b"tollgate");

/// Makes the table and functions. If this fails the connection is given up, and the transaction
/// with it.
///
/// One gateway makes them after the other, because IF NOT EXISTS does not see what another
/// transaction makes. The lock is that of the transaction, because behind a pooler the session is
/// not ours. A database that spans machines has no such lock.
async fn make(client: &Client, engine: Engine) -> Result<(), Obstacle> {
    let mut made = Ok(());
    for schema in engine.schema() {
        let locked = format!("{BEGIN}; SELECT pg_advisory_xact_lock({MAKING}); {schema}; COMMIT");
        let statements = if engine.spans() { schema } else { &locked };
        made = made.and(client.batch_execute(statements).await);
    }
    made.map_err(|error| {
        let words = format!("the table and functions cannot be made: {}", words(&error));
        // After a conflict the next connection finds what the other gateway has made. A database that
        // spans machines reports it in many ways.
        let lasting = match engine.spans() {
            true => error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE),
            false => !matches!(Fault::from(error), Fault::Conflict(_)),
        };
        Obstacle { words, lasting }
    })
}
