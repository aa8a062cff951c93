//! The request path: limits, forwards, refuses. Connections are [`tollgate_net`]'s.

#![forbid(unsafe_code)]

pub mod body;
pub mod proxy_defaults;
pub mod echo;
pub mod forward;
pub mod framing;
pub mod gateway;
pub mod headers;
pub mod settle;
pub mod pool;
pub mod quota_headers;
pub mod rejection;

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
