//! Follows a cluster's redirections: the slot of a batch has moved, or is being moved.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::command::{Call, trouble};
use crate::batch::Trouble;
use crate::redis::cluster::Cluster;

/// The most servers tried for one call; its deadline may be sooner.
const TURNS_MAX: u32 = 1_000;
/// While a slot is being moved, a batch's keys may be on two servers; after this time they are
/// usually together again.
const AGAIN: Duration = Duration::from_millis(2);

enum Way {
    /// To this server; with `asking`, for this call only.
    To { node: String, asking: bool },
    /// The same server again, after a moment.
    Again,
    /// No server has the slot.
    Unserved,
}

/// The redirection in an error; `None`: the error is another one. Nothing was done, so sending the
/// call elsewhere is safe.
fn way(error: &RedisError, here: &str) -> Option<Way> {
    match error.code()? {
        code @ ("MOVED" | "ASK") => {
            let (node, _) = error.redirect_node()?;
            // (A redirection without a host means the host of the redirecting node.)
            let host = here.rsplit_once(':').map_or("", |(host, _)| host);
            let node = if node.starts_with(':') {
                format!("{host}{node}")
            } else {
                node.to_owned()
            };
            Some(Way::To {
                node,
                asking: code == "ASK",
            })
        }
        "TRYAGAIN" => Some(Way::Again),
        // (If the whole cluster is down, the server refuses every call.)
        "CLUSTERDOWN"
            if error
                .detail()
                .is_some_and(|detail| detail.contains("slot not served")) =>
        {
            Some(Way::Unserved)
        }
        _ => None,
    }
}

/// Repeats the call as `error` of the server `here` (connected by `wire`) directs; returns the
/// response of the server with the slot.
pub(super) async fn follow(
    cluster: &Arc<Cluster>,
    here: &str,
    wire: MultiplexedConnection,
    call: Call<'_>,
    mut error: RedisError,
) -> Result<Vec<u8>, Trouble> {
    let mut there: Option<(String, bool)> = None;
    for _ in 0..TURNS_MAX {
        match way(&error, there.as_ref().map_or(here, |(node, _)| node)) {
            Some(Way::To { node, asking }) => {
                if !asking {
                    cluster.changed.notify_one();
                }
                there = Some((node, asking));
            }
            // From the first server again, which then knows the slot's owner.
            Some(Way::Again) => {
                there = None;
                tokio::time::sleep(AGAIN).await;
            }
            Some(Way::Unserved) => {
                cluster.changed.notify_one();
                return Err(Trouble::Moved(error.to_string()));
            }
            None if there.is_none() => return Err(trouble(error)),
            None => return Err(Trouble::Astray(format!("redirected: {error}"))),
        }
        let answer = match &there {
            None => call.send(&mut wire.clone(), false).await,
            Some((node, asking)) => match cluster.nodes.connection(node).await {
                Ok(mut other) => {
                    let answer = call.send(&mut other, *asking).await;
                    if answer.as_ref().is_err_and(RedisError::is_io_error) {
                        cluster.nodes.forget(node);
                    }
                    answer
                }
                Err(error) => return Err(Trouble::Moved(format!("redirected to {node}: {error}"))),
            },
        };
        match answer {
            Ok(reply) => return Ok(reply),
            Err(next) => error = next,
        }
    }
    Err(Trouble::Moved(error.to_string()))
}

/// Whether an error is a redirection, after which nothing was done.
pub(super) fn is_redirection(error: &RedisError) -> bool {
    way(error, "").is_some()
}
