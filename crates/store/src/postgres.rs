//! The PostgreSQL store (and what speaks it). Batching, deadlines and answers are [`super::batch`]'s; here is what is
//! SQL: the address, the session, a function for requests with one token bucket, a function for requests with several
//! limits, and one short transaction for the rest, in which the pure core itself decides.
//!
//! All three lock the buckets of a batch in key order and are safe behind a transaction pooler: no session state, no
//! named statement.

mod audit;
mod columns;
mod fields;
mod leased;
mod link;
mod mark;
mod several;

use std::rc::Rc;
use std::sync::Arc;

use self::link::PostgresLink;
use super::batch::{Servers, Shared, lane};
use super::lease::Leases;
use super::remote::RemoteStore;
use super::tls::Tls;
use crate::clock::Clock;
use tollgate_limit::Micros;

/// A lease is a transaction here, while requests without one share a call of the function: for fewer it costs more than it
/// saves (measured with 8: 1000 callers were half as fast as without leases).
const LEASED_LEAST: u64 = 24;

/// What a [`RemoteStore`] in PostgreSQL is made of.
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
    /// Whom to trust and who we are, where the connection is encrypted.
    pub tls: Tls,
    /// Whether limits of a day or longer live here: the audit then minds what a crash would lose.
    pub long_quotas: bool,
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

impl PostgresOptions {
    /// Starts the store's thread, which connects and keeps connecting; does not wait for it.
    ///
    /// # Errors
    /// When the address is none, or the thread or its runtime cannot be made.
    pub fn start(self) -> std::io::Result<RemoteStore> {
        let mut shared = Shared::new(self.clock.clone(), self.answer_within, self.local_refusals);
        shared.leases = Some(Arc::new(
            Leases::new(self.clock.clone(), false).with_least(LEASED_LEAST),
        ));
        let shared = Arc::new(shared);
        shared.mind_long_quotas(self.long_quotas);
        let key_secret = self.key_secret.clone();
        let link = PostgresLink::new(self, shared.clone()).map_err(std::io::Error::other)?;
        let servers = Servers::one(shared.clone());
        RemoteStore::start("store-postgres", &key_secret, servers, || {
            lane(shared, Rc::new(link))
        })
    }
}
