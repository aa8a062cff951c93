//! The request path: applies limits, then forwards or refuses each request. [`tollgate_net`]
//! handles the connections.

#![forbid(unsafe_code)]

pub mod decide;
pub mod proxy_defaults;
pub mod forward;
pub mod framing;
pub mod headers;
pub mod refusals;
pub mod rejection;
mod request;
pub mod untrusted_proxy;
pub mod usage;

pub use rejection::reasons;
pub use request::{
    Challenges, Closing, DecideSettings, Gateway, GatewayState, PlainHttp, Snapshot, near,
};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
