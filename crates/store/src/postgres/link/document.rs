//! The document that all gateways share: one row of a table.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::fault::Fault;
use super::transaction::{OpenTransaction, join};
use super::{PostgresLink, Session};
use crate::batch::{NewDocument, StoredDocument};
use crate::sql::mark::origin;
use crate::wire_form::{moment, signed};

/// Whether this user can read and write it.
const IS_THERE: &str =
    "SELECT coalesce(has_table_privilege(to_regclass('tollgate_overrides'), 'SELECT')
    AND has_table_privilege(to_regclass('tollgate_overrides'), 'INSERT')
    AND has_table_privilege(to_regclass('tollgate_overrides'), 'UPDATE'), false)";

const MAKE: &str = "BEGIN READ WRITE; CREATE TABLE IF NOT EXISTS tollgate_overrides (
    id bigint NOT NULL PRIMARY KEY, epoch bigint NOT NULL, text text NOT NULL); COMMIT";

/// Why this user cannot make it: no right, no schema, a session that only reads, or another gateway
/// that makes it now. After any other error the gateway connects again.
const UNMAKEABLE: [&SqlState; 7] = [
    &SqlState::INSUFFICIENT_PRIVILEGE,
    &SqlState::INVALID_SCHEMA_NAME,
    &SqlState::READ_ONLY_SQL_TRANSACTION,
    &SqlState::FEATURE_NOT_SUPPORTED,
    &SqlState::UNIQUE_VIOLATION,
    &SqlState::DUPLICATE_TABLE,
    &SqlState::DUPLICATE_OBJECT,
];

const READ: &str = "SELECT coalesce(kept.epoch, 0),
    coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    CASE WHEN coalesce(kept.epoch, 0) <> $2 THEN coalesce(kept.text, '') END
    FROM (SELECT 1) AS one LEFT JOIN tollgate_overrides AS kept ON kept.id = 1";

/// Writes it, if the epoch before is still that of `$1`; affects a row then.
const WRITE: &str = "INSERT INTO tollgate_overrides AS kept
    SELECT 1, $2, $3 WHERE $1 = 0 OR EXISTS (SELECT FROM tollgate_overrides WHERE id = 1)
    ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, text = excluded.text WHERE kept.epoch = $1";

/// Has the session notified of changes. Behind a pooler a notification may reach another session; the
/// heartbeats find the change then.
pub(super) const LISTEN: &str = "LISTEN tollgate_overrides";

/// Whether there is a table for it; makes one if it may. Without one there are no overrides on this
/// store, and everything else works.
pub(super) async fn is_there(client: &Client, create: bool) -> Result<bool, tokio_postgres::Error> {
    let ask = async || {
        let row = client.query_typed_one(IS_THERE, &[]).await?;
        row.try_get::<_, bool>(0)
    };
    if ask().await? || !create {
        return ask().await;
    }
    if let Err(error) = client.batch_execute(MAKE).await {
        if !error.code().is_some_and(|code| UNMAKEABLE.contains(&code)) {
            return Err(error);
        }
        client.batch_execute("ROLLBACK").await?;
    }
    ask().await
}

/// Writes the document, if the epoch before is the known one; returns whether it was.
pub(super) async fn write(
    link: &PostgresLink,
    session: &Session,
    new: &NewDocument,
) -> Result<bool, Fault> {
    let (known, epoch) = (signed(new.known), signed(new.epoch));
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
        (&known, Type::INT8),
        (&epoch, Type::INT8),
        (&new.text, Type::TEXT),
    ];
    if session.engine.spans() {
        return write_with_receipt(link, session, &parameters).await;
    }
    let write = format!(
        "WITH written AS ({WRITE} RETURNING 1)
         SELECT count(pg_notify('tollgate_overrides', '')) FROM written"
    );
    let row = link.chore(session, &write, &parameters).await?;
    Ok(row.try_get::<_, i64>(0)? == 1)
}

/// Writes it in a database that spans machines, which does not notify. If COMMIT fails with a conflict,
/// the receipt tells whether the document was written, also if another gateway has replaced it since.
async fn write_with_receipt(
    link: &PostgresLink,
    session: &Session,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<bool, Fault> {
    let (client, engine, pinned) = (&session.client, session.engine, link.base.pinned());
    let begin = link.begin(engine);
    let _turn = session.turn.write().await;
    let receipt = session.next_receipt();
    let mut open = OpenTransaction::new(session);
    // One round trip. After an error of a statement COMMIT rolls everything back.
    let ((begun, written), (receipted, committed)) = join(
        join(
            client.batch_execute(&begin),
            client.execute_typed(WRITE, parameters),
        ),
        join(
            receipt.write(client, engine, pinned),
            client.batch_execute("COMMIT"),
        ),
    )
    .await;
    open.closed = committed.is_ok();
    begun?;
    let written = written?;
    receipted?;
    link.outcome(session, committed, Some(receipt)).await?;
    Ok(written == 1)
}

pub(super) async fn read(
    link: &PostgresLink,
    session: &Session,
    known: u64,
) -> Result<StoredDocument, Fault> {
    let (pinned, known) = (link.base.pinned(), signed(known));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&pinned, Type::INT8), (&known, Type::INT8)];
    let row = link.chore(session, READ, &parameters).await?;
    let missing = Fault::Corrupt("the document has a number below zero");
    let now = moment(row.try_get(1)?).ok_or(missing)?;
    Ok(StoredDocument {
        epoch: u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0),
        now,
        written: false,
        text: row.try_get(2)?,
        origin: origin(session.print.get()),
    })
}
