//! The forwarder between real sockets: a raw client, the server in front, an upstream that records the very bytes.

mod bodies;
mod connections;
mod framing;
mod harness;
mod http2;
mod lanes;
mod upgrade;
mod upstreams;

pub(in crate::proxy::forward) use harness::{route, server, upstream};
