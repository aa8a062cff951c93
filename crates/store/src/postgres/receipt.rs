//! The receipt of a gateway's corrections in a PostgreSQL: see [`crate::sql::receipt`].

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::batch::Batch;
use crate::sql::receipt::{KEPT, key};
use crate::wire_form::signed;

/// Writes the number, unless it or a later one is there. The row is locked either way; an earlier
/// transaction with it is waited for.
const WRITE: &str = "INSERT INTO tollgate_buckets AS receipt (key, expires, more)
     VALUES ($1, coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + $4, ARRAY[$2])
     ON CONFLICT (key) DO UPDATE SET expires = excluded.expires, more = excluded.more
     WHERE coalesce(receipt.more[1] < excluded.more[1], true)";

/// Writes the receipt of `batch`, if it has corrections; returns whether it was there already: they were
/// made. `pinned`: the moment of a test.
pub(super) async fn write(
    client: &Client,
    gateway: i64,
    batch: &Batch,
    pinned: Option<i64>,
) -> Result<bool, tokio_postgres::Error> {
    if batch.receipt.number == 0 {
        return Ok(false);
    }
    let key = key(gateway);
    let key = key.as_slice();
    let (number, kept) = (signed(batch.receipt.number), signed(KEPT.0));
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&key, Type::BYTEA),
        (&number, Type::INT8),
        (&pinned, Type::INT8),
        (&kept, Type::INT8),
    ];
    Ok(client.execute_typed(WRITE, &parameters).await? == 0)
}
