//! The request path: applies limits, then forwards or refuses each request. [`tollgate_net`]
//! handles the connections.

#![forbid(unsafe_code)]

pub mod body;
pub mod decide;
pub mod proxy_defaults;
pub mod echo;
pub mod forward;
pub mod framing;
pub mod gateway;
pub mod headers;
pub mod pool;
pub mod refusals;
pub mod rejection;
pub mod untrusted_proxy;

pub use rejection::reasons;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
