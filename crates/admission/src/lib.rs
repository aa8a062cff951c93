//! Admits a request or refuses it: the one order in which callers are identified, limits are charged
//! and requests are refused ([`Admission`]), and the account of a request until its response has ended
//! ([`Account`]).
//!
//! Nothing here does I/O or reads a clock, except for [`shared_store`], a feature. The gateway drives the
//! order on the thread that has the request's body, a tower layer in its own future, and the tests of a
//! file in virtual time. The descriptors of a rate limit service and the claims that a program names
//! have no request: the gateway asks the limiter for their decision only.

#![forbid(unsafe_code)]

mod account;
pub mod denial;
mod judged;
mod order;
pub mod settle;
#[cfg(feature = "config")]
pub mod shared_store;
mod under_way;
mod upstream_quota;
mod view;

pub use account::Account;
pub use judged::Judged;
pub use order::{Admission, Refusal, Step};
pub use under_way::UnderWay;
pub use upstream_quota::follow;
pub use view::RequestView;

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
