//! Connections: listening sockets, workers, timers, TLS, and the HTTP server and client.
//!
//! This crate drives [`tollgate_http1`] and hyper's HTTP/2. It knows no route, no limit and no
//! upstream: the server passes each request to a [`server::Handler`], and a [`client::Client`]
//! sends requests to a server.
//!
//! | module | job |
//! |---|---|
//! | [`listener`] | listening sockets: bound, inherited, handed on |
//! | [`worker`] | one thread and one runtime per core; draining |
//! | [`timers`] | deadlines of connections and requests |
//! | [`tls`] | TLS towards clients |
//! | [`server`] | HTTP/1.1 and HTTP/2 on one port, the PROXY protocol, bounds on connections |
//! | [`client`] | one HTTP/1.1 connection to a server |
//! | [`buffer`] | read and write buffers of a connection |

#![forbid(unsafe_code)]

pub mod buffer;
pub mod client;
mod delegate;
pub mod listener;
pub mod pem;
pub mod server;
pub mod timers;
pub mod tls;
pub mod worker;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
