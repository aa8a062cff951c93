//! Runs access logs through a policy in virtual time, with the limiter that serves, and works out which limits the
//! traffic of a log needs. It opens no socket and changes no file.

#![forbid(unsafe_code)]

mod classes;
mod condition;
pub mod edit;
mod floods;
pub mod html;
mod keys;
mod lint;
pub mod log;
mod outcome;
mod replay;
pub mod report;
mod request;
mod simulation;
mod subject;
#[cfg(test)]
mod tests;
pub mod suggest;

pub use condition::{Condition, share};
pub use outcome::{Against, Change, Counts, Example, Key, LimitOutcome, Outcome, Peak, Recorded};
pub use replay::Traffic;
pub use simulation::{Response, Simulation};

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
