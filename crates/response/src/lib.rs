//! The responses that Tollgate writes itself: problem documents, refusals and quota headers.
//!
//! The gateway and the layer for services write the same responses with this crate. It decides
//! nothing and sends nothing.

#![forbid(unsafe_code)]

mod challenge;
mod json_rpc;
pub mod problem;
pub mod quota_headers;
mod refusal;

pub use challenge::challenge;

pub use problem::{DecisionId, Problem};
pub use refusal::SpentBudget;
pub use refusal::{
    ALLOWED, Denial, Form, Reason, Refusal, RefusalForm, Refused, escape_json_char, write_headers,
};

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
