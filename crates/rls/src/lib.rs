//! Envoy's rate limit service over gRPC, with gRPC's health service and reflection.
//!
//! [`RateLimitService`] is a handler of the HTTP server: it serves one worker beside its gateway.
//! The gateway decides; this crate knows the protocol only.

#![forbid(unsafe_code)]

mod grpc;
mod health;
mod messages;
mod reflection;
mod service;

pub use health::Serving;
pub use service::{Counts, RateLimitService};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
