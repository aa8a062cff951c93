//! The stand-in that decides while a store does not respond, as the store sees it.

use std::sync::Arc;

use tollgate_limit::{KeyBytes, Limit};

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

/// Units that a bucket is to be charged.
#[derive(Clone, Debug)]
pub struct Owed {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The caller's encoded identity under the limit's scope.
    pub key: KeyBytes,
    /// How many.
    pub units: u64,
}
