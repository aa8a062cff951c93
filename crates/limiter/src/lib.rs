//! Turns the decisions of buckets, store failures, shadow limits and candidates into a decision
//! about a request. Only this crate creates a [`Permit`]; it does not store buckets.
//!
//! A [`Limiter`] belongs to one compiled policy. [`Limiter::next`] creates the limiter for the next
//! policy and carries the buckets over, so that a reload refills no caller. Requests in flight
//! settle through the limiter they started with.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod counters;
mod debts;
mod decide;
mod decision;
mod feedback;
mod handover;
mod limiter;
mod outcome;
mod overrides;
mod peek;
mod penalties;
mod permit;
mod shares;

#[cfg(test)]
mod tests;

pub use counters::{Agreement, Count, Snapshot, Units};
pub use decide::{Deciding, SharedDraw};
pub use decision::{Decision, Denied, Unavailable};
pub use feedback::RateFeedback;
pub use handover::Successor;
pub use limiter::Limiter;
pub use outcome::{Block, BlockCause, By, Outcome};
pub use overrides::{Effect, Override};
pub use peek::Peeked;
pub use penalties::{Imposed, PENALTY_TABLE, PenaltyCounts};
pub use permit::{Cause, Credit, OpenCharge, Permit, wait_until};
pub use tollgate_store::Deadline;

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
