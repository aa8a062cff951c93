//! The PostgreSQL store (and compatible servers). Batching, deadlines and results are in
//! [`super::batch`]; this module contains the SQL side: the address, the session, a function for
//! requests with one token bucket, a function for requests with several limits, and one short
//! transaction for the rest, in which the pure core decides.
//!
//! All three lock the buckets of a batch in key order and work behind a transaction pooler: they
//! use no session state and no named statement.

mod audit;
mod columns;
mod link;
mod mark;
mod several;

use std::rc::Rc;

use self::link::PostgresLink;
use super::batch::{Servers, lane};
use super::remote::RemoteStore;
use super::sql;
use super::tls::Tls;
use crate::clock::Clock;
use tollgate_limit::Micros;

/// The options of a [`RemoteStore`] in PostgreSQL.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Its address: `postgres://user:password@host/database?sslmode=require`, or libpq's
    /// `key=value` form.
    pub url: String,
    /// The longest a request waits for a response.
    pub answer_within: Micros,
    /// The secret with which names of buckets are hashed; the same for all gateways of one store.
    pub key_secret: Vec<u8>,
    /// Our own clock, for deadlines and bounds.
    pub clock: Clock,
    /// Tests only: decide at this clock's time instead of the server's.
    pub pinned: Option<Clock>,
    /// Whether requests that the server would certainly refuse are refused without asking it.
    pub local_refusals: bool,
    /// Whether the gateway creates its table and functions ([`schema_sql`]) if they do not exist.
    pub create: bool,
    /// Whether a charge is on disk before its response (matters for a logged table). Otherwise a
    /// crash of the server may lose the last moments.
    pub synchronous_commit: bool,
    /// TLS: the trusted authorities and our own certificate.
    pub tls: Tls,
    /// Whether the store has limits of a day or longer: the audit then checks what a crash would
    /// lose.
    pub long_quotas: bool,
}

/// The table and functions, for installations in which the gateway may not create them:
/// `tollgate schema --sql postgres`.
pub const fn schema_sql() -> &'static str {
    include_str!("postgres/schema.sql")
}

/// Why an address is invalid. Never repeats the address, because it may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address of PostgreSQL: {0}")]
pub struct AddressError(String);

/// Checks an address.
///
/// # Errors
/// When it is invalid.
pub fn check_address(url: &str) -> Result<(), AddressError> {
    link::address(url).map(drop)
}

impl PostgresOptions {
    /// Starts the store's thread, which connects and reconnects; does not wait for it.
    ///
    /// # Errors
    /// When the address is invalid, or the thread or its runtime cannot be created.
    pub fn start(self) -> std::io::Result<RemoteStore> {
        let (within, refusals) = (self.answer_within, self.local_refusals);
        let shared = sql::shared(&self.clock, within, refusals, self.long_quotas);
        let key_secret = self.key_secret.clone();
        let link = PostgresLink::new(self, shared.clone()).map_err(std::io::Error::other)?;
        let servers = Servers::one(shared.clone());
        RemoteStore::start("store-postgres", &key_secret, servers, || {
            lane(shared, Rc::new(link))
        })
    }
}
