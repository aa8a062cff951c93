//! The transaction in which the pure core decides what the procedure does not: every algorithm,
//! leases, corrections; and everything on Galera.
//! Three texts of statements: the first locks the rows in key order and reads them and the clock, the
//! second writes the changed rows, the third commits.

use std::collections::HashMap;

use mysql_async::Row;

use super::client::Client;
use super::fault::Fault;
use super::link::{MysqlLink, Session, number};
use super::mark;
use crate::batch::{Answer, Batch};
use crate::sql::decide::{Locked, Stored, key_order};
use crate::sql::mark::{Mark, RECEIPT_KEPT, RESET_KEPT, receipt_key, reset_key};
use crate::sql::{ROW_MARGIN, joined};
use crate::wire_form::{TOKEN_BUCKET, signed};
use tollgate_limit::{Timestamp, hex};

/// Opens a transaction with the settings we need, whatever the session's defaults.
pub(super) const BEGIN: &str =
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ WRITE";

/// Without a transaction, the subquery of two rows is an error.
const ZERO_IN_A_TRANSACTION: &str =
    "/*M! IF(@@in_transaction, */ 0 /*M! , (SELECT 1 UNION SELECT 2)) */";

impl MysqlLink {
    /// Decides a batch. `scarce`: the procedure left it, because a bucket has too little for the
    /// several groups that draw from it. It is likely to leave the next batches, too.
    pub(super) async fn transaction(
        &self,
        session: &Session,
        batch: &Batch,
        scarce: bool,
    ) -> Result<Answer, Fault> {
        let client = &session.client;
        let order = key_order(batch);
        let names = batch.buckets.iter().map(|(name, _)| name);
        let keys: Vec<String> = names.map(|name| format!("X'{:032x}'", name.hash)).collect();
        let new = joined(order.iter().map(|&bucket| format!("({},0)", keys[bucket])));
        let known = joined(order.iter().map(|&bucket| &keys[bucket]));
        // An INSERT that meets a row locks it for itself; INSERT IGNORE would only share the lock,
        // and two gateways would deadlock. The clock is a statement of its own: a statement's clock
        // stands still while it waits for a lock.
        let receipt_key = format!("X'{}'", hex::digits(&receipt_key(self.base.decider.id)));
        let has_receipt = batch.receipt.number > 0;
        // Locked first: only calls of this gateway wait for it.
        let receipt = if has_receipt {
            format!(
                "INSERT INTO tollgate_buckets (bucket, expires) VALUES ({receipt_key},0)
                     ON DUPLICATE KEY UPDATE bucket = VALUES(bucket);
                 SELECT CAST(more AS SIGNED) FROM tollgate_buckets WHERE bucket = {receipt_key} FOR UPDATE;"
            )
        } else {
            String::new()
        };
        let reset_key =
            |bucket: usize| format!("X'{:032x}'", reset_key(batch.buckets[bucket].0.hash));
        let resets = match batch.concerns_resets() {
            true => joined((0..batch.buckets.len()).map(reset_key)),
            false => String::new(),
        };
        let drains = batch.buckets.iter().any(|(_, shape)| shape.drains());
        let text = format!(
            "{BEGIN}; {receipt}
             INSERT INTO tollgate_buckets (bucket, expires) VALUES {new} ON DUPLICATE KEY UPDATE bucket = VALUES(bucket);
             SELECT kind, print, a, b, c, level - price * taken, at, more FROM tollgate_buckets WHERE bucket IN ({known})
                 ORDER BY bucket FOR UPDATE;
             SELECT {}; {} {}",
            self.moment(),
            // Whoever writes one has locked its bucket.
            match resets.as_str() {
                "" => String::new(),
                keys => format!(
                    "SELECT HEX(bucket), at FROM tollgate_buckets WHERE bucket IN ({keys}) AND at IS NOT NULL;"
                ),
            },
            // Read after the locks in the same table, so that it cannot be emptied in between.
            if drains { mark::read(session.cluster.as_deref()) } else { "DO 0".into() }
        );
        let mut open = OpenTransaction::new(client);
        let sets = client.run(text).await.map_err(Fault::from);
        let sets = sets.map_err(Fault::before_commit)?;
        let mut sets = sets.iter();
        if has_receipt {
            let row = sets.next().and_then(|rows| rows.first());
            let row = row.ok_or(Fault::Corrupt("not a response of a receipt"))?;
            let last = number(row, 0)?.unwrap_or(0);
            batch.receipt.found(last >= signed(batch.receipt.number));
        }
        let (rows, clock) = (sets.next(), sets.next());
        let (Some(rows), Some([clock])) = (rows, clock.map(Vec::as_slice)) else {
            return Err(Fault::Corrupt("not a response of locked rows"));
        };
        let now = number(clock, 0)?.and_then(crate::wire_form::moment);
        let now = now.ok_or(Fault::Corrupt("a moment before the epoch"))?;
        let resets = match resets.is_empty() {
            true => HashMap::new(),
            false => (sets.next().into_iter().flatten())
                .filter_map(reset)
                .collect(),
        };
        let mark = match sets.next() {
            None => Mark {
                print: session.print.get(),
                since: 0,
            },
            Some(rows) => mark::of(rows)?
                .filter(|mark| !mark.is_ahead(now))
                .ok_or(Fault::Unmarked)?,
        };
        let locked = Locked::of(batch, &order, rows.iter().map(numbers), &resets, mark, now)
            .map_err(Fault::Conflict)?;
        let decided = self.base.decide(batch, locked, scarce);
        if decided.written.is_empty() && decided.reset.is_empty() {
            // Rows that were only made to be locked are rolled back. No request waits for it.
            drop(open);
            return Ok(decided.answer);
        }
        // Rows without their last column.
        let row = |(bucket, row): &(usize, Option<_>)| {
            format!("{},{},0", keys[*bucket], columns(row.as_ref()))
        };
        let receipt = has_receipt.then(|| {
            let expires = signed(now.after(RECEIPT_KEPT).as_micros());
            let number = batch.receipt.number;
            format!("{receipt_key},{expires},NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{number}',0")
        });
        let reset = decided.reset.iter().map(|&bucket| {
            let (at, expires) = (now.as_micros(), now.after(RESET_KEPT).as_micros());
            let key = reset_key(bucket);
            format!("{key},{expires},NULL,NULL,NULL,NULL,NULL,NULL,{at},NULL,0")
        });
        let rows = decided.written.iter().map(row).chain(reset).chain(receipt);
        let rows = rows.collect::<Vec<_>>().join(",0),(");
        batch.receipt.committing();
        let text = format!(
            "INSERT INTO tollgate_buckets (bucket, expires, kind, print, a, b, c, level, at, more, price, taken)
             VALUES ({rows},{ZERO_IN_A_TRANSACTION})
             ON DUPLICATE KEY UPDATE
                 expires = VALUES(expires), kind = VALUES(kind), print = VALUES(print),
                 a = VALUES(a), b = VALUES(b), c = VALUES(c), level = VALUES(level), at = VALUES(at), more = VALUES(more),
                 price = 0, taken = 0"
        );
        // COMMIT is a text of its own. If a Galera node takes the transaction back between two
        // statements of one text, for a row that another node has changed, COMMIT reports success
        // although nothing is committed (seen with MariaDB 10.11). For the same reason the rows are
        // written only in a transaction.
        let written = client.run(text).await.map_err(Fault::from);
        written.map_err(Fault::before_commit)?;
        client.run("COMMIT").await?;
        open.closed = true;
        Ok(decided.answer)
    }
}

fn reset(row: &Row) -> Option<(u128, Timestamp)> {
    let key = row.get_opt::<String, _>(0)?.ok()?;
    let at = crate::wire_form::moment(number(row, 1).ok()??)?;
    Some((u128::from_str_radix(&key, 16).ok()?, at))
}

/// The numbers of a row: version, kind, print, and the kind's own.
fn numbers(row: &Row) -> Stored {
    const LACKS: &str = "a bucket's row lacks a number";
    let column = |place| number(row, place).map_err(|_| LACKS);
    let Some(kind) = column(0)? else {
        return Ok(None);
    };
    let mut numbers = vec![1, kind];
    let own = if kind == TOKEN_BUCKET { 1..7 } else { 1..2 };
    for place in own {
        numbers.push(column(place)?.ok_or(LACKS)?);
    }
    let more: Option<String> = row.get_opt(7).and_then(Result::ok).flatten();
    for number in more.iter().flat_map(|more| more.split(',')) {
        numbers.push(number.parse().map_err(|_| LACKS)?);
    }
    Ok(Some(numbers))
}

/// The columns of a row after its key.
fn columns(row: Option<&(Vec<i64>, i64)>) -> String {
    let Some((row, gone)) = row else {
        return "0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL".into();
    };
    let (head, own) = row.split_at(3);
    let (bucket, more) = own.split_at(if head[1] == TOKEN_BUCKET { 5 } else { 0 });
    let expires = gone.saturating_add(ROW_MARGIN);
    let bucket = match bucket {
        [] => "NULL,NULL,NULL,NULL,NULL".into(),
        bucket => joined(bucket),
    };
    let more = match more {
        [] => "NULL".into(),
        more => format!("'{}'", joined(more)),
    };
    format!("{expires},{},{},{bucket},{more}", head[1], head[2])
}

/// Rolls back if it is dropped before it is closed, so that it leaves no locks behind.
pub(super) struct OpenTransaction<'a> {
    client: &'a Client,
    pub(super) closed: bool,
}

impl<'a> OpenTransaction<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self {
            client,
            closed: false,
        }
    }
}

impl Drop for OpenTransaction<'_> {
    fn drop(&mut self) {
        if !self.closed {
            // Queued before the session's next statements. If it cannot be sent, the session is
            // gone, and the transaction with it.
            drop(self.client.send("ROLLBACK".into()));
        }
    }
}
