//! The MariaDB and MySQL store. Batching, deadlines and results are in [`super::batch`], the
//! decision on rows in [`super::sql`]; this module contains the address, the session, procedures for
//! requests for token buckets, and one short transaction for the rest, in which the pure core
//! decides. All lock the buckets of a batch in key order.
//!
//! The protocol has no pipelining: a session runs one text of statements after the other. So a
//! procedure is called by one text, and the transaction has two.

mod address;
mod audit;
mod client;
mod document;
mod draw;
mod fault;
mod link;
mod mark;
mod several;
mod transaction;

use std::rc::Rc;
use std::sync::LazyLock;

use self::address::addresses;
use self::link::MysqlLink;
use super::batch::{Servers, lane};
use super::remote::RemoteStore;
use super::sql;
use super::tls::Tls;
use crate::clock::Clock;
use tollgate_limit::Micros;

pub use self::address::AddressError;

/// The options of a [`RemoteStore`] in MariaDB or MySQL.
#[derive(Clone, Debug)]
pub struct MysqlOptions {
    /// Its address: `mysql://user:password@host:3306/database?ssl-mode=required`.
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
    /// Whether the gateway creates its tables and procedures ([`schema_sql`]) if they do not exist.
    pub create: bool,
    /// TLS: the trusted authorities and our own certificate.
    pub tls: Tls,
    /// Whether the store has limits of a day or longer: the audit then checks what a crash would
    /// lose.
    pub long_quotas: bool,
}

/// The tables and procedures, for installations in which the gateway may not create them:
/// `tollgate schema --sql mysql`.
pub fn schema_sql() -> &'static str {
    // Two procedures contain the same assignments: they are written in a file of their own.
    static SCHEMA: LazyLock<String> = LazyLock::new(|| {
        let next_row = include_str!("mysql/next_row.sql").trim_end();
        include_str!("mysql/schema.sql").replace("{next_row.sql}", next_row)
    });
    &SCHEMA
}

/// Checks an address.
///
/// # Errors
/// When it is invalid.
pub fn check_address(url: &str) -> Result<(), AddressError> {
    addresses(url, &Tls::default()).map(drop)
}

impl MysqlOptions {
    /// Starts the store's thread, which connects and reconnects; does not wait for it.
    ///
    /// # Errors
    /// When the address is invalid, or the thread or its runtime cannot be created.
    pub fn start(self) -> std::io::Result<RemoteStore> {
        let (within, refusals) = (self.answer_within, self.local_refusals);
        let shared = sql::shared(&self.clock, within, refusals, self.long_quotas);
        let key_secret = self.key_secret.clone();
        let link = MysqlLink::new(self, shared.clone()).map_err(std::io::Error::other)?;
        let servers = Servers::one(shared.clone());
        RemoteStore::start("store-mysql", &key_secret, servers, || {
            lane(shared, Rc::new(link))
        })
    }
}
