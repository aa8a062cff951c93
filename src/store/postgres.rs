//! The PostgreSQL store (and what speaks it). Batching, deadlines and answers are [`super::batch`]'s; here is what is
//! SQL: the address, the session, one function for requests with one token bucket, one short transaction for the rest.
//!
//! The transaction locks the buckets of a batch in key order, reads the clock after the locks, decides with the pure
//! core itself and writes. Both are safe behind a transaction pooler: no session state, no named statement.

mod columns;
mod fields;
mod link;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::link::PostgresLink;
use super::batch::Shared;
pub use super::batch::{Counters, Health};
use super::shape::Names;
use super::{Store, StoreError};
use crate::clock::Clock;
use crate::limit::{Claim, Draw, Micros, Settlement, Standing};

/// What a [`PostgresStore`] is made of.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Where it is: `postgres://user:password@host/database?sslmode=require`, or libpq's `key=value` words.
    pub url: String,
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
    /// Whether the gateway makes its table and functions ([`schema_sql`]) where there are none.
    pub create: bool,
    /// Whether a charge is on disk before it is answered (matters for a table made logged); otherwise a crash of the
    /// server may forget the last moments.
    pub synchronous_commit: bool,
}

/// The table and functions, to be made by hand where the gateway may not: `tollgate schema --sql postgres`.
pub const fn schema_sql() -> &'static str {
    include_str!("postgres/schema.sql")
}

/// Why an address is none. Never repeats the address: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address of PostgreSQL: {0}")]
pub struct AddressError(String);

/// Checks an address.
///
/// # Errors
/// When it is none.
pub fn check_address(url: &str) -> Result<(), AddressError> {
    link::address(url).map(drop)
}

/// Buckets in PostgreSQL.
#[derive(Debug)]
pub struct PostgresStore {
    shared: Arc<Shared>,
    names: Names,
    thread: Option<std::thread::JoinHandle<()>>,
    /// How many gateways share the store, where that is said instead of counted.
    replicas: Option<u32>,
}

impl PostgresStore {
    /// Starts the store's thread, which connects and keeps connecting; does not wait for it.
    ///
    /// # Errors
    /// When the address is none, or the thread or its runtime cannot be made.
    pub fn start(options: PostgresOptions) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(options.clock.clone(), options.answer_within, options.local_refusals));
        let names = Names::new(&options.key_secret);
        let link = PostgresLink::new(options, shared.clone()).map_err(std::io::Error::other)?;
        // One connection with one call in flight: a second takes every other request from the merge.
        let thread = super::batch::start("store-postgres", 1, shared.clone(), link)?;
        Ok(Self { shared, names, thread: Some(thread), replicas: None })
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

    /// Forgets what is known of exhausted buckets: limits have changed or buckets were reset.
    pub fn forget_bounds(&self) {
        self.shared.bounds.forget();
    }
}

impl Drop for PostgresStore {
    /// Answers what is queued and stops the thread.
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported there; here nothing is left to do.
            let _ = thread.join();
        }
    }
}

impl Store for PostgresStore {
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
