//! The transaction that decides what the functions do not: every algorithm of the core, leases,
//! corrections.

use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::fault::Fault;
use super::{PostgresLink, Session};
use crate::batch::{Answer, Batch};
use crate::postgres::mark;
use crate::sql::decide::{Locked, key_order};
use crate::sql::mark::{Mark, RECEIPT_KEPT, RESET_KEPT, receipt_key, reset_key};
use crate::sql::{ROW_MARGIN, joined};
use crate::wire_form::{Name, signed};
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
        let answer = self
            .until_commit(session, batch)
            .await
            .map_err(|fault| fault.before_commit(client))?;
        batch.receipt.committing();
        // An error from the server means a rollback; any other failure may have charged and is not
        // retried.
        client.batch_execute("COMMIT").await?;
        open.closed = true;
        Ok(answer)
    }

    /// All of it but its COMMIT.
    async fn until_commit(&self, session: &Session, batch: &Batch) -> Result<Answer, Fault> {
        let client = &session.client;
        let order = key_order(batch);
        let keys: Vec<[u8; 16]> = batch
            .buckets
            .iter()
            .map(|(name, _)| name.hash.to_be_bytes())
            .collect();
        let sorted: Vec<&[u8]> = order
            .iter()
            .map(|&bucket| keys[bucket].as_slice())
            .collect();
        let (begin, pinned) = (self.begin(), self.base.pinned());
        let insert = "INSERT INTO tollgate_buckets (key, expires) SELECT key, 0 FROM unnest($1::bytea[]) AS want (key)
                      ORDER BY key ON CONFLICT (key) DO NOTHING";
        let lock = "SELECT key, CASE
                        WHEN kind = 1 THEN ARRAY[1, kind, epoch, a, b, c, level, at]
                        WHEN kind <= 3 THEN ARRAY[1, kind, epoch, a, level, at]
                        WHEN kind > 3 THEN ARRAY[1, kind, epoch] || more
                    END FROM tollgate_buckets WHERE key = ANY ($1::bytea[]) ORDER BY key FOR UPDATE";
        let clock =
            "SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";
        let keys_parameter: [(&(dyn ToSql + Sync), Type); 1] = [(&sorted, Type::BYTEA_ARRAY)];
        let clock_parameter: [(&(dyn ToSql + Sync), Type); 1] = [(&pinned, Type::INT8)];
        // One round trip: the server handles them in this order.
        let ((begun, (receipt, inserted)), ((rows, now), (marked, resets))) = join(
            join(
                client.batch_execute(&begin),
                join(
                    write_receipt(client, self.base.decider.id, batch, pinned),
                    client.execute_typed(insert, &keys_parameter),
                ),
            ),
            join(
                join(
                    client.query_typed(lock, &keys_parameter),
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
        // (A number may be missing from a row.)
        let numbers = |row: &Row| row.try_get(1).map_err(|_| "a bucket's row lacks a number");
        let resets = resets?;
        let locked = Locked::of(batch, &order, rows.iter().map(numbers), &resets, mark, now)
            .map_err(Fault::Conflict)?;
        let decided = self.base.decide(batch, locked, false);
        if !decided.reset.is_empty() {
            let reset = decided.reset.iter();
            let reset = reset.map(|&place| reset_key(batch.buckets[place].0.hash).to_be_bytes());
            let reset: Vec<_> = reset.map(Vec::from).collect();
            let (at, expires) = (
                signed(now.as_micros()),
                signed(now.after(RESET_KEPT).as_micros()),
            );
            let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                (&reset, Type::BYTEA_ARRAY),
                (&at, Type::INT8),
                (&expires, Type::INT8),
            ];
            client.execute_typed(RESET, &parameters).await?;
        }
        let mut columns: (Vec<&[u8]>, Vec<Option<String>>, Vec<i64>) = Default::default();
        for (bucket, row) in decided.written {
            columns.0.push(&keys[bucket]);
            // Rows differ in length, which SQL's nested arrays do not support: each is sent as an
            // array's text.
            columns.1.push(row.as_ref().map(|(row, _)| array_text(row)));
            columns
                .2
                .push(row.map_or(0, |(_, gone)| gone.saturating_add(ROW_MARGIN)));
        }
        let write = "UPDATE tollgate_buckets AS bucket SET
                         kind = want.state[2], epoch = want.state[3],
                         a = CASE WHEN want.state[2] <= 3 THEN want.state[4] END,
                         b = CASE WHEN want.state[2] = 1 THEN want.state[5] END,
                         c = CASE WHEN want.state[2] = 1 THEN want.state[6] END,
                         level = CASE WHEN want.state[2] = 1 THEN want.state[7]
                                      WHEN want.state[2] <= 3 THEN want.state[5] END,
                         at = CASE WHEN want.state[2] = 1 THEN want.state[8]
                                   WHEN want.state[2] <= 3 THEN want.state[6] END,
                         more = CASE WHEN want.state[2] > 3 THEN want.state[4:] END,
                         expires = want.expires
                     FROM (SELECT key, state::bigint[] AS state, expires
                           FROM unnest($1::bytea[], $2::text[], $3::bigint[]) AS row (key, state, expires)) AS want
                     WHERE bucket.key = want.key";
        let write_parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&columns.0, Type::BYTEA_ARRAY),
            (&columns.1, Type::TEXT_ARRAY),
            (&columns.2, Type::INT8_ARRAY),
        ];
        if !columns.0.is_empty() {
            client.execute_typed(write, &write_parameters).await?;
        }
        Ok(decided.answer)
    }

    /// The mark of the data that a transaction sees; `None`: no limit of the batch needs it. It is
    /// read after the buckets are locked, in the same table, so the table cannot be emptied in
    /// between.
    async fn marked(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Option<Vec<Row>>, tokio_postgres::Error> {
        if !batch.buckets.iter().any(|(_, shape)| shape.drains()) {
            return Ok(None);
        }
        session
            .client
            .query_typed(mark::READ, &[(&mark::KEY, Type::BYTEA)])
            .await
            .map(Some)
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
        let row = session
            .client
            .query_typed_one(mark::MAKE, &mark::parameters(&print, &now))
            .await?;
        Ok(mark::of(&row)?)
    }
}

const RESET: &str = "INSERT INTO tollgate_buckets (key, at, expires)
     SELECT DISTINCT want.key, $2, $3 FROM unnest($1) AS want (key)
     ON CONFLICT (key) DO UPDATE SET at = excluded.at, expires = excluded.expires";

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

/// Writes the number, unless it or a later one is there. The row is locked either way; an earlier
/// transaction with it is waited for.
const RECEIPT: &str = "INSERT INTO tollgate_buckets AS receipt (key, expires, more)
     VALUES ($1, coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + $4, ARRAY[$2])
     ON CONFLICT (key) DO UPDATE SET expires = excluded.expires, more = excluded.more
     WHERE coalesce(receipt.more[1] < excluded.more[1], true)";

/// Writes the receipt of `batch`, if it has corrections; returns whether it was there already: they were
/// made. `pinned`: the moment of a test.
async fn write_receipt(
    client: &Client,
    gateway: i64,
    batch: &Batch,
    pinned: Option<i64>,
) -> Result<bool, tokio_postgres::Error> {
    if batch.receipt.number == 0 {
        return Ok(false);
    }
    let key = receipt_key(gateway);
    let key = key.as_slice();
    let (number, kept) = (signed(batch.receipt.number), signed(RECEIPT_KEPT.0));
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&key, Type::BYTEA),
        (&number, Type::INT8),
        (&pinned, Type::INT8),
        (&kept, Type::INT8),
    ];
    Ok(client.execute_typed(RECEIPT, &parameters).await? == 0)
}

/// Rolls back if it is dropped before it is closed: a request that no longer waits must not leave
/// locks behind.
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
