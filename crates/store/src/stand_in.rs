//! What decides in the place of a store that does not answer, as the store knows it.

use std::sync::Arc;

use tollgate_limit::{KeyBytes, Limit};

/// Decides in the place of a store that does not answer.
pub trait StandIn: Send + Sync {
    /// As many gateways share the store from now on. Called where a request may wait: whatever takes time is left to
    /// another thread.
    fn shared_by(&self, replicas: u32);

    /// What it has granted that no bucket of the store was charged for. Told once: the store charges it before anybody asks
    /// it again.
    fn owed(&self) -> Vec<Owed>;

    /// Owes again what could not be charged; what there is no room for comes back.
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
