//! The mirror of the file: every key it may hold, as it is written. Doc comments here become the descriptions of the
//! JSON Schema, so they speak to whoever writes a file.

mod identities;
mod limits;
mod routes;
mod server;
mod store;
mod tests_table;
mod upstreams;

pub(crate) use identities::*;
pub(crate) use limits::*;
pub(crate) use routes::*;
pub use server::*;
pub use store::*;
pub(crate) use tests_table::*;
pub(crate) use upstreams::*;

use super::reader::table;
use super::scalar::{Named, OneOrMany, ShortOr, Text};
use super::source::At;

table! {
    /// gateway.toml: a rate-limiting reverse-proxy gateway.
    RawFile {
        /// More files to read, relative to this one; `*` in the last part matches many. Their tables join this file's;
        /// a name defined twice is an error.
        include: OneOrMany<Text>,
        /// Where it listens, and what it takes from callers.
        server: Server,
        /// The admin listener: health, metrics, inspection.
        admin: Admin,
        /// The access log and the operations log.
        log: Log,
        /// How a caller's address is known: the one place for trust.
        address: Address,
        /// Ways to tell who is asking, by name.
        identities: Named<RawIdentity>,
        /// Numbers of limits by tier: `tiers.pro.search` replaces the numbers of `limits.search` for callers of tier `pro`.
        tiers: Named<Named<ShortOr<super::rate::Rate, RawTier>>>,
        /// Limits, by name.
        limits: Named<RawLimit>,
        /// The store that gateways share; absent, everything is local.
        store: RawStore,
        /// Where requests go, by name.
        upstreams: Named<RawUpstream>,
        /// What is matched, where it goes, which limits it is charged on. The most specific route wins.
        routes: Vec<At<RawRoute>>,
        /// How refusals and quota fields are written.
        responses: RawResponses,
        /// Requests with the verdicts they must get; `tollgate check` runs them in virtual time.
        tests: Vec<At<RawTest>>,
    }
}
