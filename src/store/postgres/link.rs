//! The connection to a PostgreSQL: makes it, checks it, decides batches over it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::RwLock;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::audit::{Facts, VERSION};
use super::columns::{Columns, DRAW};
use super::fields::{self, Epoch, Opened};
use super::leased::Parts;
use super::several::{self, DRAW_SEVERAL, Several};
use super::{AddressError, PostgresOptions};
use crate::limit::bucket::State;
use crate::limit::{Change, Kept, Micros, Timestamp};
use crate::store::batch::{Adjust, Answer, Batch, Link, Shared, Trouble, Wanted, Wants, decide};
use crate::store::shape::{HOLD, HOLD_PINNED, Name, Shape, signed};
use crate::store::simple::{Simple, all_simple, is_simple};

/// A connection is up within this or not at all; requests do not wait for it.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Heartbeats and sweeps happen this often.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Conflicts of one call that are tried again before it fails.
const ATTEMPTS_MAX: u32 = 8;
/// The rows of a page that is swept: requests wait for no more than one page.
const PAGE: i64 = 500;
/// Pages swept at a time: so many, and more while it pays, for no longer than this.
const SWEEPS: usize = 10;
const SWEEPS_MAX: usize = 40;
const SWEEP_WITHIN: Micros = Micros(250_000);
/// What the functions raise for a bucket that the transaction must decide.
const ELSEWHERE: &str = "TG001";
/// So long a bucket that the functions left to the transaction is believed to be one for it: asking them first would be a
/// call in vain, and one that the server takes back.
const ELSEWHERE_FOR: Micros = Micros(250_000);
/// Of so many buckets at most that is remembered.
const ELSEWHERE_MAX: usize = 4096;
/// A token bucket's row outlives its fullness by this.
pub(super) const ROW_MARGIN: i64 = 1_000_000;

pub(super) struct PostgresLink {
    config: Config,
    tls: MakeRustlsConnect,
    options: PostgresOptions,
    shared: Arc<Shared>,
    /// This gateway among others: 52 random bits.
    id: i64,
    /// Buckets that the functions leave to the transaction, as parts of them are leased or they cannot be read, and until
    /// when that is believed.
    elsewhere: RefCell<HashMap<u128, Timestamp, RandomState>>,
}

/// A session, and which server it leads to.
pub(super) struct Session {
    client: Rc<Client>,
    /// Of statements that stand alone the server has any number, one after the other; a transaction of several trips has it
    /// for itself: another statement would slip into it.
    turn: RwLock<()>,
    epoch: Epoch,
    /// Where the last sweep ended.
    swept: Cell<Vec<u8>>,
    /// What must stand before a statement of its own, where the session's defaults are not ours.
    begin: Option<String>,
}

/// Reads an address.
pub(super) fn address(url: &str) -> Result<Config, AddressError> {
    // Whoever asks for encryption gets the certificate and the name checked: libpq's other words for it mean less.
    let url = url.replace("sslmode=verify-full", "sslmode=require").replace("sslmode=verify-ca", "sslmode=require");
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        // The error's own words may repeat the address.
        AddressError(if error.code().is_some() { "refused".into() } else { "malformed".into() })
    })?;
    if config.get_hosts().is_empty() {
        return Err(AddressError("no host".into()));
    }
    config.connect_timeout(CONNECT_WITHIN).application_name("tollgate");
    Ok(config)
}

impl PostgresLink {
    pub(super) fn new(options: PostgresOptions, shared: Arc<Shared>) -> Result<Self, String> {
        let mut config = address(&options.url).map_err(|error| error.to_string())?;
        if options.tls.is_said() {
            config.ssl_mode(SslMode::Require);
        }
        let tls = options.tls.config()?;
        let id = signed(fastrand::u64(1..1 << 52));
        let elsewhere = RefCell::default();
        Ok(Self { config, tls: MakeRustlsConnect::new(tls), options, shared, id, elsewhere })
    }

    async fn session(&self) -> Result<Session, String> {
        let told = |error: tokio_postgres::Error| words(&error);
        let (client, connection) = self.config.connect(self.tls.clone()).await.map_err(told)?;
        tokio::task::spawn_local(async move {
            // How it ended is seen by whoever uses the client.
            let _ = connection.await;
        });
        let client = Rc::new(client);
        let mut facts = Facts::ask(&client).await.map_err(told)?;
        if self.options.create && !facts.complete() && !facts.standby {
            // In a transaction that writes, whatever the defaults. A connection on which it fails is given up, and it with it.
            let schema = super::schema_sql();
            let create = format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {schema}; COMMIT");
            let created = client.batch_execute(&create).await;
            created.map_err(|error| format!("the table and functions cannot be made: {}", words(&error)))?;
            facts = Facts::ask(&client).await.map_err(told)?;
        }
        self.audited(&facts);
        if let Some(obstacle) = facts.obstacle() {
            return Err(obstacle);
        }
        let synchronous = self.options.synchronous_commit;
        // What is not logged waits for no disk.
        let plain = facts.isolation == "read committed" && !facts.read_only && (synchronous || !facts.logged());
        Ok(Session {
            client,
            turn: RwLock::new(()),
            epoch: Epoch::of(facts.start),
            swept: Cell::default(),
            begin: (!plain).then(|| self.begin()),
        })
    }

    fn audited(&self, facts: &Facts) {
        let (ours, synchronous) = (self.options.clock.now().as_micros(), self.options.synchronous_commit);
        self.shared.audited(facts.audit(ours, synchronous, self.shared.has_long_quotas()));
    }

    /// Opens a transaction with what we need of it, whatever the database's defaults. A gateway that stops in the middle
    /// holds its locks no longer than a second.
    fn begin(&self) -> String {
        let commit = if self.options.synchronous_commit { "on" } else { "off" };
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = {commit};
             SET LOCAL idle_in_transaction_session_timeout = '1s'"
        )
    }

    fn pinned(&self) -> Option<i64> {
        self.options.pinned.as_ref().map(|clock| signed(clock.now().as_micros()))
    }

    /// One statement that answers a row, in a transaction of its own where the session's defaults are not ours.
    async fn one(
        &self,
        session: &Session,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, tokio_postgres::Error> {
        let Some(begin) = &session.begin else { return session.client.query_typed_one(statement, parameters).await };
        let mut open = OpenTransaction::new(session);
        // One trip. After an error COMMIT takes all of it back, and the error is what is told.
        let ((begun, row), committed) = join(
            join(session.client.batch_execute(begin), session.client.query_typed_one(statement, parameters)),
            session.client.batch_execute("COMMIT"),
        )
        .await;
        open.closed = committed.is_ok();
        begun?;
        let row = row?;
        committed?;
        Ok(row)
    }

    /// A statement that no request waits for: requests go between two of them.
    async fn chore(
        &self,
        session: &Session,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, tokio_postgres::Error> {
        let _turn = session.turn.read().await;
        self.one(session, statement, parameters).await
    }

    /// Calls a function that decides the whole batch; `None`: it leaves that to the transaction.
    async fn draw(
        &self,
        session: &Session,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Option<Vec<i64>>, Fault> {
        match self.one(session, statement, parameters).await {
            Ok(row) => Ok(row.try_get(0)?),
            Err(error) if error.code().is_some_and(|code| code.code() == ELSEWHERE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the functions are known to leave a bucket to the transaction.
    fn is_elsewhere(&self, name: &Name) -> bool {
        let elsewhere = self.elsewhere.borrow();
        !elsewhere.is_empty() && elsewhere.get(&name.hash).is_some_and(|until| self.options.clock.now() < *until)
    }

    /// Keeps what a transaction has seen of a bucket.
    fn remember(&self, name: &Name, is_elsewhere: bool) {
        let mut elsewhere = self.elsewhere.borrow_mut();
        if !is_elsewhere {
            elsewhere.remove(&name.hash);
            return;
        }
        let now = self.options.clock.now();
        if elsewhere.len() >= ELSEWHERE_MAX {
            elsewhere.retain(|_, until| now < *until);
        }
        if elsewhere.len() < ELSEWHERE_MAX {
            elsewhere.insert(name.hash, now.after(ELSEWHERE_FOR));
        }
    }

    /// The functions first, where they carry the batch.
    async fn decided_there(&self, session: &Session, batch: &Batch) -> Result<Option<Answer>, Fault> {
        if batch.buckets.iter().any(|(name, _)| self.is_elsewhere(name)) {
            return Ok(None);
        }
        let (fingerprint, pinned) = (&session.epoch.fingerprint, self.pinned());
        if let Some(columns) = all_simple(batch, Simple::even_leased).and_then(|wanted| Columns::of(batch, &wanted)) {
            let Some(answer) = self.draw(session, DRAW, &columns.parameters(fingerprint, &pinned)).await? else {
                return Ok(None);
            };
            return columns.read(batch, &answer).map(Some).ok_or(Fault::Corrupt("not an answer of tollgate_draw"));
        }
        let about = self.options.pinned.as_ref().unwrap_or(&self.options.clock).now();
        let Some(several) = Several::of(batch, about) else { return Ok(None) };
        let Some(answer) = self.draw(session, DRAW_SEVERAL, &several.parameters(fingerprint, &pinned)).await? else {
            return Ok(None);
        };
        several.read(batch, &answer).map(Some).ok_or(Fault::Corrupt("not an answer of tollgate_draw_several"))
    }

    /// Everything else: locks in key order, clock after the locks, decision by the pure core, one write.
    async fn transaction(&self, session: &Session, batch: &Batch) -> Result<Answer, Fault> {
        let client = &session.client;
        let mut order: Vec<usize> = (0..batch.buckets.len()).collect();
        let keys: Vec<[u8; 16]> = batch.buckets.iter().map(|(name, _)| name.hash.to_be_bytes()).collect();
        order.sort_unstable_by_key(|&bucket| keys[bucket]);
        let sorted: Vec<&[u8]> = order.iter().map(|&bucket| keys[bucket].as_slice()).collect();
        let (begin, pinned) = (self.begin(), self.pinned());
        let mut open = OpenTransaction::new(session);
        let insert = "INSERT INTO tollgate_buckets (key, expires) SELECT key, 0 FROM unnest($1::bytea[]) AS want (key)
                      ORDER BY key ON CONFLICT (key) DO NOTHING";
        let lock = "SELECT key, CASE
                        WHEN kind = 1 THEN ARRAY[1, kind, epoch, a, b, c, level - price * taken, at] || more
                        WHEN kind <= 3 THEN ARRAY[1, kind, epoch, a, b, c, d, level, at] || more
                        WHEN kind > 3 THEN ARRAY[1, kind, epoch] || more
                    END FROM tollgate_buckets WHERE key = ANY ($1::bytea[]) ORDER BY key FOR UPDATE";
        // Of this very server: a pooler may have led us to another since we connected.
        let clock = "SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
                            (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
        let keys_parameter: [(&(dyn ToSql + Sync), Type); 1] = [(&sorted, Type::BYTEA_ARRAY)];
        let clock_parameter: [(&(dyn ToSql + Sync), Type); 1] = [(&pinned, Type::INT8)];
        // One trip: the server takes them in this order.
        let ((begun, inserted), (rows, now)) = join(
            join(client.batch_execute(&begin), client.execute_typed(insert, &keys_parameter)),
            join(client.query_typed(lock, &keys_parameter), client.query_typed_one(clock, &clock_parameter)),
        )
        .await;
        begun?;
        inserted?;
        let (rows, clock) = (rows?, now?);
        let (now, epoch) = (moment(clock.try_get(0)?)?, Epoch::of(clock.try_get(1)?));
        if rows.len() != order.len() {
            return Err(Fault::Conflict("a bucket's row was swept before it was locked".into()));
        }
        let mut stored: Vec<Result<Option<Vec<i64>>, &str>> = vec![Ok(None); order.len()];
        for (row, &bucket) in rows.iter().zip(&order) {
            // A number that is missing from it.
            stored[bucket] = row.try_get(1).map_err(|_| "a bucket's row lacks a number");
        }
        let mut opened = Vec::with_capacity(order.len());
        let mut parts = Vec::with_capacity(order.len());
        let mut unreadable = Vec::new();
        for (place, (stored, (_, shape))) in (0..).zip(stored.into_iter().zip(&batch.buckets)) {
            let read = stored.and_then(|stored| {
                let (plain, held) = Parts::open(stored, batch, place, now)?;
                Ok((fields::open(shape, plain.as_deref(), now, epoch)?, held))
            });
            let (bucket, held) = read.unwrap_or_else(|_| {
                // Whatever needs it fails, and it is left as it is; the rest of the batch has nothing to do with it.
                unreadable.push(place);
                (Opened::unreadable(shape), Parts::default())
            });
            opened.push(bucket);
            parts.push(held);
        }
        let (answered, written) = self.decide(batch, &unreadable, &mut opened, &mut parts, now);
        let Answered { before, granted, leased } = answered;
        for (place, (name, _)) in (0..).zip(&batch.buckets) {
            self.remember(name, parts[place as usize].are_out() || unreadable.contains(&place));
        }
        let mut columns: (Vec<&[u8]>, Vec<Option<String>>, Vec<i64>) = Default::default();
        for &bucket in order.iter().filter(|&&bucket| written[bucket]) {
            let row = fields::close(&batch.buckets[bucket].1, &opened[bucket], epoch);
            let row = row.map(|row| parts[bucket].close(row));
            columns.0.push(&keys[bucket]);
            // Rows differ in length, which SQL's nested arrays do not allow: each is sent as the text of an array.
            columns.1.push(row.as_ref().map(|(row, _)| array_text(row)));
            columns.2.push(row.map_or(0, |(_, gone)| gone.saturating_add(ROW_MARGIN)));
        }
        let write = "UPDATE tollgate_buckets AS bucket SET
                         kind = want.state[2], epoch = want.state[3], price = 0, taken = 0,
                         a = CASE WHEN want.state[2] <= 3 THEN want.state[4] END,
                         b = CASE WHEN want.state[2] <= 3 THEN want.state[5] END,
                         c = CASE WHEN want.state[2] <= 3 THEN want.state[6] END,
                         d = CASE WHEN want.state[2] IN (2, 3) THEN want.state[7] END,
                         level = CASE want.state[2] WHEN 1 THEN want.state[7] WHEN 2 THEN want.state[8]
                                                    WHEN 3 THEN want.state[8] END,
                         at = CASE want.state[2] WHEN 1 THEN want.state[8] WHEN 2 THEN want.state[9]
                                                 WHEN 3 THEN want.state[9] END,
                         more = CASE want.state[2] WHEN 1 THEN nullif(want.state[9:], '{}')
                                                   WHEN 2 THEN nullif(want.state[10:], '{}')
                                                   WHEN 3 THEN nullif(want.state[10:], '{}')
                                                   ELSE want.state[4:] END,
                         expires = want.expires
                     FROM (SELECT key, state::bigint[] AS state, expires
                           FROM unnest($1::bytea[], $2::text[], $3::bigint[]) AS row (key, state, expires)) AS want
                     WHERE bucket.key = want.key";
        let write_parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&columns.0, Type::BYTEA_ARRAY), (&columns.1, Type::TEXT_ARRAY), (&columns.2, Type::INT8_ARRAY)];
        if !columns.0.is_empty() {
            client.execute_typed(write, &write_parameters).await?;
        }
        client.batch_execute("COMMIT").await.map_err(Fault::from_commit)?;
        open.closed = true;
        Ok(Answer { now, before, granted, leased, unreadable })
    }

    /// What is answered, and which buckets changed.
    fn decide(
        &self,
        batch: &Batch,
        unreadable: &[u32],
        opened: &mut [Opened],
        parts: &mut [Parts],
        now: Timestamp,
    ) -> (Answered, Vec<bool>) {
        let mut written: Vec<bool> = parts.iter().map(|parts| parts.changed).collect();
        // Heartbeats keep the real time; a test's clock may run ahead of them.
        let span = if self.options.pinned.is_some() { HOLD_PINNED } else { HOLD };
        let until = signed(now.after(span).as_micros());
        for (place, adjust) in &batch.corrections {
            let place = *place as usize;
            if parts[place].corrected || opened[place].foreign {
                continue;
            }
            let (shape, bucket) = (&batch.buckets[place].1, &mut opened[place]);
            written[place] |= match adjust {
                Adjust::Hold(units) => {
                    fields::renew(shape, bucket, self.id, *units, until);
                    true
                }
                Adjust::Change(Change::Release { units }) if shape.holds() => {
                    fields::hold(shape, bucket, self.id, -signed(*units), until);
                    true
                }
                Adjust::Change(change) => bucket.settle(shape, *change, now),
            };
        }
        // Requests are decided in their own numbers, which the bucket takes on when something is drawn.
        let mut costs = vec![false; opened.len()];
        for part in batch.groups.iter().flat_map(|group| &group.parts) {
            costs[part.bucket as usize] |= part.cost > 0;
        }
        let seen = |((_, shape), bucket): (&(Name, Arc<Shape>), &Opened)| bucket.kept.under(shape.algorithm(), now);
        let found: Vec<Kept> = batch.buckets.iter().zip(&*opened).map(seen).collect();
        let beside = |((found, parts), (_, shape)): ((&Kept, &Parts), &(Name, Arc<Shape>))| {
            parts.beside(shape, found.state().cloned(), now)
        };
        let before: Vec<Option<State>> = found.iter().zip(&*parts).zip(&batch.buckets).map(beside).collect();
        let mut states = before.clone();
        let granted = decide(batch, unreadable, &mut states, now);
        let mut leased = Vec::with_capacity(batch.wishes.len());
        for (place, wish) in &batch.wishes {
            if unreadable.contains(place) {
                leased.push(0);
                continue;
            }
            let place = *place as usize;
            let units = parts[place].lease(&batch.buckets[place].1, *wish, &mut states[place], now);
            costs[place] |= units > 0;
            leased.push(units);
        }
        for (place, (state, found)) in states.into_iter().zip(found).enumerate() {
            if !costs[place] || state == before[place] {
                continue;
            }
            written[place] = true;
            let shape = &batch.buckets[place].1;
            if shape.holds() {
                let units = |state: &Option<State>| match state {
                    Some(State::Held(held)) => signed(held.units),
                    _ => 0,
                };
                let more = units(&state) - units(&before[place]);
                fields::hold(shape, &mut opened[place], self.id, more, until);
            } else {
                opened[place].kept = Kept::from_parts(found.algorithm().clone(), state, found.beyond());
            }
        }
        (Answered { before, granted, leased }, written)
    }
}

impl Link for PostgresLink {
    type Connection = Session;

    async fn connect(&self) -> Result<Session, String> {
        let attempt = async {
            let session = self.session().await?;
            self.housekeep(&session).await.map_err(Trouble::into_words)?;
            Ok(session)
        };
        tokio::time::timeout(CONNECT_WITHIN, attempt).await.unwrap_or_else(|_| Err("no connection in time".into()))
    }

    async fn call(&self, session: &Session, batch: &Batch) -> Result<Answer, Trouble> {
        let mut attempts = 0;
        loop {
            let there = {
                let _turn = session.turn.read().await;
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
                // Rolled back by the server: nothing was charged, so trying again charges once.
                Err(Fault::Conflict(_)) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    let jitter = fastrand::u64(200..1_000 << attempts.min(4));
                    tokio::time::sleep(Duration::from_micros(jitter)).await;
                }
                Err(fault) => return Err(fault.into_trouble(&session.client)),
            }
        }
    }

    fn overlaps(&self) -> bool {
        true
    }

    fn goes_beside(&self, wants: &Wants) -> bool {
        // The transaction has the session for itself.
        self.lane_of(wants) < 2
    }

    fn lane_of(&self, wants: &Wants) -> u32 {
        let leased = |wanted: &Wanted| {
            wanted.shape.lease().is_some() && self.shared.leases.as_ref().is_some_and(|leases| leases.holds(wanted))
        };
        if wants.is_empty() || wants.iter().any(|wanted| leased(wanted) || self.is_elsewhere(&wanted.name)) {
            // Errands of leases, and requests that would find some: the functions leave these to the transaction.
            2
        } else if is_simple(wants) {
            0
        } else if several::carries_wants(wants) {
            1
        } else {
            2
        }
    }

    async fn housekeep(&self, session: &Session) -> Result<(), Trouble> {
        let housekeeping = async {
            let beat = "WITH beat AS (
                            INSERT INTO tollgate_gateways VALUES ($1, clock_timestamp())
                            ON CONFLICT (id) DO UPDATE SET seen = excluded.seen
                        ), gone AS (
                            DELETE FROM tollgate_gateways WHERE seen < clock_timestamp() - interval '1 minute'
                        )
                        SELECT count(*) + 1, tollgate_version() FROM tollgate_gateways
                        WHERE id <> $1 AND seen > clock_timestamp() - interval '10 seconds'";
            let row = self.chore(session, beat, &[(&self.id, Type::INT8)]).await?;
            if row.try_get::<_, i64>(1)? != VERSION {
                return Err(Fault::Replaced);
            }
            let replicas: i64 = row.try_get(0)?;
            self.shared.replicas.store(u32::try_from(replicas).unwrap_or(u32::MAX), Ordering::Relaxed);
            if self.shared.is_audit_due() {
                let _turn = session.turn.write().await;
                self.audited(&Facts::ask(&session.client).await?);
            }
            if self.options.pinned.is_some() {
                // The server's clock says nothing of rows that were dated by another.
                return Ok(());
            }
            let enough = self.options.clock.now().after(SWEEP_WITHIN);
            for turn in 1..=SWEEPS_MAX {
                let from = session.swept.take();
                let sweep = include_str!("sweep.sql");
                let row = self.chore(session, sweep, &[(&from.as_slice(), Type::BYTEA)]).await?;
                let (page, gone): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
                if page < PAGE {
                    // The end of the table.
                    break;
                }
                session.swept.set(row.try_get::<_, Option<Vec<u8>>>(0)?.unwrap_or_default());
                // A flood of callers that came once leaves pages full of them: go on while it pays.
                if (turn >= SWEEPS && gone < PAGE / 2) || self.options.clock.now() >= enough {
                    break;
                }
            }
            Ok::<_, Fault>(())
        };
        match housekeeping.await {
            // Another gateway swept there; there is a next time.
            Ok(()) | Err(Fault::Conflict(_)) => Ok(()),
            Err(fault) => Err(fault.into_trouble(&session.client)),
        }
    }

    fn housekeep_every(&self) -> Duration {
        HOUSEKEEPING
    }
}

/// What a batch is answered: the states that requests find, how many of each group are granted, how many units leased.
struct Answered {
    before: Vec<Option<State>>,
    granted: Vec<u32>,
    leased: Vec<u64>,
}

/// Rolls back when it is dropped before it is closed: a caller who no longer waits must not leave locks behind.
struct OpenTransaction {
    client: Rc<Client>,
    closed: bool,
}

impl OpenTransaction {
    fn new(session: &Session) -> Self {
        Self { client: session.client.clone(), closed: false }
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        if !self.closed && !self.client.is_closed() {
            let client = self.client.clone();
            let mut rollback = Box::pin(async move {
                // If this cannot be sent the connection is gone, and the transaction with it.
                let _ = client.batch_execute("ROLLBACK").await;
            });
            // It is sent by the first poll, which must not wait for its turn as a task: whatever the session is asked
            // next would run, be answered, and be taken back with the transaction.
            if rollback.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tokio::task::spawn_local(rollback);
            }
        }
    }
}

/// Why a statement failed.
#[derive(Debug)]
enum Fault {
    /// It met another's; the server took it back.
    Conflict(String),
    Failed(tokio_postgres::Error),
    Corrupt(&'static str),
    /// The functions are of another version than when we connected: connecting anew makes ours, or says what to do.
    Replaced,
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let conflict = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            // YugabyteDB lets the race of two first inserts through.
            SqlState::UNIQUE_VIOLATION,
        ];
        match error.code() {
            Some(code) if conflict.contains(code) => Self::Conflict(words(&error)),
            _ => Self::Failed(error),
        }
    }
}

impl Fault {
    /// Of a COMMIT: refused by the server is rolled back; anything else may have charged and is not tried again.
    fn from_commit(error: tokio_postgres::Error) -> Self {
        error.into()
    }

    fn into_trouble(self, client: &Client) -> Trouble {
        match self {
            Self::Corrupt(what) => Trouble::Corrupt(what.into()),
            Self::Conflict(error) => Trouble::Refused(error),
            Self::Replaced => Trouble::Lost("the functions were replaced by those of another version".into()),
            Self::Failed(error) => {
                let elsewhere = [
                    SqlState::READ_ONLY_SQL_TRANSACTION,
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                    // The table is gone, as an unlogged one's relation is after a promotion: connecting makes it anew.
                    SqlState::UNDEFINED_TABLE,
                    SqlState::UNDEFINED_FUNCTION,
                ];
                let lost =
                    client.is_closed() || error.is_closed() || error.code().is_none_or(|code| elsewhere.contains(code));
                if lost { Trouble::Lost(words(&error)) } else { Trouble::Refused(words(&error)) }
            }
        }
    }
}

/// An error with its cause; tokio-postgres's own words stop at "db error".
fn words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(error), _) => format!("{} ({})", error.message(), error.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

fn moment(micros: i64) -> Result<Timestamp, Fault> {
    u64::try_from(micros).map(Timestamp::from_micros).map_err(|_| Fault::Corrupt("a moment before the epoch"))
}

fn array_text(row: &[i64]) -> String {
    let numbers: Vec<String> = row.iter().map(i64::to_string).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Both futures, polled in this order: their messages leave in it.
async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        if first.is_none()
            && let std::task::Poll::Ready(output) = a.as_mut().poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let std::task::Poll::Ready(output) = b.as_mut().poll(context)
        {
            second = Some(output);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => std::task::Poll::Ready((a, b)),
            (a, b) => {
                (first, second) = (a, b);
                std::task::Poll::Pending
            }
        }
    })
    .await
}
