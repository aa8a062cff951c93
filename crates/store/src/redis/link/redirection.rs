//! Following a cluster's redirections: the slot of a batch has moved, or is about to.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::command::{Call, trouble};
use crate::batch::Trouble;
use crate::redis::cluster::Cluster;

/// Servers that are tried in turn, before the slot is given up for this call; its deadline may be sooner.
const TURNS_MAX: u32 = 1_000;
/// A slot that is being moved has some of a batch's keys here and some there: they are together in a moment.
const AGAIN: Duration = Duration::from_millis(2);

/// How a server's error sends us elsewhere.
enum Way {
    /// To this server, for this once where it is asked so.
    To { node: String, asking: bool },
    /// Nowhere yet: the same server in a moment.
    Again,
    /// Nobody has the slot.
    Nobody,
}

/// Where an error sends us; `None`: it is about something else. Nothing was done: sending the same elsewhere is safe.
fn way(error: &RedisError, here: &str) -> Option<Way> {
    match error.code()? {
        code @ ("MOVED" | "ASK") => {
            let (node, _) = error.redirect_node()?;
            // (A node that does not say its host is on that of the one that sends us.)
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
        // (The cluster may be down as a whole: then the server refuses all there is.)
        "CLUSTERDOWN"
            if error
                .detail()
                .is_some_and(|detail| detail.contains("slot not served")) =>
        {
            Some(Way::Nobody)
        }
        _ => None,
    }
}

/// Calls again as `error` of the server `here`, reached by `wire`, says; what the server says that has the slot.
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
            // From the first server again, which knows where the slot is by then.
            Some(Way::Again) => {
                there = None;
                tokio::time::sleep(AGAIN).await;
            }
            Some(Way::Nobody) => {
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

/// Whether an error is about where a slot is, and nothing was done.
pub(super) fn is_redirection(error: &RedisError) -> bool {
    way(error, "").is_some()
}
