//! Makes the table and functions.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

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
    let made = match client.batch_execute(&locked).await {
        Err(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
            // YugabyteDB before 2025.1 has no advisory locks. Gateways that start there together may
            // conflict.
            make_unlocked(client).await
        }
        made => made,
    };
    made.map_err(|error| {
        let words = format!("the table and functions cannot be made: {}", words(&error));
        // After a conflict the next connection finds what the other gateway has made.
        let lasting = !matches!(Fault::from(error), Fault::Conflict(_));
        Obstacle { words, lasting }
    })
}

async fn make_unlocked(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("ROLLBACK").await?;
    let unlocked = format!("{BEGIN}; {}; COMMIT", schema_sql());
    client.batch_execute(&unlocked).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_postgres::{Config, NoTls};

    use super::*;

    /// A server without advisory locks; returns the statements that it got.
    async fn without_locks(mut stream: DuplexStream) -> Vec<String> {
        let (mut statements, mut failed) = (Vec::new(), false);
        let length = stream.read_u32().await.expect("a start");
        let mut start = vec![0; length as usize - 4];
        stream.read_exact(&mut start).await.expect("its rest");
        // Authenticated, and ready.
        let ready = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
        stream.write_all(ready).await.expect("it is read");
        while let Ok(kind) = stream.read_u8().await {
            let length = stream.read_u32().await.expect("a length");
            let mut text = vec![0; length as usize - 4];
            stream.read_exact(&mut text).await.expect("its text");
            if kind != b'Q' {
                break;
            }
            let text = String::from_utf8(text).expect("UTF-8");
            failed &= !text.starts_with("ROLLBACK");
            let refused = match text.contains("pg_advisory") {
                _ if failed => Some("25P02"),
                true => Some("0A000"),
                false => None,
            };
            failed |= refused.is_some();
            let mut response = Vec::new();
            if let Some(code) = refused {
                let fields = format!("SERROR\0VERROR\0C{code}\0Mrefused\0\0");
                response.push(b'E');
                let length = u32::try_from(fields.len() + 4).expect("a short text");
                response.extend(length.to_be_bytes());
                response.extend(fields.as_bytes());
            }
            response.extend(b"Z\0\0\0\x05");
            response.push(if failed { b'E' } else { b'I' });
            stream.write_all(&response).await.expect("it is read");
            statements.push(text);
        }
        statements
    }

    #[tokio::test]
    async fn postgres_tables_on_a_server_without_advisory_locks_are_made_without_the_lock() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(without_locks(theirs));
        let mut config = Config::new();
        let (client, connection) = config
            .user("tollgate")
            .connect_raw(ours, NoTls)
            .await
            .expect("a session");
        tokio::spawn(connection);
        make(&client).await.expect("they are made");
        drop(client);
        let statements = server.await.expect("no panic");
        let last = statements.last().expect("a statement");
        assert!(last.contains(schema_sql()), "{last}");
        assert!(!last.contains("pg_advisory"), "{last}");
    }
}
