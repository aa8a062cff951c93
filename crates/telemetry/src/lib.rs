//! What the gateway lets be seen: metrics, the access log, the operations log.
//!
//! A leaf: it imports none of our other modules and speaks in plain numbers and words, so that everyone may call it.
//! It never blocks a request: counters are plain adds in memory of the worker's own, a log record is bytes appended to
//! a buffer, and what does not fit is dropped and counted.

#![forbid(unsafe_code)]

pub mod access;
pub mod log;
pub mod metrics;
mod outlet;
pub mod text;

pub use access::{AccessLog, AccessWriter, Record};
pub use metrics::{Labels, Metrics, Worker};

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
