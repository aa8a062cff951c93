//! The MariaDB and MySQL store. Batching, deadlines and results are in [`super::batch`], the
//! decision on rows in [`super::sql`]; this module contains the address, the session, the call of the
//! procedure for requests for token buckets, and one short transaction for the rest, in which the pure
//! core decides. Both lock the buckets of a batch in key order.
//!
//! The protocol has no pipelining: a session runs one text of statements after the other. So the
//! procedure is called by one text, and the transaction has two.

mod address;
mod audit;
mod client;
mod document;
mod draw;
mod fault;
mod link;
mod mark;
mod transaction;

use self::address::addresses;
use self::link::MysqlLink;
use super::options::RemoteOptions;
use super::remote::RemoteStore;
use super::sql;
use super::tls::Tls;

pub use self::address::AddressError;

/// The tables and procedures, for installations in which the gateway may not create them:
/// `tollgate schema --sql mysql`.
pub const fn schema_sql() -> &'static str {
    include_str!("mysql/schema.sql")
}

/// Checks an address without connecting.
pub fn check_address(url: &str) -> Result<(), AddressError> {
    addresses(url, &Tls::default()).map(drop)
}

/// Starts the thread of a store at `mysql://user:password@host:3306/database?ssl-mode=required`,
/// which connects and reconnects; does not wait for it.
pub fn start(url: &str, tls: &Tls, options: RemoteOptions) -> std::io::Result<RemoteStore> {
    sql::start("store-mysql", options, |base| {
        MysqlLink::new(url, tls, base)
    })
}
