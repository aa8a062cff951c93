use mysql_async::Row;

use super::client::{Client, Failed};
use super::fault::Fault;
use super::link::{MysqlLink, Session, number, statements};
use crate::batch::{NewDocument, Origin, StoredDocument};
use crate::sql::mark::origin;
use crate::wire_form::{moment, signed};
use tollgate_limit::hex;

/// Uses every right that it needs and changes nothing.
const RIGHTS: &str = "
    INSERT INTO tollgate_overrides SELECT * FROM tollgate_overrides WHERE FALSE;
    UPDATE tollgate_overrides SET epoch = 0 WHERE FALSE";

/// The server's numbers for a table that does not exist, and for rights to a table, a column or the
/// database that the user does not have. After any other error the gateway connects again.
const MISSING: [u16; 4] = [1146, 1142, 1143, 1044];

/// Whether there is a table for it; makes one if it may. Without one there are no overrides on this
/// store, and everything else works.
pub(super) async fn is_there(client: &Client, create: bool) -> Result<bool, Fault> {
    let may = async |text: &str| match client.run(text).await {
        Ok(_) => Ok(true),
        Err(Failed::Error(mysql_async::Error::Server(error))) if MISSING.contains(&error.code) => {
            Ok(false)
        }
        Err(failed) => Err(Fault::from(failed)),
    };
    let is_there = may(RIGHTS).await?;
    if is_there || !create {
        return Ok(is_there);
    }
    for made in statements().filter(|one| one.contains("EXISTS tollgate_overrides ")) {
        may(made).await?;
    }
    may(RIGHTS).await
}

/// Writes the document, if the epoch before is the known one; returns whether it was. One statement does
/// it, so that it needs no transaction. A row that is missing has the epoch zero.
pub(super) async fn write(
    link: &MysqlLink,
    session: &Session,
    new: &NewDocument,
) -> Result<bool, Fault> {
    let (known, epoch) = (signed(new.known), signed(new.epoch));
    let make = if known == 0 {
        "INSERT INTO tollgate_overrides VALUES (1, 0, '') ON DUPLICATE KEY UPDATE id = id;"
    } else {
        ""
    };
    let text = hex::digits(new.text.as_bytes());
    // (The epoch changes, so that a row that is found counts as changed.)
    let write = format!(
        "{make} UPDATE tollgate_overrides SET epoch = {epoch}, text = CONVERT(X'{text}' USING utf8mb4)
         WHERE id = 1 AND epoch = {known};
         SELECT ROW_COUNT()"
    );
    let sets = link.chore(session, write).await?;
    let count = sets.first().and_then(|rows| rows.first());
    Ok(number(count.ok_or(UNREADABLE)?, 0)? == Some(1))
}

pub(super) async fn read(
    link: &MysqlLink,
    session: &Session,
    known: u64,
) -> Result<StoredDocument, Fault> {
    let read = format!(
        "SELECT COALESCE(kept.epoch, 0), {}, IF(COALESCE(kept.epoch, 0) <> {}, COALESCE(kept.text, ''), NULL)
         FROM (SELECT 1) AS one LEFT JOIN tollgate_overrides AS kept ON kept.id = 1",
        link.moment(),
        signed(known)
    );
    let sets = link.chore(session, read).await?;
    let row = sets.first().and_then(|rows| rows.first());
    let origin = origin(session.print.get());
    document_of(row.ok_or(UNREADABLE)?, origin).ok_or(UNREADABLE)
}

const UNREADABLE: Fault = Fault::Corrupt("not a response about the document");

fn document_of(row: &Row, origin: Option<Origin>) -> Option<StoredDocument> {
    let integer = |column| number(row, column).ok().flatten();
    Some(StoredDocument {
        epoch: u64::try_from(integer(0)?).unwrap_or(0),
        now: moment(integer(1)?)?,
        written: false,
        text: row.get_opt::<Option<String>, _>(2)?.ok()?,
        origin,
    })
}
