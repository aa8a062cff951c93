//! The connection to a MariaDB or MySQL: establishes it, checks it, keeps its tables, and decides
//! batches over it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, Row};
use tokio::sync::Mutex;

use super::MysqlOptions;
use super::address::{addresses, settings};
use super::audit::{Facts, VERSION};
use super::client::{Client, Sets};
use super::document;
use super::draw::Drawn;
use super::fault::{Fault, obstacle};
use super::mark;
use super::several;
use super::transaction::{BEGIN, OpenTransaction};
use crate::batch::{
    Answer, Batch, Link, NewDocument, Obstacle, Shared, ToldDocument, Trouble, Wanted, Wants,
};
use crate::simple::is_simple;
use crate::sql::decide::Decider;
use crate::sql::elsewhere::Elsewhere;
use crate::sql::mark::Mark;
use crate::sql::{
    ATTEMPTS_MAX, CONNECT_WITHIN, HOUSEKEEPING, PAGE, SWEEP_WITHIN, SWEEPS, SWEEPS_MAX,
    idle_within, pause_before,
};
use crate::wire_form::{Name, signed};
use tollgate_limit::Timestamp;

/// The server's clock: microseconds since the epoch, at the start of the statement. (UTC, which no
/// time zone shifts.)
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
/// The lines that separate the statements of the schema, and enclose all of them.
const DELIMITER: &str = "DELIMITER ";
const END: &str = "//\n";

pub(super) struct MysqlLink {
    servers: Vec<Opts>,
    options: MysqlOptions,
    shared: Arc<Shared>,
    pub(super) decider: Decider,
    pub(super) elsewhere: Elsewhere,
}

/// A session, and the server it leads to.
pub(super) struct Session {
    pub(super) client: Client,
    /// A transaction of several texts needs the session for itself: another statement would become
    /// part of it.
    turn: Mutex<()>,
    /// The print of the mark at the last heartbeat.
    pub(super) print: Cell<i64>,
    /// The key at which the last sweep ended.
    swept: RefCell<String>,
    /// Whether there is a table for the document of overrides.
    has_document: bool,
}

impl MysqlLink {
    pub(super) fn new(options: MysqlOptions, shared: Arc<Shared>) -> Result<Self, String> {
        let idle = idle_within(options.answer_within).0.div_ceil(1_000_000);
        let servers = addresses(&options.url, &options.tls).map_err(|error| error.to_string())?;
        let servers = servers
            .into_iter()
            .map(|opts| {
                OptsBuilder::from_opts(opts)
                    .init(vec![settings(idle)])
                    .into()
            })
            .collect();
        let decider = Decider::new(options.pinned.is_some());
        Ok(Self {
            servers,
            options,
            shared,
            decider,
            elsewhere: Elsewhere::default(),
        })
    }

    /// A session on the first server that can be written to; otherwise what is wrong with the last.
    async fn session(&self) -> Result<Session, Obstacle> {
        let mut last = Obstacle::from(String::from("the address names no server"));
        for opts in &self.servers {
            match self.session_on(opts).await {
                Ok(session) => return Ok(session),
                Err(obstacle) => last = obstacle,
            }
        }
        Err(last)
    }

    async fn session_on(&self, opts: &Opts) -> Result<Session, Obstacle> {
        let client = Client::connect(opts.clone())
            .await
            .map_err(|error| obstacle(&error))?;
        let told = |fault: Fault| fault.into_obstacle(&client);
        let mut facts = Facts::ask(&client).await.map_err(told)?;
        if self.options.create && !facts.complete() && !facts.read_only {
            for statement in statements() {
                let made = client.run(statement).await.map_err(Fault::from);
                made.map_err(|fault| {
                    let why = fault.into_obstacle(&client).words;
                    Obstacle::lasting(format!("the tables and procedures cannot be made: {why}"))
                })?;
            }
            facts = Facts::ask(&client).await.map_err(told)?;
        }
        self.audited(&facts);
        if let Some(obstacle) = facts.obstacle() {
            return Err(Obstacle {
                words: obstacle,
                lasting: !facts.read_only,
            });
        }
        let has_document = document::is_there(&client, self.options.create)
            .await
            .map_err(told)?;
        Ok(Session {
            client,
            turn: Mutex::new(()),
            print: Cell::new(0),
            swept: RefCell::new("''".into()),
            has_document,
        })
    }

    fn audited(&self, facts: &Facts) {
        let ours = self.options.clock.now().as_micros();
        self.shared
            .audited(facts.audit(ours, self.shared.has_long_quotas()));
    }

    /// The expression of the moment at which requests are decided.
    pub(super) fn moment(&self) -> String {
        self.pinned().map_or(NOW.into(), |at| at.to_string())
    }

    pub(super) fn pinned(&self) -> Option<i64> {
        let clock = self.options.pinned.as_ref()?;
        Some(signed(clock.now().as_micros()))
    }

    pub(super) fn clock_now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// Whether the procedure is known to leave a bucket to the transaction.
    pub(super) fn is_elsewhere(&self, name: &Name) -> bool {
        self.elsewhere.has(name, self.clock_now())
    }

    /// Statements that no request waits for: requests may run between two of them.
    pub(super) async fn chore(&self, session: &Session, text: String) -> Result<Sets, Fault> {
        let _turn = session.turn.lock().await;
        Ok(session.client.run(text).await?)
    }

    /// Maintains the mark of the server's data, so that a limit that needs it finds it.
    async fn keep_mark(&self, session: &Session) -> Result<(), Fault> {
        let read = self.chore(session, mark::read()).await?;
        let mark = match mark::of(read.first().map_or(&[], Vec::as_slice))? {
            Some(mark) => mark,
            None => self.make_mark(session).await?,
        };
        session.print.set(mark.print);
        Ok(())
    }

    async fn make_mark(&self, session: &Session) -> Result<Mark, Fault> {
        let _turn = session.turn.lock().await;
        let mut open = OpenTransaction::new(&session.client);
        let made = mark::make(&session.client, &self.moment()).await;
        // Otherwise, or if this is dropped, it is rolled back before the session's next statements.
        open.closed = made.is_ok();
        made
    }

    /// The heartbeat; also counts the gateways.
    async fn beat(&self, session: &Session) -> Result<(), Fault> {
        let id = self.decider.id;
        let text = format!(
            "INSERT INTO tollgate_gateways VALUES ({id}, {NOW}) ON DUPLICATE KEY UPDATE seen = VALUES(seen);
             DELETE FROM tollgate_gateways WHERE seen < {NOW} - 60000000;
             SELECT COUNT(*), (SELECT TABLE_COMMENT FROM information_schema.TABLES
                               WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'tollgate_buckets')
             FROM tollgate_gateways WHERE id <> {id} AND seen > {NOW} - 10000000"
        );
        let sets = self.chore(session, text).await?;
        let row = sets
            .first()
            .and_then(|rows| rows.first())
            .ok_or(Fault::Corrupt("no row of gateways"))?;
        if row.get_opt::<String, _>(1).and_then(Result::ok).as_deref() != Some(VERSION) {
            let words = "the tables were replaced by those of another version";
            return Err(Fault::Unfit(words.into()));
        }
        let others = number(row, 0)?.unwrap_or(0);
        self.shared
            .shared_by(u32::try_from(others + 1).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Deletes buckets that have long been full again: nothing is lost with them.
    async fn sweep(&self, session: &Session) -> Result<(), Fault> {
        let enough = self.options.clock.now().after(SWEEP_WITHIN);
        for turn in 1..=SWEEPS_MAX {
            let from = session.swept.replace("''".into());
            let text = format!(
                "SELECT HEX(bucket), expires < {NOW} - 1000000 FROM tollgate_buckets WHERE bucket > {from}
                 ORDER BY bucket LIMIT {PAGE}"
            );
            let sets = self.chore(session, text).await?;
            let page = sets.first().map_or(&[][..], Vec::as_slice);
            let key = |row: &Row| row.get_opt::<String, _>(0).and_then(Result::ok);
            let gone: Vec<String> = page
                .iter()
                .filter(|row| matches!(number(row, 1), Ok(Some(1))))
                .filter_map(|row| Some(format!("X'{}'", key(row)?)))
                .collect();
            if !gone.is_empty() {
                // In key order, like every call. One that was used in the meantime is kept.
                let text = format!(
                    "{BEGIN}; DELETE FROM tollgate_buckets WHERE bucket IN ({}) AND expires < {NOW} - 1000000; COMMIT",
                    gone.join(",")
                );
                let swept = self.chore(session, text).await;
                if swept.is_err() {
                    self.chore(session, "ROLLBACK".into()).await?;
                }
                swept?;
            }
            let Some(last) = page.last().and_then(key) else {
                break;
            };
            if signed(page.len() as u64) < PAGE {
                // The end of the table.
                break;
            }
            session.swept.replace(format!("X'{last}'"));
            // A flood of one-time callers leaves many full pages: continue while pages yield rows.
            let few = signed(gone.len() as u64) < PAGE / 2;
            if (turn >= SWEEPS && few) || self.options.clock.now() >= enough {
                break;
            }
        }
        Ok(())
    }
}

impl Link for MysqlLink {
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
            let outcome = {
                let _turn = session.turn.lock().await;
                if session.client.is_closed() {
                    // Nothing was sent.
                    let closed = Fault::Unfit("the session has ended".into());
                    return Err(closed.into_trouble(&session.client));
                }
                match self.decided_there(session, batch).await {
                    Ok(Drawn::Decided(answer)) => Ok(answer),
                    Ok(Drawn::Left) => self.transaction(session, batch, false).await,
                    Ok(Drawn::Scarce) => self.transaction(session, batch, true).await,
                    Err(fault) => Err(fault),
                }
            };
            match outcome {
                Ok(answer) => return Ok(answer),
                Err(Fault::Unmarked) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    let made = self.make_mark(session).await;
                    // (It commits no charge.)
                    made.map_err(|fault| fault.before_commit().into_trouble(&session.client))?;
                }
                // Rolled back: nothing was charged, so a retry charges once.
                Err(Fault::Conflict(_)) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    tokio::time::sleep(pause_before(attempts)).await;
                }
                Err(fault) => return Err(fault.into_trouble(&session.client)),
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
        let elsewhere = |wanted: &Wanted| leased(wanted) || self.is_elsewhere(&wanted.name);
        if wants.is_empty() || wants.iter().any(elsewhere) {
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
            .map_err(|fault| fault.into_trouble(&session.client))
    }

    fn sends_again(&self) -> bool {
        true
    }

    async fn housekeep(&self, session: &Session) -> Result<(), Trouble> {
        let housekeeping = async {
            self.beat(session).await?;
            self.keep_mark(session).await?;
            if self.shared.is_audit_due() {
                let _turn = session.turn.lock().await;
                self.audited(&Facts::ask(&session.client).await?);
            }
            if self.options.pinned.is_none() {
                // (Rows dated by another clock cannot be compared with the server's.)
                self.sweep(session).await?;
            }
            Ok::<_, Fault>(())
        };
        match housekeeping.await {
            // Another gateway swept there; the next sweep follows.
            Ok(()) | Err(Fault::Conflict(_)) => Ok(()),
            // (It commits no charge.)
            Err(fault) => Err(fault.before_commit().into_trouble(&session.client)),
        }
    }

    fn housekeep_every(&self) -> Duration {
        HOUSEKEEPING
    }
}

/// The statements of the schema: what the command-line clients make of it.
pub(super) fn statements() -> impl Iterator<Item = &'static str> {
    let schema = super::schema_sql();
    let inner = schema.split(DELIMITER).nth(1).unwrap_or_default();
    inner
        .split(END)
        .map(str::trim)
        .filter(|one| !one.is_empty())
}

/// An integer of a row; `None`: it is null.
pub(super) fn number(row: &Row, column: usize) -> Result<Option<i64>, Fault> {
    row.get_opt::<Option<i64>, _>(column)
        .and_then(Result::ok)
        .ok_or(Fault::Corrupt("not a number"))
}
