//! Runs a script on the server: its command, the names of its keys, and the meaning of errors.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};

use super::Connection;
use super::redirection::{follow, is_redirection};
use crate::batch::{Batch, Trouble};
use crate::wire_form::Name;

/// A script, which the server runs by its hash once it has been sent. It is never asked to load one:
/// there are servers and users that may not.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) text: &'static str,
    pub(super) hash: String,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Self {
        let hash = redis::Script::new(text).get_hash().to_owned();
        Self { text, hash }
    }

    pub(super) async fn run<T: FromRedisValue>(
        &self,
        wire: &mut MultiplexedConnection,
        keys: &[&str],
        arguments: &[String],
    ) -> Result<T, RedisError> {
        let command = |verb: &str, script: &str| -> Cmd {
            let mut command = redis::cmd(verb);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        match command("EVALSHA", &self.hash).query_async(wire).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                command("EVAL", self.text).query_async(wire).await
            }
            reply => reply,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Call<'c> {
    pub(super) script: &'c Script,
    pub(super) batch: &'c Batch,
    pub(super) mark: Option<&'c str>,
    pub(super) argument: &'c [u8],
}

impl Call<'_> {
    /// Runs it on the server of `connection`, or on the cluster node that has the batch's slot.
    pub(super) async fn run(self, connection: &Connection) -> Result<Vec<u8>, Trouble> {
        match self.send(&mut connection.wire.clone(), false).await {
            Ok(reply) => Ok(reply),
            Err(error) => match &connection.node {
                // Boxed, because every single request carries this future.
                Some(node) if is_redirection(&error) => {
                    Box::pin(follow(
                        &node.cluster,
                        &node.name,
                        connection.wire.clone(),
                        self,
                        error,
                    ))
                    .await
                }
                _ => Err(trouble(error)),
            },
        }
    }

    /// Sends it to a server; `asking`: the server has the slot for this call only.
    pub(super) async fn send(
        self,
        wire: &mut MultiplexedConnection,
        asking: bool,
    ) -> Result<Vec<u8>, RedisError> {
        match self.query(wire, "EVALSHA", &self.script.hash, asking).await {
            // Nothing ran: restarts and promotions empty the cache of scripts.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                Box::pin(self.query(wire, "EVAL", self.script.text, asking)).await
            }
            reply => reply,
        }
    }

    async fn query(
        self,
        wire: &mut MultiplexedConnection,
        verb: &str,
        script: &str,
        asking: bool,
    ) -> Result<Vec<u8>, RedisError> {
        let command = self.command(verb, script);
        if !asking {
            return command.query_async(wire).await;
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command);
        let (reply,): (Vec<u8>,) = Box::pin(async move { both.query_async(wire).await }).await?;
        Ok(reply)
    }

    fn command(self, verb: &str, script: &str) -> Cmd {
        let Self {
            batch,
            mark,
            argument,
            ..
        } = self;
        let bytes = verb.len() + script.len() + 8 + batch.buckets.len() * KEY + argument.len();
        let resets = batch.concerns_resets();
        let keys = batch.buckets.len() * (1 + usize::from(resets)) + usize::from(mark.is_some());
        let mut command = Cmd::with_capacity(4 + keys, bytes);
        command.arg(verb).arg(script).arg(keys);
        for (name, _) in &batch.buckets {
            command.arg(key(name).as_slice());
        }
        if resets {
            for (name, _) in &batch.buckets {
                command.arg([key(name).as_slice(), b":reset"].concat());
            }
        }
        if let Some(mark) = mark {
            command.arg(mark);
        }
        command.arg(argument);
        command
    }
}

const KEY: usize = 40;

/// `tollgate:{tag}:name`, where the tag determines the cluster slot. Base64 has no brace.
fn key(name: &Name) -> [u8; KEY] {
    let mut key = *b"tollgate:{......}:......................";
    key[10..16].copy_from_slice(&tag_of(name));
    let written = URL_SAFE_NO_PAD.encode_slice(name.hash.to_be_bytes(), &mut key[18..]);
    debug_assert_eq!(written, Ok(22), "sixteen bytes are 22 letters");
    key
}

pub(crate) fn tag_of(name: &Name) -> [u8; 6] {
    let mut tag = [0; 6];
    let written = URL_SAFE_NO_PAD.encode_slice(name.tag.to_be_bytes(), &mut tag);
    debug_assert_eq!(written, Ok(6), "four bytes are six letters");
    tag
}

pub(super) fn trouble(error: RedisError) -> Trouble {
    let other_server = matches!(
        error.code(),
        Some("READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "WRONGPASS")
    );
    let text = error.to_string();
    if other_server {
        Trouble::Unfit(text)
    } else if error.is_unrecoverable_error() || error.is_connection_dropped() || error.is_io_error()
    {
        Trouble::Lost(text)
    } else {
        Trouble::Refused(text)
    }
}
