//! Observability of the gateway: metrics, the access log, the operations log.
//!
//! Of the workspace, this crate uses only `tollgate-limit`, for what may be printed as it is; its
//! interface is plain numbers and strings, so every crate of the gateway can call it. It never
//! blocks a request: a counter is a plain add in the worker's own memory, a log record is appended
//! to a buffer, and a record that does not fit is dropped and counted.

#![forbid(unsafe_code)]

pub mod access;
pub mod log;
pub mod metrics;
mod outlet;
pub mod spans;
pub mod text;
pub mod trace;

pub use access::{AccessLog, AccessWriter, Record};
pub use metrics::{Labels, Metrics, Worker};
pub use trace::TraceParent;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
