//! The mark of a MariaDB's or MySQL's data.
//!
//! It is valid only on the server that made it (a promoted replica is another), in the tables it was
//! made in (a dump creates them anew), and while its twin is in the MEMORY table, which a restart of
//! the server empties. If any of this fails, grants may have been forgotten, and a new mark records
//! that.
//!
//! The nodes of a Galera cluster share one mark, without a twin, because while one of them runs they lose
//! no row that was committed: it is valid while it is in the tables, and they are those of the same cluster.

use mysql_async::Row;

use super::link::number;
use super::transaction::BEGIN;
use crate::mysql::client::Client;
use crate::mysql::fault::Fault;
use crate::sql::mark::{Mark, log_new};

/// The signs that the mark is that of this data: when the tables were created, and the server; or
/// the identifier of the cluster (hexadecimal digits and hyphens).
fn signs(cluster: Option<&str>) -> [String; 3] {
    let created = |table: &str| {
        format!(
            "(SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', CREATE_TIME) FROM information_schema.TABLES
              WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}')"
        )
    };
    match cluster {
        Some(cluster) => ["0".into(), "0".into(), format!("CRC32('{cluster}')")],
        None => [
            created("tollgate_buckets"),
            created("tollgate_twin"),
            "CRC32(CONCAT_WS('/', @@server_id, @@hostname, @@port, @@datadir))".into(),
        ],
    }
}

/// Reads the mark, if it is valid: print, and since when.
pub(super) fn read(cluster: Option<&str>) -> String {
    let [buckets, twin, server] = signs(cluster);
    let has_twin = match cluster {
        Some(_) => "TRUE",
        None => "EXISTS (SELECT 1 FROM tollgate_twin WHERE tollgate_twin.print = mark.print)",
    };
    format!(
        "SELECT print, at FROM tollgate_buckets AS mark WHERE bucket = 'tollgate'
             AND a = {buckets} AND b = {twin} AND c = {server} AND {has_twin}"
    )
}

/// The valid mark among the rows of [`read`].
pub(super) fn of(rows: &[Row]) -> Result<Option<Mark>, Fault> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    match (number(row, 0)?, number(row, 1)?) {
        (Some(print), Some(since)) => Ok(Some(Mark { print, since })),
        _ => Ok(None),
    }
}

/// Makes a valid mark, dated now at the latest: now, unless another gateway was faster. `now` is the
/// expression of the moment.
pub(super) async fn make(client: &Client, cluster: Option<&str>, now: &str) -> Result<Mark, Fault> {
    let print = Mark::new_print();
    let make_twin = match cluster {
        Some(_) => String::new(),
        None => format!("INSERT INTO tollgate_twin VALUES ({print});"),
    };
    // The twin comes first: a mark without one is not valid. (The two tables are changed by
    // statements of their own, as replication with GTIDs demands.)
    let text = format!(
        "{make_twin} {BEGIN};
         INSERT INTO tollgate_buckets (bucket, expires) VALUES ('tollgate', {max})
             ON DUPLICATE KEY UPDATE expires = VALUES(expires);
         SELECT {now}; {read}",
        max = i64::MAX,
        read = read(cluster)
    );
    let sets = client.run(text).await?;
    let [moment, rows] = sets.as_slice() else {
        return Err(Fault::Corrupt("not a response about the mark"));
    };
    let now = moment.first().map(|row| number(row, 0)).transpose()?;
    let now = now.flatten().ok_or(Fault::Corrupt("no moment"))?;
    let known = of(rows)?;
    let mark = match known {
        Some(known) => Mark {
            since: known.since.min(now),
            ..known
        },
        None => Mark { print, since: now },
    };
    let [buckets, twin, server] = signs(cluster);
    let text = format!(
        "UPDATE tollgate_buckets SET print = {}, at = {}, a = {buckets}, b = {twin}, c = {server} WHERE bucket = 'tollgate';
         COMMIT",
        mark.print, mark.since
    );
    client.run(text).await?;
    if known.is_none() {
        log_new();
    }
    Ok(mark)
}
