//! The forwarder between real sockets: a raw client, the server in front, an upstream that records the very bytes.

mod bodies;
mod causes;
mod connections;
mod deadlines;
mod edits;
mod framing;
mod http2;
mod http2_pool;
mod interim;
pub(in crate::forward) mod names;
mod origin;
mod relay;
mod retries;
mod total;
mod upgrade;
mod upstreams;
mod wire;

pub(in crate::forward) use relay::{route, server, upstream};
