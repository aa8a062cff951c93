//! Connections: listening sockets, workers, timers and TLS, and what speaks HTTP over them.
//!
//! This crate drives [`tollgate_http1`] and hyper's HTTP/2. It knows no route, no limit and no upstream: a request is handed
//! to a [`server::Handler`], and a request to a server is sent by a [`client::Client`].
//!
//! | module | job |
//! |---|---|
//! | [`listener`] | listening sockets: bound, inherited, handed on |
//! | [`worker`] | one thread and one runtime per core; draining |
//! | [`timers`] | deadlines of connections and requests |
//! | [`tls`] | TLS towards clients |
//! | [`server`] | HTTP/1.1 and HTTP/2 on one port, the PROXY protocol, bounds on connections |
//! | [`client`] | one HTTP/1.1 connection to a server |
//! | [`buffer`] | what a connection reads into and writes from |
//! | [`problem`] | every response that says what went wrong, with its status |

#![forbid(unsafe_code)]

pub mod buffer;
pub mod client;
pub mod listener;
pub mod problem;
pub mod server;
pub mod timers;
pub mod tls;
pub mod worker;

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
