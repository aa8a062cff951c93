//! Admits a request or refuses it, without I/O.

#![forbid(unsafe_code)]

pub mod denial;
mod judged;
pub mod settle;
#[cfg(feature = "config")]
pub mod shared_store;
mod upstream_quota;

pub use judged::{Judged, outcome_word};
pub use upstream_quota::follow;

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
