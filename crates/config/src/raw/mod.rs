//! The mirror of the file: every key it may hold, as it is written. Doc comments here become the descriptions of the
//! JSON Schema, so they address authors of files.

mod costs;
mod decide;
mod domains;
mod identities;
mod in_flight;
mod limits;
mod prices;
mod routes;
mod server;
mod store;
mod tests_table;
mod traces;
mod upstreams;

pub(crate) use costs::*;
pub use decide::*;
pub use domains::*;
pub(crate) use identities::*;
pub(crate) use in_flight::*;
pub(crate) use limits::*;
pub(crate) use prices::*;
pub(crate) use routes::*;
pub use server::*;
pub use store::*;
pub use tests_table::*;
pub use traces::*;
pub(crate) use upstreams::*;

use super::declare::table;
use super::lists::{Named, OneOrMany, ShortOr};
use super::source::At;
use super::text::Text;
use tollgate_policy::Responses;
use tollgate_policy::address::AddressPolicy;
use tollgate_policy::upstream::Upstream;

table! {
    /// The configuration of Tollgate, a rate-limiting reverse-proxy gateway.
    RawFile {
        /// More files to read, relative to this one; `*` in the last part matches many. Their tables join this file's, and
        /// a name that is defined twice is an error.
        include: OneOrMany<Text> => ["limits.toml", "routes/*.toml"],
        /// The listeners for clients, with their timeouts and bounds.
        server: Server => { listen = "http://0.0.0.0:8080" },
        /// The admin listener: health, metrics, status.
        admin: Admin => { listen = "127.0.0.1:9180" },
        /// The listeners over which other proxies and programs ask for decisions: `auth_request` of NGINX, `forwardAuth` of Traefik,
        /// Envoy's rate limit service. Without this table there are none.
        decide: Decide => { listen = "http://127.0.0.1:9190", refuse_status = 403 },
        /// The access log and the operations log.
        log: Log => { access = "stdout", format = "json" },
        /// Sends spans of sampled requests to a collector of traces.
        traces: Traces => { url = "http://127.0.0.1:4318/v1/traces" },
        /// How the address of a client is found: the one place that says which proxies are trusted.
        address: AddressPolicy => { trusted_proxies = ["10.0.0.0/8"] },
        /// Ways to identify callers, by name. Limits refer to them in `per`.
        identities: Named<RawIdentity> => { tenant = { key = "header:x-api-key", when_missing = "refuse" } },
        /// Numbers of limits by tier: `tiers.pro.search` replaces the numbers of `limits.search` for callers of tier `pro`.
        tiers: Named<Named<ShortOr<super::rate::Rate, RawTier>>> => { pro = { search = "1000/minute" } },
        /// Limits, by name. Routes refer to them in `limits`.
        limits: Named<RawLimit> => { per_caller = { rate = "100/minute", burst = 20, per = "address" } },
        /// What the tokens of language models cost, for limits that count money.
        prices: RawPrices => { currency = "USD", models = { "gpt-4o*" = { input = "2.50", output = "10" } } },
        /// The store that several gateways share. Without it every gateway counts for itself.
        store: RawStore => { kind = "redis", url = "redis://127.0.0.1:6379/0", when_down = "local_share", key_secret = "${TOLLGATE_KEY_SECRET}" },
        /// The services that requests are forwarded to, by name.
        upstreams: Named<Upstream> => { app = { servers = ["http://10.0.0.1:3000"] } },
        /// Defaults of routes.
        defaults: RawDefaults => { limits = ["per_caller"] },
        /// Routes: each takes the requests that match it, forwards them, and charges them on its limits. The most specific route wins.
        routes: Vec<At<RawRoute>> => [{ match = "/**", upstream = "http://127.0.0.1:3000", limits = ["per_caller"] }],
        /// The form of refusals and quota headers.
        responses: Responses => { headers = ["ratelimit", "x-ratelimit"] },
        /// Tests: requests and the verdicts that are expected. `tollgate check` runs them in virtual time.
        tests: Vec<At<RawTest>> => [{ send = "6 x GET /hello from 192.0.2.1", expect = { allowed = 5, refused = 1 } }],
    }
}
