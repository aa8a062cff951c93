//! Makes the table and functions.

use tokio_postgres::Client;

use super::fault::{Fault, words};
use crate::batch::Obstacle;
use crate::postgres::schema_sql;

/// Begins a transaction that writes, even if the session's defaults say otherwise.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// The advisory lock of a gateway that makes the table and functions: `tollgate` in ASCII.
const MAKING: i64 = i64::from_be_bytes(*b"tollgate");

/// Makes the table and functions. If this fails the connection is given up, and the transaction
/// with it.
///
/// One gateway makes them after the other, because IF NOT EXISTS does not see what another
/// transaction makes. The lock is that of the transaction, because behind a pooler the session is
/// not ours.
pub(super) async fn make(client: &Client) -> Result<(), Obstacle> {
    let schema = schema_sql();
    let locked = format!("{BEGIN}; SELECT pg_advisory_xact_lock({MAKING}); {schema}; COMMIT");
    let made = client.batch_execute(&locked).await;
    made.map_err(|error| {
        let words = format!("the table and functions cannot be made: {}", words(&error));
        // After a conflict the next connection finds what the other gateway has made.
        let lasting = !matches!(Fault::from(error), Fault::Conflict(_));
        Obstacle { words, lasting }
    })
}
