//! Where buckets live. A [`Store`] remembers and serialises; it does not decide what a refusal means.

#![forbid(unsafe_code)]

pub mod clock;
mod atomic;
pub mod audit;
pub mod backend;
mod batch;
mod bounds;
pub mod breaker;
pub mod lease;
pub mod local;
pub mod postgres;
pub mod redis;
pub mod remote;
mod wire_form;
mod simple;
mod stand_in;
pub mod tls;

use std::future::Future;
use std::sync::Weak;

use tollgate_limit::{Claim, Draw, Settlement, Standing};

pub use backend::Backend;
pub use batch::{Counters, Health};
pub use local::LocalStore;
pub use remote::RemoteStore;
pub use stand_in::{Owed, StandIn};

/// A place where buckets live.
///
/// Time is the store's own: the process's clock, or the server's. Answers carry durations, never instants. The
/// request path runs on per-core runtimes, so futures need not be `Send`. How calls are batched is a store's affair.
pub trait Store: 'static {
    /// Draws every claim, or none of them: all are charged when every enforced claim can pay, otherwise no bucket
    /// changes. No two claims share a limit. The order of claims never matters.
    ///
    /// # Errors
    /// When the store did not answer, and so nobody knows; it is the caller's to say what that means.
    fn draw<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> impl Future<Output = Result<Draw, StoreError>> + 'a;

    /// Corrects earlier grants: charges more, refunds, releases. It never waits and cannot fail towards the caller:
    /// a remote store queues it for its next call and counts what it had to drop.
    fn settle(&self, settlements: &[Settlement<'_>]);

    /// How the buckets stand, charging nothing.
    ///
    /// # Errors
    /// As [`Store::draw`].
    fn peek<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> impl Future<Output = Result<Vec<Standing>, StoreError>> + 'a;

    /// How many gateways share this store, this one included: what a local share is a part of.
    fn replicas(&self) -> u32 {
        1
    }

    /// Units that the bucket of `claim` has at most now, as far as that is known here without asking; `None`: it is not, or
    /// the bucket may be full.
    fn at_most(&self, _claim: &Claim<'_>) -> Option<u64> {
        None
    }

    /// Names what decides while this store does not answer: it is told how many gateways there are, and asked what it has
    /// granted.
    fn substitute(&self, _stand_in: Weak<dyn StandIn>) {}
}

/// Why a store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It was asked and took longer than `answer_within`.
    #[error("no answer in time")]
    Timeout,
    /// It was not asked within `answer_within`.
    #[error("no answer in time")]
    Overdue,
    /// It cannot be reached, its circuit is open, or it refused the call.
    #[error("not available: {0}")]
    Unavailable(String),
    /// It was asked, and the connection was lost before its answer.
    #[error("not available: {0}")]
    Lost(String),
    /// A bucket in it cannot be read; nothing was drawn.
    #[error("corrupt answer: {0}")]
    Corrupt(String),
    /// It answered what cannot be; what it has drawn is not known.
    #[error("corrupt answer: {0}")]
    Garbled(String),
}

impl StoreError {
    /// A fixed word for metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Timeout | Self::Overdue => "timeout",
            Self::Unavailable(_) | Self::Lost(_) => "unavailable",
            Self::Corrupt(_) | Self::Garbled(_) => "corrupt",
        }
    }

    /// Whether the store was asked and may have charged the request.
    pub const fn may_have_charged(&self) -> bool {
        match self {
            Self::Timeout | Self::Lost(_) | Self::Garbled(_) => true,
            Self::Overdue | Self::Unavailable(_) | Self::Corrupt(_) => false,
        }
    }
}

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
