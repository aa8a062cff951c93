//! Running a script on the server: its command, the names of its keys, what an error means.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redis::{Cmd, RedisError, Script};

use super::Connection;
use crate::batch::{Batch, Trouble};
use crate::shape::Name;

/// Runs a script on the server. `mark`: the key that follows those of the buckets.
pub(super) async fn run(
    connection: &Connection,
    script: &Script,
    source: &str,
    batch: &Batch,
    mark: Option<&str>,
    arguments: &[Vec<u8>],
) -> Result<Vec<u8>, Trouble> {
    let mut wire = connection.wire.clone();
    let reply = match command("EVALSHA", script.get_hash(), batch, mark, arguments).query_async(&mut wire).await {
        // Nothing ran: sending it once more, with its source, is safe. Restarts and promotions empty the cache.
        Err(error) if is_unknown_script(&error) => {
            // (Boxed, as is what is rare below: every request that is alone carries this future along.)
            let command = command("EVAL", source, batch, mark, arguments);
            Box::pin(async move { command.query_async::<Vec<u8>>(&mut wire).await }).await
        }
        reply => reply,
    };
    reply.map_err(trouble)
}

fn command(verb: &str, script: &str, batch: &Batch, mark: Option<&str>, arguments: &[Vec<u8>]) -> Cmd {
    let bytes =
        verb.len() + script.len() + 8 + batch.buckets.len() * KEY + arguments.iter().map(Vec::len).sum::<usize>();
    let keys = batch.buckets.len() + usize::from(mark.is_some());
    let mut command = Cmd::with_capacity(3 + keys + arguments.len(), bytes);
    command.arg(verb).arg(script).arg(keys);
    for (name, _) in &batch.buckets {
        command.arg(key(name).as_slice());
    }
    if let Some(mark) = mark {
        command.arg(mark);
    }
    for argument in arguments {
        command.arg(argument.as_slice());
    }
    command
}

/// A key's length.
const KEY: usize = 40;

/// `tollgate:{tag}:name`; the tag in braces decides the cluster slot. Base64 for URLs has no brace in it.
fn key(name: &Name) -> [u8; KEY] {
    let mut key = *b"tollgate:{......}:......................";
    let written = URL_SAFE_NO_PAD.encode_slice(name.tag.to_be_bytes(), &mut key[10..16]);
    debug_assert_eq!(written, Ok(6), "four bytes are six letters");
    let written = URL_SAFE_NO_PAD.encode_slice(name.hash.to_be_bytes(), &mut key[18..]);
    debug_assert_eq!(written, Ok(22), "sixteen bytes are 22 letters");
    key
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// What an error means for the connection.
pub(super) fn trouble(error: RedisError) -> Trouble {
    let other_server = matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "WRONGPASS"));
    let text = error.to_string();
    if other_server || error.is_unrecoverable_error() || error.is_connection_dropped() || error.is_io_error() {
        Trouble::Lost(text)
    } else {
        Trouble::Refused(text)
    }
}
