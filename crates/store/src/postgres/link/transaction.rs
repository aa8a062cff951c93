//! The transaction for what the functions do not decide: every algorithm, leases, corrections.

use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::fault::Fault;
use super::{PostgresLink, Session};
use crate::batch::{Answer, Batch};
use crate::postgres::engine::Engine;
use crate::postgres::mark;
use crate::sql::decide::{Locked, Stored, key_order};
use crate::sql::mark::{Mark, RECEIPT_KEPT, RESET_KEPT, receipt_key, reset_key};
use crate::sql::{ROW_MARGIN, joined, pause_before};
use crate::wire_form::{Name, TOKEN_BUCKET, signed};
use tollgate_limit::Timestamp;

impl PostgresLink {
    /// Decides everything else: locks in key order, reads the clock after the locks, decides by the
    /// pure core, writes once.
    pub(super) async fn transaction(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Answer, Fault> {
        let client = &session.client;
        let mut open = OpenTransaction::new(session);
        let mut receipt = match batch.receipt.number {
            0 => None,
            number => Some(ReceiptRow::new(receipt_key(self.base.decider.id), number)),
        };
        let ready = self.until_commit(session, batch, receipt.as_ref()).await;
        let (answer, mut rows) = ready.map_err(|fault| fault.before_commit(client))?;
        if receipt.is_none() && session.engine.spans() && !rows.keys.is_empty() {
            let own = session.next_receipt();
            rows.add_receipt(&own, answer.now);
            receipt = Some(own);
        }
        batch.receipt.committing();
        // One round trip. After an error of the first, COMMIT rolls everything back.
        let (written, committed) = join(
            rows.write(client, session.engine),
            client.batch_execute("COMMIT"),
        )
        .await;
        open.closed = committed.is_ok();
        written?;
        self.outcome(session, committed, receipt).await?;
        Ok(answer)
    }

    /// Whether a transaction was made, by the response to its COMMIT. In a database that spans machines
    /// it may be made although its COMMIT failed with a conflict: the receipt that it wrote says so.
    pub(super) async fn outcome(
        &self,
        session: &Session,
        committed: Result<(), tokio_postgres::Error>,
        receipt: Option<ReceiptRow>,
    ) -> Result<(), Fault> {
        match (committed.map_err(Fault::from), receipt) {
            (Err(Fault::Conflict(words)), Some(receipt)) if session.engine.spans() => {
                match self.was_made(session, &receipt, &words).await? {
                    true => Ok(()),
                    false => Err(Fault::Conflict(words)),
                }
            }
            // The server's other errors mean a rollback; if the session ended, it may be made.
            (outcome, _) => outcome,
        }
    }

    /// Whether a transaction was made whose COMMIT failed with a conflict. The row of its receipt is
    /// written: a commit that is still under way is waited for, or conflicts with this one and fails,
    /// also where reading locks nothing.
    async fn was_made(
        &self,
        session: &Session,
        receipt: &ReceiptRow,
        why: &str,
    ) -> Result<bool, Fault> {
        let read = "INSERT INTO tollgate_buckets AS receipt (key, expires) VALUES ($1, 0)
                    ON CONFLICT (key) DO UPDATE SET expires = receipt.expires RETURNING more";
        let options = &self.base.options;
        let until = options.clock.now().after(options.answer_within);
        let mut attempts = 0;
        loop {
            let parameters = [(&receipt.key.as_slice() as _, Type::BYTEA)];
            let rows = session.client.query_typed(read, &parameters).await;
            match rows.map_err(Fault::from) {
                Ok(rows) => {
                    let found = rows.first().map(|row| row.try_get::<_, Option<String>>(0));
                    return Ok(found.transpose()?.flatten() == Some(receipt.text()));
                }
                Err(Fault::Conflict(_)) if options.clock.now() < until => {
                    attempts += 1;
                    tokio::time::sleep(pause_before(attempts)).await;
                }
                Err(_) => return Err(Fault::Doubtful(why.into())),
            }
        }
    }

    /// All of it but the rows to write and its COMMIT.
    async fn until_commit(
        &self,
        session: &Session,
        batch: &Batch,
        receipt: Option<&ReceiptRow>,
    ) -> Result<(Answer, Rows), Fault> {
        let client = &session.client;
        let order = key_order(batch);
        let names = batch.buckets.iter().map(|(name, _)| name);
        let keys: Vec<[u8; 16]> = names.map(|name| name.hash.to_be_bytes()).collect();
        let sorted = order.iter().map(|&bucket| keys[bucket].as_slice());
        let sorted: Vec<&[u8]> = sorted.collect();
        let (begin, pinned) = (self.begin(session.engine), self.base.pinned());
        let insert = "INSERT INTO tollgate_buckets (key, expires) SELECT key, 0 FROM unnest($1::bytea[]) AS want (key)
                      ORDER BY key ON CONFLICT (key) DO NOTHING";
        let lock = format!(
            "SELECT key, kind, epoch, a, b, c, level, at, more::text FROM tollgate_buckets
             WHERE key = ANY ($1::bytea[]) ORDER BY key {}",
            session.engine.for_update()
        );
        let clock =
            "SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";
        let keys_parameter: [(&(dyn ToSql + Sync), Type); 1] = [(&sorted, Type::BYTEA_ARRAY)];
        let clock_parameter: [(&(dyn ToSql + Sync), Type); 1] = [(&pinned, Type::INT8)];
        let write_receipt = async {
            match receipt {
                Some(receipt) => receipt.write(client, session.engine, pinned).await,
                None => Ok(false),
            }
        };
        // One round trip: the server handles them in this order.
        let ((begun, (receipt, inserted)), ((rows, now), (marked, resets))) = join(
            join(
                client.batch_execute(&begin),
                join(write_receipt, client.execute_typed(insert, &keys_parameter)),
            ),
            join(
                join(
                    client.query_typed(&lock, &keys_parameter),
                    client.query_typed_one(clock, &clock_parameter),
                ),
                join(self.marked(session, batch), resets(client, batch)),
            ),
        )
        .await;
        begun?;
        // (The first to be locked: only calls of this gateway wait for it.)
        batch.receipt.found(receipt?);
        inserted?;
        let (rows, clock) = (rows?, now?);
        let now = moment(clock.try_get(0)?)?;
        let mark = self.mark_at(session, marked?, now).await?;
        let resets = resets?;
        let locked = Locked::of(batch, &order, rows.iter().map(numbers), &resets, mark, now)
            .map_err(Fault::Conflict)?;
        let decided = self.base.decide(batch, locked, false);
        let mut rows = Rows::default();
        for (bucket, row) in &decided.written {
            rows.add_bucket(&keys[*bucket], row.as_ref());
        }
        for &bucket in &decided.reset {
            let key = reset_key(batch.buckets[bucket].0.hash).to_be_bytes();
            rows.add_reset(
                &key,
                signed(now.as_micros()),
                signed(now.after(RESET_KEPT).as_micros()),
            );
        }
        Ok((decided.answer, rows))
    }

    /// The mark of the data that a transaction sees; `None`: no limit of the batch needs it. It is
    /// read after the buckets are locked, in the same table, so the table cannot be emptied in between.
    async fn marked(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Option<Vec<Row>>, tokio_postgres::Error> {
        if !batch.buckets.iter().any(|(_, shape)| shape.drains()) {
            return Ok(None);
        }
        // (Before the transaction sees the data: what a heartbeat has raised since is not missed.)
        let seen = self.seen(session);
        let (read, parameters) = mark::read(seen.as_ref());
        let read = session.client.query_typed(read, &parameters).await;
        read.map(Some)
    }

    /// Reads that mark, and creates it if there is no valid one.
    async fn mark_at(
        &self,
        session: &Session,
        read: Option<Vec<Row>>,
        now: Timestamp,
    ) -> Result<Mark, Fault> {
        let Some(read) = read else {
            return Ok(Mark {
                print: session.print.get(),
                since: 0,
            });
        };
        if let Some(row) = read.first() {
            let mark = mark::of(row)?;
            if !mark.is_ahead(now) {
                return Ok(mark);
            }
        }
        let (print, now) = (Mark::new_print(), Some(signed(now.as_micros())));
        let seen = self.seen(session);
        let (make, parameters) = mark::make(&print, &now, seen.as_ref());
        let row = session.client.query_typed_one(make, &parameters).await?;
        Ok(mark::of(&row)?)
    }
}

/// The rows that a transaction writes, column by column.
#[derive(Default)]
struct Rows {
    keys: Vec<Vec<u8>>,
    expires: Vec<i64>,
    /// Kind, epoch, a, b, c, level, at.
    numbers: [Vec<Option<i64>>; 7],
    more: Vec<Option<String>>,
}

impl Rows {
    fn add(&mut self, key: &[u8], expires: i64, numbers: [Option<i64>; 7], more: Option<String>) {
        self.keys.push(key.to_vec());
        self.expires.push(expires);
        for (column, number) in self.numbers.iter_mut().zip(numbers) {
            column.push(number);
        }
        self.more.push(more);
    }

    /// The row of a bucket, and when it may be deleted; `None`: the bucket is full.
    fn add_bucket(&mut self, key: &[u8], row: Option<&(Vec<i64>, i64)>) {
        let (row, expires) = match row {
            Some((row, gone)) => (row.as_slice(), gone.saturating_add(ROW_MARGIN)),
            None => (&[][..], 0),
        };
        let (numbers, more) = match *row {
            [_, TOKEN_BUCKET, epoch, a, b, c, level, at] => {
                ([TOKEN_BUCKET, epoch, a, b, c, level, at].map(Some), None)
            }
            [_, kind, epoch, a, level, at] if kind <= STEPPED_LAST => (
                [
                    Some(kind),
                    Some(epoch),
                    Some(a),
                    None,
                    None,
                    Some(level),
                    Some(at),
                ],
                None,
            ),
            [_, kind, epoch, ref more @ ..] => (
                [Some(kind), Some(epoch), None, None, None, None, None],
                Some(array_text(more)),
            ),
            _ => ([None; 7], None),
        };
        self.add(key, expires, numbers, more);
    }

    /// The moment of a bucket's reset.
    fn add_reset(&mut self, key: &[u8], at: i64, expires: i64) {
        if !self.keys.iter().any(|known| known == key) {
            self.add(
                key,
                expires,
                [None, None, None, None, None, None, Some(at)],
                None,
            );
        }
    }

    fn add_receipt(&mut self, receipt: &ReceiptRow, now: Timestamp) {
        let expires = signed(now.after(RECEIPT_KEPT).as_micros());
        self.add(&receipt.key, expires, [None; 7], Some(receipt.text()));
    }

    async fn write(&self, client: &Client, engine: Engine) -> Result<(), tokio_postgres::Error> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let write = format!(
            "INSERT INTO tollgate_buckets AS bucket (key, expires, kind, epoch, a, b, c, level, at, more)
             SELECT want.key, want.expires, want.kind, want.epoch, want.a, want.b, want.c, want.level, want.at,
                    CAST(want.more AS {})
             FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                         $7::bigint[], $8::bigint[], $9::bigint[], $10::text[])
                 AS want (key, expires, kind, epoch, a, b, c, level, at, more)
             ON CONFLICT (key) DO UPDATE SET
                 expires = excluded.expires, kind = excluded.kind, epoch = excluded.epoch, a = excluded.a,
                 b = excluded.b, c = excluded.c, level = excluded.level, at = excluded.at, more = excluded.more",
            engine.more()
        );
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.expires, Type::INT8_ARRAY),
        ];
        for column in &self.numbers {
            parameters.push((column, Type::INT8_ARRAY));
        }
        parameters.push((&self.more, Type::TEXT_ARRAY));
        client.execute_typed(&write, &parameters).await.map(drop)
    }
}

/// The last kind whose numbers have columns.
const STEPPED_LAST: i64 = 3;

/// The numbers of a row: version, kind, epoch, and the kind's own.
fn numbers(row: &Row) -> Stored {
    const LACKS: &str = "a bucket's row lacks a number";
    let column = |place| row.try_get::<_, Option<i64>>(place).map_err(|_| LACKS);
    let Some(kind) = column(1)? else {
        return Ok(None);
    };
    let mut numbers = vec![1, kind];
    let own: &[usize] = match kind {
        TOKEN_BUCKET => &[2, 3, 4, 5, 6, 7],
        ..=STEPPED_LAST => &[2, 3, 6, 7],
        _ => &[2],
    };
    for &place in own {
        numbers.push(column(place)?.ok_or(LACKS)?);
    }
    if kind > STEPPED_LAST {
        let more: Option<&str> = row.try_get(8).map_err(|_| LACKS)?;
        let more = more.ok_or(LACKS)?.trim_matches(['{', '}']);
        for number in more.split(',').filter(|number| !number.is_empty()) {
            numbers.push(number.parse().map_err(|_| LACKS)?);
        }
    }
    Ok(Some(numbers))
}

/// The last resets of the batch's buckets, by the keys of their rows, if the batch concerns some. They
/// are read after the buckets are locked: whoever writes one has locked its bucket.
async fn resets(
    client: &Client,
    batch: &Batch,
) -> Result<HashMap<u128, Timestamp>, tokio_postgres::Error> {
    if !batch.concerns_resets() {
        return Ok(HashMap::new());
    }
    let key = |(name, _): &(Name, _)| reset_key(name.hash).to_be_bytes().to_vec();
    let keys: Vec<_> = batch.buckets.iter().map(key).collect();
    let read = "SELECT key, at FROM tollgate_buckets WHERE key = ANY ($1) AND at IS NOT NULL";
    let rows = client
        .query_typed(read, &[(&keys, Type::BYTEA_ARRAY)])
        .await?;
    let mut resets = HashMap::with_capacity(rows.len());
    for row in rows {
        let key = <[u8; 16]>::try_from(row.try_get::<_, &[u8]>(0)?);
        if let (Ok(key), Some(at)) = (key, crate::wire_form::moment(row.try_get(1)?)) {
            resets.insert(u128::from_be_bytes(key), at);
        }
    }
    Ok(resets)
}

/// The row that a transaction writes so that it can be found out later whether it was made. Later
/// transactions of the same key have larger numbers.
#[derive(Debug)]
pub(super) struct ReceiptRow {
    key: [u8; 12],
    number: u64,
}

impl ReceiptRow {
    pub(super) fn new(key: [u8; 12], number: u64) -> Self {
        Self { key, number }
    }

    /// The number as it is in the row.
    fn text(&self) -> String {
        array_text(&[signed(self.number)])
    }

    /// Writes the number, unless it or a later one is there; returns whether it was there: the
    /// transaction was made. The row is locked either way; an earlier transaction with it is waited
    /// for. `pinned`: the moment of a test.
    pub(super) async fn write(
        &self,
        client: &Client,
        engine: Engine,
        pinned: Option<i64>,
    ) -> Result<bool, tokio_postgres::Error> {
        let (key, number, kept) = (self.key.as_slice(), self.text(), signed(RECEIPT_KEPT.0));
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&key, Type::BYTEA),
            (&number, Type::TEXT),
            (&pinned, Type::INT8),
            (&kept, Type::INT8),
        ];
        let write = format!(
            "INSERT INTO tollgate_buckets AS receipt (key, expires, more)
             VALUES ($1, coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + $4, CAST($2 AS {}))
             ON CONFLICT (key) DO UPDATE SET expires = excluded.expires, more = excluded.more
             WHERE coalesce((receipt.more::bigint[])[1] < (excluded.more::bigint[])[1], true)",
            engine.more()
        );
        Ok(client.execute_typed(&write, &parameters).await? == 0)
    }
}

/// Rolls back if it is dropped before it is closed, so that it leaves no locks behind.
pub(super) struct OpenTransaction {
    client: Rc<Client>,
    pub(super) closed: bool,
}

impl OpenTransaction {
    pub(super) fn new(session: &Session) -> Self {
        Self {
            client: session.client.clone(),
            closed: false,
        }
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        if !self.closed && !self.client.is_closed() {
            let client = self.client.clone();
            let mut rollback = Box::pin(async move {
                // If this cannot be sent, the connection is gone, and the transaction with it.
                let _ = client.batch_execute("ROLLBACK").await;
            });
            // The first poll sends it, without waiting to be scheduled as a task: otherwise the
            // session's next statement would run inside the transaction and be rolled back with it.
            if rollback
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
            {
                tokio::task::spawn_local(rollback);
            }
        }
    }
}

fn moment(micros: i64) -> Result<Timestamp, Fault> {
    crate::wire_form::moment(micros).ok_or(Fault::Corrupt("a moment before the epoch"))
}

fn array_text(row: &[i64]) -> String {
    format!("{{{}}}", joined(row))
}

/// Polls both futures in this order, so that their messages are sent in it.
pub(super) async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    tokio::join!(biased; a, b)
}
