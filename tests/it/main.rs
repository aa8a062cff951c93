//! End-to-end tests: the gateway on free ports, with an upstream that records and a clock that is moved by hand.
//! One binary, so that it links once.

mod adaptive;
mod admin;
mod balancing;
mod causes;
mod cli;
mod container;
mod costs;
mod documents;
mod duplex;
mod egress;
mod encrypted;
mod exchange;
mod failures;
mod forwarding;
mod grpc;
mod harness;
mod hostile;
mod identities;
mod idle;
mod journal;
mod limits;
mod listening;
mod matching;
mod process;
mod redirects;
mod refusals;
mod reload;
mod restart;
mod scrape;
#[path = "../stores/servers.rs"]
#[allow(dead_code, reason = "shared with the suites of the stores")]
#[allow(
    unreachable_pub,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "as there"
)]
mod servers;
mod settling;
mod shaping;
mod shutdown;
mod smuggling;
mod spellings;
mod spending;
mod stopping;
mod streaming;
mod streams;
mod tools;
mod trying_out;
mod upgrade;
mod upstream_http2;
mod upstream_tls;
mod upstreams;
mod websocket;
mod wire;
