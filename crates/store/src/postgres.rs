//! The PostgreSQL store (and compatible servers). Batching, deadlines and results are in
//! [`super::batch`]; this module contains the SQL side: the address, the session, the call of the
//! function that decides most requests, and one short transaction for the rest, in which the pure
//! core decides.
//!
//! Both lock the buckets of a batch in key order and work behind a transaction pooler: they use no
//! session state and no named statement.

mod audit;
mod engine;
mod link;
mod mark;

use self::link::PostgresLink;
use super::options::RemoteOptions;
use super::remote::RemoteStore;
use super::sql;
use super::tls::Tls;

/// The table and functions, for installations in which the gateway may not create them:
/// `tollgate schema --sql postgres`.
pub const fn schema_sql() -> &'static str {
    include_str!("postgres/schema.sql")
}

/// The tables for a database that spans machines: `tollgate schema --sql spanning`.
pub const fn spanning_schema_sql() -> &'static str {
    include_str!("postgres/spanning.sql")
}

/// Why an address is invalid. Never repeats the address, because it may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address of PostgreSQL: {0}")]
pub struct AddressError(String);

/// Checks an address without connecting.
pub fn check_address(url: &str) -> Result<(), AddressError> {
    link::address(url).map(drop)
}

/// Starts the thread of a store, which connects and reconnects; does not wait for it. The address
/// is `postgres://user:password@host/database?sslmode=require`, or in libpq's `key=value` form.
pub fn start(url: &str, tls: &Tls, options: RemoteOptions) -> std::io::Result<RemoteStore> {
    sql::start("store-postgres", options, |base| {
        PostgresLink::new(url, tls, base)
    })
}
