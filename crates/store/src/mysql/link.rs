//! The connection to a MariaDB or MySQL, by which it is checked and batches are decided.

use std::cell::{Cell, RefCell};

use mysql_async::{Opts, OptsBuilder, Row};
use tokio::sync::Mutex;

use super::address::{addresses, settings};
use super::audit::{Facts, VERSION};
use super::client::{Client, Sets};
use super::document;
use super::draw::{Drawn, carries_wants};
use super::fault::{Fault, obstacle};
use super::mark;
use super::transaction::{BEGIN, OpenTransaction};
use crate::audit::Finding;
use crate::batch::{Answer, Batch, NewDocument, Obstacle, StoredDocument, Trouble, Wants};
use crate::sql::database::{Base, Beat, Database, Swept};
use crate::sql::mark::Mark;
use crate::sql::{PAGE, idle_within};
use crate::tls::Tls;
use crate::wire_form::signed;

/// The server's clock at the start of the statement: microseconds since the epoch, in UTC.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
/// The lines that separate the statements of the schema, and enclose all of them.
const DELIMITER: &str = "DELIMITER ";
const END: &str = "//\n";

pub(super) struct MysqlLink {
    servers: Vec<Opts>,
    pub(super) base: Base,
}

pub(super) struct Session {
    pub(super) client: Client,
    /// A transaction of several texts needs the session for itself.
    turn: Mutex<()>,
    /// The print of the mark at the last heartbeat.
    pub(super) print: Cell<i64>,
    /// The key at which the last sweep ended.
    swept: RefCell<String>,
    has_document: bool,
    /// The identifier of the Galera cluster of which the server is a node.
    pub(super) cluster: Option<String>,
}

impl MysqlLink {
    pub(super) fn new(url: &str, tls: &Tls, base: Base) -> Result<Self, String> {
        let idle = idle_within(base.options.answer_within).ceil_secs();
        let servers = addresses(url, tls).map_err(|error| error.to_string())?;
        let servers = servers
            .into_iter()
            .map(|opts| {
                OptsBuilder::from_opts(opts)
                    .init(vec!["SET NAMES utf8mb4".into(), settings(idle)])
                    .into()
            })
            .collect();
        Ok(Self { servers, base })
    }

    async fn session_on(&self, opts: &Opts) -> Result<Session, Obstacle> {
        let client = Client::connect(opts.clone()).await;
        let client = client.map_err(|error| obstacle(&error))?;
        let obstacle_of = |fault: Fault| fault.into_obstacle(&client);
        let mut facts = Facts::ask(&client).await.map_err(obstacle_of)?;
        if self.base.options.create && !facts.complete() && !facts.read_only {
            for statement in statements() {
                let made = client.run(statement).await.map_err(Fault::from);
                made.map_err(|fault| {
                    let why = fault.into_obstacle(&client).words;
                    Obstacle::lasting(format!("the tables and procedures cannot be made: {why}"))
                })?;
            }
            facts = Facts::ask(&client).await.map_err(obstacle_of)?;
        }
        self.base.shared.audited(self.findings(&facts));
        if let Some(obstacle) = facts.obstacle() {
            return Err(Obstacle {
                words: obstacle,
                lasting: !facts.read_only,
            });
        }
        let is_there = document::is_there(&client, self.base.options.create).await;
        let has_document = is_there.map_err(obstacle_of)?;
        Ok(Session {
            client,
            turn: Mutex::new(()),
            print: Cell::new(0),
            swept: RefCell::new("''".into()),
            has_document,
            cluster: facts.cluster,
        })
    }

    fn findings(&self, facts: &Facts) -> Vec<Finding> {
        let ours = self.base.options.clock.now().as_micros();
        facts.audit(ours, self.base.shared.has_long_quotas())
    }

    /// The expression of the moment at which requests are decided.
    pub(super) fn moment(&self) -> String {
        self.base.pinned().map_or(NOW.into(), |at| at.to_string())
    }

    /// Statements that no request waits for: requests may run between two of them.
    pub(super) async fn chore(&self, session: &Session, text: String) -> Result<Sets, Fault> {
        let _turn = session.turn.lock().await;
        Ok(session.client.run(text).await?)
    }

    async fn make_mark(&self, session: &Session) -> Result<Mark, Fault> {
        let _turn = session.turn.lock().await;
        let mut open = OpenTransaction::new(&session.client);
        let cluster = session.cluster.as_deref();
        let made = mark::make(&session.client, cluster, &self.moment()).await;
        // Otherwise, or if this is dropped, it is rolled back before the session's next statements.
        open.closed = made.is_ok();
        made
    }
}

impl Database for MysqlLink {
    type Session = Session;
    type Fault = Fault;

    fn base(&self) -> &Base {
        &self.base
    }

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

    async fn decide(&self, session: &Session, batch: &Batch) -> Result<Answer, Fault> {
        let decided = {
            let _turn = session.turn.lock().await;
            if session.client.is_closed() {
                return Err(Fault::Unfit("the session has ended".into()));
            }
            let drawn = match session.cluster {
                // A Galera node that takes a procedure's transaction back may send no response at all, or one as
                // if it had committed (codership/mysql-wsrep issues 191 and 313; seen with MariaDB 10.11).
                Some(_) => Drawn::Left,
                None => self.decided_there(session, batch).await?,
            };
            match drawn {
                Drawn::Decided(answer) => return Ok(answer),
                Drawn::Left => self.transaction(session, batch, false).await,
                Drawn::Scarce => self.transaction(session, batch, true).await,
            }
        };
        if matches!(decided, Err(Fault::Unmarked)) {
            let made = self.make_mark(session).await;
            made.map_err(Fault::before_commit)?;
        }
        decided
    }

    fn carries(&self, wants: &Wants) -> bool {
        carries_wants(wants)
    }

    async fn beat(&self, session: &Session) -> Result<Beat, Fault> {
        let (id, moment) = (self.base.decider.id, self.moment());
        let mark = mark::read(session.cluster.as_deref());
        let document = if session.has_document {
            "COALESCE((SELECT epoch FROM tollgate_overrides WHERE id = 1), 0)"
        } else {
            "NULL"
        };
        let text = format!(
            "INSERT INTO tollgate_gateways VALUES ({id}, {NOW}) ON DUPLICATE KEY UPDATE seen = VALUES(seen);
             DELETE FROM tollgate_gateways WHERE seen < {NOW} - 60000000;
             SELECT COUNT(*), (SELECT TABLE_COMMENT FROM information_schema.TABLES
                               WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'tollgate_buckets'),
                    {moment}, {document}
             FROM tollgate_gateways WHERE id <> {id} AND seen > {NOW} - 10000000;
             {mark}"
        );
        let sets = self.chore(session, text).await?;
        let (Some(row), Some(mark)) = (sets.first().and_then(|rows| rows.first()), sets.get(1))
        else {
            return Err(Fault::Corrupt("no row of gateways"));
        };
        if row.get_opt::<String, _>(1).and_then(Result::ok).as_deref() != Some(VERSION) {
            let words = "the tables were replaced by those of another version";
            return Err(Fault::Unfit(words.into()));
        }
        Ok(Beat {
            gateways: number(row, 0)?.unwrap_or(0) + 1,
            print: mark::of(mark)?.map(|mark| mark.print),
            now: number(row, 2)?.unwrap_or(0),
            document: number(row, 3)?,
        })
    }

    async fn keep_mark(&self, session: &Session, print: Option<i64>) -> Result<i64, Fault> {
        let print = match print {
            Some(print) => print,
            None => self.make_mark(session).await?.print,
        };
        session.print.set(print);
        Ok(print)
    }

    async fn audit(&self, session: &Session) -> Result<Vec<Finding>, Fault> {
        let _turn = session.turn.lock().await;
        Ok(self.findings(&Facts::ask(&session.client).await?))
    }

    async fn sweep_page(&self, session: &Session) -> Result<Swept, Fault> {
        let from = session.swept.replace("''".into());
        let text = format!(
            "SELECT HEX(bucket), expires < {NOW} - 1000000 FROM tollgate_buckets WHERE bucket > {from}
             ORDER BY bucket LIMIT {PAGE}"
        );
        let sets = self.chore(session, text).await?;
        let page = sets.first().map_or(&[][..], Vec::as_slice);
        let key = |row: &Row| row.get_opt::<String, _>(0).and_then(Result::ok);
        let full = page
            .iter()
            .filter(|row| matches!(number(row, 1), Ok(Some(1))));
        let gone = full.filter_map(|row| Some(format!("X'{}'", key(row)?)));
        let gone: Vec<String> = gone.collect();
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
        let swept = Swept {
            rows: signed(page.len() as u64),
            gone: signed(gone.len() as u64),
        };
        if let (PAGE, Some(last)) = (swept.rows, page.last().and_then(key)) {
            session.swept.replace(format!("X'{last}'"));
        }
        Ok(swept)
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
        matches!(fault, Fault::Conflict(_) | Fault::Unmarked)
    }

    fn trouble(session: &Session, fault: Fault, charges: bool) -> Trouble {
        let fault = if charges {
            fault
        } else {
            fault.before_commit()
        };
        fault.into_trouble(&session.client)
    }
}

pub(super) fn statements() -> impl Iterator<Item = &'static str> {
    let schema = super::schema_sql();
    let inner = schema.split(DELIMITER).nth(1).unwrap_or_default();
    let parts = inner.split(END).map(str::trim);
    parts.filter(|one| !one.is_empty())
}

/// An integer of a row; `None`: it is null.
pub(super) fn number(row: &Row, column: usize) -> Result<Option<i64>, Fault> {
    row.get_opt::<Option<i64>, _>(column)
        .and_then(Result::ok)
        .ok_or(Fault::Corrupt("not a number"))
}
