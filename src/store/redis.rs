//! The Redis store (Redis, Valkey; single, Sentinel, Cluster): one script decides a whole batch at the server's time.
//!
//! Batching, deadlines and answers are [`super::batch`]'s; here is what is Redis: the address, the connection, the
//! scripts and their arguments: `redis/draw_bucket.lua` for the common case, `redis/draw.lua` for all of them.

mod address;
mod audit;
mod bucket;
mod link;
mod pack;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use address::{Address, AddressError};
pub use audit::{Finding, Weight};

use self::link::RedisLink;
use super::batch::Shared;
pub use super::batch::{Counters, Health};
use super::shape::Names;
use super::{Store, StoreError};
use crate::clock::Clock;
use crate::limit::{Claim, Draw, Micros, Settlement, Standing};

/// What a [`RedisStore`] is made of.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Where it is.
    pub address: Address,
    /// The longest a request waits for an answer.
    pub answer_within: Micros,
    /// Keys the names of buckets; the same for all gateways of one store.
    pub key_secret: Vec<u8>,
    /// Our own clock: deadlines and bounds.
    pub clock: Clock,
    /// Tests only: decide at this clock's time instead of the server's.
    pub pinned: Option<Clock>,
    /// Whether requests that the server would certainly refuse are refused without asking it.
    pub local_refusals: bool,
}

/// Buckets in Redis.
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
    names: Names,
    audit: Arc<parking_lot::Mutex<Vec<Finding>>>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// How many gateways share the store, where that is said instead of counted.
    replicas: Option<u32>,
}

impl RedisStore {
    /// Starts the store's thread, which connects and keeps connecting; does not wait for it.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be made.
    pub fn start(options: RedisOptions) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(options.clock.clone(), options.answer_within, options.local_refusals));
        let audit = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let link = RedisLink::new(options.address, options.clock, options.pinned, shared.clone(), audit.clone());
        // One call in flight: a second one halves what is merged into each (measured), and heartbeats of places held
        // rely on the order of calls.
        let thread = super::batch::start("store-redis", 1, shared.clone(), link)?;
        Ok(Self { shared, names: Names::new(&options.key_secret), audit, thread: Some(thread), replicas: None })
    }

    /// Says how many gateways share the store, instead of counting them; `None`: they are counted.
    #[must_use]
    pub fn with_replicas(mut self, replicas: Option<u32>) -> Self {
        self.replicas = replicas;
        self
    }

    /// Waits until it is connected, at most `bound`; whether it is.
    pub async fn ready(&self, bound: Duration) -> bool {
        tokio::time::timeout(bound, self.shared.connected()).await.is_ok()
    }

    /// How it does.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What the start-up audit of the server found; empty before the first connection.
    pub fn findings(&self) -> Vec<Finding> {
        self.audit.lock().clone()
    }

    /// Forgets what is known of exhausted buckets: limits have changed or buckets were reset.
    pub fn forget_bounds(&self) {
        self.shared.bounds.forget();
    }
}

impl Drop for RedisStore {
    /// Answers what is queued and stops the thread.
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported there; here nothing is left to do.
            let _ = thread.join();
        }
    }
}

impl Store for RedisStore {
    async fn draw<'a>(&'a self, claims: &'a [Claim<'a>]) -> Result<Draw, StoreError> {
        self.shared.ask(self.names.wants(claims), false).await
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        self.shared.settle(&self.names, settlements);
    }

    async fn peek<'a>(&'a self, claims: &'a [Claim<'a>]) -> Result<Vec<Standing>, StoreError> {
        let draw = self.shared.ask(self.names.wants(claims), true).await?;
        Ok(draw.standings.into_vec())
    }

    fn replicas(&self) -> u32 {
        self.replicas.unwrap_or_else(|| self.shared.replicas.load(Ordering::Relaxed).max(1))
    }
}
