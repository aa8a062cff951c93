//! Stores buckets. A [`Store`] keeps and serialises them; it does not decide what a refusal means.

#![forbid(unsafe_code)]
// The parts that all servers have in common are unused in a build without any.
#![cfg_attr(
    not(any(feature = "redis", feature = "postgres", feature = "mysql")),
    allow(dead_code, unused_imports)
)]

pub mod clock;
pub mod audit;
pub mod backend;
mod batch;
mod bounds;
pub mod breaker;
mod bucket_hash;
mod deadline;
pub mod lease;
pub mod local;
#[cfg(feature = "mysql")]
pub mod mysql;
mod options;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod remote;
mod wire_form;
mod simple;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
#[cfg(any(test, feature = "postgres", feature = "mysql", feature = "simulated"))]
mod sql;
pub mod tls;

use std::future::Future;
use std::sync::{Arc, Weak};

use tollgate_limit::{Claim, Draw, KeyBytes, Limit, Settlement, Standing};

pub use backend::Backend;
pub use batch::documents::Document;
pub use batch::{Counters, Health};
pub use bucket_hash::HashKey;
pub use deadline::Deadline;
pub use local::LocalStore;
pub use options::RemoteOptions;
pub use remote::RemoteStore;

/// Stores buckets.
///
/// Each store uses its own time: the process's clock, or the server's. Its results contain
/// durations, never instants. The request path runs on per-core runtimes, so futures need not be
/// `Send`. A store may batch calls as it likes.
pub trait Store: Send + Sync + 'static {
    /// Draws every claim, or none of them: all are charged if every enforced claim can pay;
    /// otherwise no bucket changes. No two claims share a limit. The order of claims never matters.
    /// A remote store gives its result by the `deadline` of the request.
    ///
    /// # Errors
    /// When the store did not respond, so that the result is unknown.
    fn draw_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> impl Future<Output = Result<Draw, StoreError>> + 'a;

    /// [`Store::draw_until`] for a request that asks the store only once.
    fn draw<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> impl Future<Output = Result<Draw, StoreError>> + 'a {
        async move { self.draw_until(claims, &Deadline::default()).await }
    }

    /// The request of `deadline` was refused because the store did not respond: what the store turns
    /// out to have charged for it is given back. Without this its units stay charged.
    fn forgo(&self, _deadline: &Deadline) {}

    /// Corrects earlier grants: charges more, refunds, releases. It never waits and cannot fail: a
    /// remote store queues the correction for its next call and counts what it must drop.
    fn settle(&self, settlements: &[Settlement<'_>]);

    /// The standing of the buckets, without charging; it fails as [`Store::draw_until`] does.
    fn peek_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> impl Future<Output = Result<Vec<Standing>, StoreError>> + 'a;

    /// [`Store::peek_until`] for a request that asks the store only once.
    fn peek<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> impl Future<Output = Result<Vec<Standing>, StoreError>> + 'a {
        async move { self.peek_until(claims, &Deadline::default()).await }
    }

    /// How many gateways share this store, including this one: the divisor of a local share.
    fn replicas(&self) -> u32 {
        1
    }

    /// The number of gateways that an earlier process knew, for a store that has not been reached yet.
    fn assume_replicas(&self, _replicas: u32) {}

    /// The most units that the bucket of `claim` can have now, if that is known without asking the
    /// server. `None`: it is not known, or the bucket may be full.
    fn at_most(&self, _claim: &Claim<'_>) -> Option<u64> {
        None
    }

    /// The name of the bucket of `limit` for `key` on all gateways; `None`: there are none.
    fn bucket_hash(&self, _limit: &Limit, _key: &[u8]) -> Option<u128> {
        None
    }

    /// Sets the stand-in that decides while this store does not respond. The store tells it the
    /// number of gateways and asks it what it has granted.
    fn substitute(&self, _stand_in: Weak<dyn StandIn>) {}
}

/// Decides while a store does not respond.
pub trait StandIn: Send + Sync {
    /// Sets the number of gateways that share the store. Called where a request may be waiting, so
    /// slow work must run on another thread.
    fn shared_by(&self, replicas: u32);

    /// Returns and clears the units it has granted and that no bucket of the store was charged for.
    /// The store charges them before it decides about another request.
    fn owed(&self) -> Vec<Owed>;

    /// Takes back debts that could not be charged; returns those it has no room for.
    fn owe_again(&self, owed: Vec<Owed>) -> Vec<Owed>;
}

#[derive(Clone, Debug)]
pub struct Owed {
    pub limit: Arc<Limit>,
    /// The caller's encoded identity under the limit's scope.
    pub key: KeyBytes,
    pub units: u64,
}

/// Why a store did not respond.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store was asked and did not respond within `answer_within`.
    #[error("no response in time")]
    Timeout,
    /// The store was not asked within `answer_within`.
    #[error("no response in time")]
    Overdue,
    #[error("not available: {0}")]
    Unavailable(String),
    #[error("not available: {0}")]
    Lost(String),
    #[error("corrupt response: {0}")]
    Corrupt(String),
    #[error("corrupt response: {0}")]
    Garbled(String),
}

impl StoreError {
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

    /// The same failure of a question that charges nothing.
    pub(crate) fn of_a_look(self) -> Self {
        match self {
            Self::Timeout => Self::Overdue,
            Self::Lost(error) => Self::Unavailable(error),
            Self::Garbled(error) => Self::Corrupt(error),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StoreError;

    #[test]
    fn peek_failed_charges_nothing_and_is_counted_as_a_peek() {
        for error in [
            StoreError::Timeout,
            StoreError::Overdue,
            StoreError::Unavailable("gone".into()),
            StoreError::Lost("gone".into()),
            StoreError::Corrupt("odd".into()),
            StoreError::Garbled("odd".into()),
        ] {
            let looked = error.clone().of_a_look();
            assert!(!looked.may_have_charged(), "{looked:?}");
            assert_eq!(
                (looked.label(), looked.to_string()),
                (error.label(), error.to_string())
            );
        }
    }
}

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
