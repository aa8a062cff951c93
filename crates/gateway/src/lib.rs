//! Listens, forwards, refuses.

#![forbid(unsafe_code)]

pub mod body;
pub mod proxy_defaults;
pub mod echo;
pub mod forward;
pub mod framing;
pub mod gateway;
pub mod headers;
pub mod http1;
pub mod settle;
pub mod listener;
pub mod pool;
pub mod quota_headers;
pub mod rejection;
pub mod server;

pub mod timers;
pub mod tls;
pub mod worker;

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
