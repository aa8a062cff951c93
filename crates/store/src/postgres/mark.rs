//! The mark of a PostgreSQL's data.
//!
//! It is valid only for the process that created it (a promoted standby is another), in the table
//! it was created in, as the row it was written as (a row of a restored dump is not), and while its
//! twin is among the heartbeats, which are never logged. A crash that may have cost a logged table
//! its last charges also removes the twin. If any of this fails, grants may have been forgotten,
//! and a new mark records that.
//!
//! The row is known by its system columns. YugabyteDB and CockroachDB lack these columns: the gateway
//! reports the error of such a database, and does not use it.

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

pub(super) use crate::sql::mark::KEY;
use crate::sql::mark::{Mark, log_new};

/// The mark, if it is valid.
macro_rules! good {
    () => {
        "mark.a = (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
         AND mark.b = mark.tableoid::bigint AND mark.level = mark.xmin::text::bigint
         AND EXISTS (SELECT FROM tollgate_gateways WHERE id = -mark.epoch)"
    };
}

/// Its row, joined to that of another query; no row: there is none, or it is not valid.
pub(super) const JOIN: &str = concat!(
    "LEFT JOIN tollgate_buckets AS mark ON mark.key = 'tollgate' AND ",
    good!()
);

/// Reads the mark where no other query is joined to it.
pub(super) const READ: &str = concat!(
    "SELECT mark.epoch, mark.at, false FROM tollgate_buckets AS mark WHERE mark.key = $1 AND ",
    good!()
);

/// Creates a valid one, dated now at the latest: now, unless another gateway was faster.
pub(super) const MAKE: &str = concat!(
    "WITH made AS (
         INSERT INTO tollgate_buckets AS mark (key, expires, epoch, at, a, b, level)
         VALUES ($1, 9223372036854775807, $2, coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
                 (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
                 'tollgate_buckets'::regclass::oid::bigint, txid_current() & 4294967295)
         ON CONFLICT (key) DO UPDATE SET
             expires = excluded.expires, a = excluded.a, b = excluded.b, level = excluded.level,
             epoch = CASE WHEN ",
    good!(),
    " THEN mark.epoch ELSE excluded.epoch END,
             at = CASE WHEN ",
    good!(),
    " THEN least(mark.at, excluded.at) ELSE excluded.at END
         RETURNING epoch, at
     ), twin AS (
         INSERT INTO tollgate_gateways SELECT -epoch, clock_timestamp() FROM made ON CONFLICT (id) DO NOTHING
     ), gone AS (
         DELETE FROM tollgate_gateways WHERE id < 0 AND id <> (SELECT -epoch FROM made)
     )
     SELECT epoch, at, epoch = $2 FROM made"
);

/// From a row of [`READ`] or [`MAKE`]; a new mark is logged.
pub(super) fn of(row: &Row) -> Result<Mark, tokio_postgres::Error> {
    if row.try_get(2)? {
        log_new();
    }
    Ok(Mark {
        print: row.try_get(0)?,
        since: row.try_get(1)?,
    })
}

pub(super) fn parameters<'a>(
    print: &'a i64,
    now: &'a Option<i64>,
) -> [(&'a (dyn ToSql + Sync), Type); 3] {
    [(&KEY, Type::BYTEA), (print, Type::INT8), (now, Type::INT8)]
}
