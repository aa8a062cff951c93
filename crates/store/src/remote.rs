//! A store on a server: the part that all servers have in common, which is everything
//! except the server's language.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::audit::Finding;
use super::batch::documents::{Document, NewDocument};
use super::batch::{Counters, Health, Servers};
use super::lease::LeaseCounters;
use super::wire_form::Names;
use super::{Deadline, StandIn, Store, StoreError};
use tollgate_limit::{Claim, Draw, Limit, Micros, Settlement, Standing};

/// Buckets on a server that gateways share, made by `redis`, `postgres` and `mysql`.
#[derive(Debug)]
pub struct RemoteStore {
    servers: Servers,
    names: Arc<Names>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// How many gateways share the store, if configured instead of counted.
    replicas: Option<u32>,
}

impl RemoteStore {
    /// Starts the store's thread, which runs `main` to connect and reconnect; does not wait for it.
    pub(super) fn start<F: Future<Output = ()> + 'static>(
        thread: &str,
        key_secret: &[u8],
        servers: Servers,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> std::io::Result<Self> {
        let thread = super::batch::start(thread, main)?;
        let store = Self::without_thread(key_secret, servers);
        *store.thread.lock() = Some(thread);
        Ok(store)
    }

    pub(super) fn without_thread(key_secret: &[u8], servers: Servers) -> Self {
        Self {
            servers,
            names: Arc::new(Names::new(key_secret)),
            thread: Mutex::default(),
            replicas: None,
        }
    }

    /// Sets how many gateways share the store instead of counting them; `None`: they are counted.
    #[must_use]
    pub fn with_replicas(mut self, replicas: Option<u32>) -> Self {
        self.replicas = replicas;
        if let (Some(replicas), Some(leases)) = (replicas, &self.servers.common.leases) {
            leases.shared_by(replicas);
        }
        self
    }

    /// Waits until the store is connected, at most `bound`; returns whether it is.
    pub async fn ready(&self, bound: Duration) -> bool {
        tokio::time::timeout(bound, self.servers.connected())
            .await
            .is_ok()
    }

    /// Waits until a connection was made or has failed, at most `bound`.
    pub async fn tried(&self, bound: Duration) {
        let _ = tokio::time::timeout(bound, self.servers.tried()).await;
    }

    pub fn health(&self) -> Health {
        self.servers.health()
    }

    pub fn counters(&self) -> &Counters {
        &self.servers.common.counters
    }

    /// The product and version of a database; empty before the first connection.
    pub fn engine(&self) -> String {
        self.servers.common.engine()
    }

    /// The findings of the last audit of the server; empty before the first connection.
    pub fn findings(&self) -> Vec<Finding> {
        self.servers.findings()
    }

    /// Audits the server again after limits have changed: from now on the store has limits of a day
    /// or longer, or has none. Waits at most `bound`; returns whether the audit finished. New
    /// findings are logged as warnings.
    pub async fn audit_again(&self, long_quotas: bool, bound: Duration) -> bool {
        self.servers.mind_long_quotas(long_quotas);
        tokio::time::timeout(bound, self.servers.audit_again())
            .await
            .is_ok()
    }

    /// Counters of leases; `None`: this store leases nothing.
    pub fn lease_counters(&self) -> Option<&LeaseCounters> {
        let leases = self.servers.common.leases.as_ref()?;
        Some(&leases.counters)
    }

    /// Gives leases back, responds to queued requests and stops the thread. Later requests get an
    /// error: the store is not available.
    pub fn close(&self) {
        // (A cluster's servers close after it, with its task.)
        self.servers.common.close();
        if let Some(thread) = self.thread.lock().take() {
            // A panic on that thread has already been reported there.
            let _ = thread.join();
            // Nothing is sent to the servers any more.
            if let Some(leases) = &self.servers.common.leases {
                leases.forfeit_unsent();
            }
        }
    }

    /// The longest time that a request's work on the store may last.
    pub fn answer_within(&self) -> Micros {
        self.servers.common.answer_within
    }

    /// Forgets the known bounds, because limits have changed or buckets were reset.
    pub fn forget_bounds(&self) {
        self.servers.common.bounds.forget();
    }
}

/// The document that all gateways of a store share: overrides of operators.
impl RemoteStore {
    /// The document that this gateway read last. The receiver is notified of each change.
    pub fn document(&self) -> tokio::sync::watch::Receiver<Document> {
        self.servers.common.documents.subscribe()
    }

    /// Replaces the document for `keep`, if its epoch is `known`; returns whether it was.
    pub async fn replace_document(
        &self,
        known: u64,
        text: String,
        keep: Duration,
    ) -> Result<bool, StoreError> {
        let new = NewDocument {
            known,
            // Never an epoch that the store has had: it may have lost its document.
            epoch: self.servers.common.clock.now().as_micros().max(known + 1),
            text,
            keep,
        };
        self.servers.common.documents.replace(new).await
    }

    /// The name of the store. Gateways have the same one if they share the buckets there: it is made
    /// from the server's data, the database and the secret of keys. `None`: not known, because the
    /// store has not responded yet, has no place for documents, or does not identify its data.
    ///
    /// Another server or other data has another name, also after a fail-over or a restart.
    pub fn name(&self) -> Option<u64> {
        let origin = self.servers.common.documents.origin()?;
        Some(self.names.store(origin))
    }

    /// The name of a bucket, as documents refer to it.
    pub fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> u128 {
        self.names.name(limit, key).hash
    }

    /// Returns the leases of these buckets, and forgets the known bounds of exhausted ones: they have
    /// got other numbers, or have been filled.
    pub fn let_go(&self, buckets: &[u128]) {
        self.servers.let_go(buckets);
        self.forget_bounds();
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for RemoteStore {
    async fn draw_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        self.servers.draw(self.names.wants(claims), deadline).await
    }

    fn forgo(&self, deadline: &Deadline) {
        self.servers.forgo(deadline);
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        self.servers.settle(&self.names, settlements);
    }

    async fn peek_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        let wants = self.names.wants(claims);
        let draw = self.servers.look(wants, deadline).await?;
        Ok(draw.standings.into_vec())
    }

    fn replicas(&self) -> u32 {
        self.replicas
            .unwrap_or_else(|| self.servers.common.gateways().max(1))
    }

    fn assume_replicas(&self, replicas: u32) {
        self.servers.common.assume_gateways(replicas);
    }

    fn at_most(&self, claim: &Claim<'_>) -> Option<u64> {
        let (name, shape) = (
            self.names.name(claim.limit, claim.key),
            self.names.shape(claim.limit),
        );
        let common = &self.servers.common;
        common.bounds.at_most(&name, &shape, common.clock.now())
    }

    fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> Option<u128> {
        Some(Self::bucket_hash(self, limit, key))
    }

    fn substitute(&self, stand_in: Weak<dyn StandIn>) {
        let common = &self.servers.common;
        common.substitute(self.names.clone(), stand_in, self.replicas.is_none());
    }
}
