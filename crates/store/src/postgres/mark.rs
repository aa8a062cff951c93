//! The mark of a PostgreSQL's data.
//!
//! It is valid only for the process that created it (a promoted standby is another), in the table
//! it was created in, as the row it was written as (a row of a restored dump is not), and while its
//! twin is among the heartbeats, which are never logged. A crash that may have cost a logged table
//! its last charges also removes the twin. If any of this fails, grants may have been forgotten,
//! and a new mark records that.
//!
//! A database that spans machines has no such columns, and loses no committed row. There the mark's
//! level is a number that each heartbeat of a gateway raises. A gateway that finds it lower than it
//! has seen it has met a restored dump, and makes a new mark; that of another gateway is higher. (It
//! is no moment, because the clocks of the nodes differ, and a gateway that has just started would
//! raise an old moment to now.)

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::sql::mark::{KEY, Mark, log_new};

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

/// Reads it; no row: there is none, or it is not valid.
const READ: &str = concat!(
    "SELECT mark.epoch, mark.at, false FROM tollgate_buckets AS mark WHERE mark.key = $1 AND ",
    good!()
);

/// The same in a database that spans machines. `$2`: its level when the gateway saw it last.
const READ_SPANNING: &str =
    "SELECT mark.epoch, mark.at, false, mark.level FROM tollgate_buckets AS mark
     WHERE mark.key = $1 AND mark.level >= $2";

/// The heartbeat in a database that spans machines: raises the mark's level, and creates a mark if
/// there is no valid one. `$4`: its level when the gateway saw it last.
const MAKE_SPANNING: &str = "
    INSERT INTO tollgate_buckets AS mark (key, expires, epoch, at, level)
    VALUES ($1, 9223372036854775807, $2,
            coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), $4 + 1)
    ON CONFLICT (key) DO UPDATE SET
        expires = excluded.expires,
        epoch = CASE WHEN mark.level >= $4 THEN mark.epoch ELSE excluded.epoch END,
        at = CASE WHEN mark.level >= $4 THEN least(mark.at, excluded.at) ELSE excluded.at END,
        level = CASE WHEN mark.level >= $4 THEN mark.level + 1 ELSE excluded.level END
    RETURNING epoch, at, epoch = $2, level";

/// Creates a valid one, dated now at the latest: now, unless another gateway was faster.
const MAKE: &str = concat!(
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

/// From a row of [`read`] or [`make`]; a new mark is logged.
pub(super) fn of(row: &Row) -> Result<Mark, tokio_postgres::Error> {
    if row.try_get(2)? {
        log_new();
    }
    Ok(Mark {
        print: row.try_get(0)?,
        since: row.try_get(1)?,
    })
}

/// A statement with its parameters.
pub(super) type Statement<'a> = (&'static str, Vec<(&'a (dyn ToSql + Sync), Type)>);

/// Reads it. `seen`: its level when the gateway saw it last, in a database that spans machines.
pub(super) fn read(seen: Option<&i64>) -> Statement<'_> {
    match seen {
        Some(seen) => (READ_SPANNING, vec![(&KEY, Type::BYTEA), (seen, Type::INT8)]),
        None => (READ, vec![(&KEY, Type::BYTEA)]),
    }
}

/// Creates a valid one with this print, and raises its level.
pub(super) fn make<'a>(
    print: &'a i64,
    now: &'a Option<i64>,
    seen: Option<&'a i64>,
) -> Statement<'a> {
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&KEY, Type::BYTEA), (print, Type::INT8), (now, Type::INT8)];
    match seen {
        Some(seen) => {
            parameters.push((seen, Type::INT8));
            (MAKE_SPANNING, parameters)
        }
        None => (MAKE, parameters),
    }
}
