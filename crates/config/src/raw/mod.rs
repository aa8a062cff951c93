//! The mirror of the file: every key it may hold, as it is written. Doc comments here become the descriptions of the
//! JSON Schema, so they address authors of files.

mod decide;
mod identities;
mod limits;
mod routes;
mod server;
mod store;
mod upstreams;

pub use decide::*;
pub(crate) use identities::*;
pub(crate) use limits::*;
pub(crate) use routes::*;
pub use server::*;
pub use store::*;

use super::values::forms::Start;
use super::values::messages::HeaderText;
use crate::reading::{At, Context, Named, OneOrMany, ShortOr, Table, Text, settings, table};
use tollgate_limit::Micros;
use tollgate_policy::Responses;
use tollgate_policy::identity::address::AddressPolicy;
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
        tiers: Named<Named<ShortOr<super::values::rate::Rate, RawTier>>> => { pro = { search = "1000/minute" } },
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

table! {
    /// A test: requests and the verdicts that are expected. `tollgate check` runs it in virtual time with fresh buckets.
    RawTest {
        /// Its name in the report. Default: the value of `send`.
        name: Text => "a free key may burst five",
        /// `[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME] [every TIME] [for TIME] [answered STATUS]`. The
        /// entries of a list are sent in order, to the same buckets. The upstream responds with 200 unless `answered` names a status.
        @required("send = \"21 x POST /v1/search/a as tenant:acme at 0s\"") send: OneOrMany<Text> => "21 x POST /v1/search/a as tenant:acme at 0s",
        /// The moment at which it begins, on which calendar windows depend.
        at: Start = "2026-01-01T00:00:00Z",
        /// The body of each request, as keys, conditions, costs and prices read it. Its `content-type` is `application/json` unless
        /// `headers` has another one.
        body: Text => "{\"model\":\"gpt-4o\",\"max_tokens\":100}",
        /// Headers of the requests; a `content-length` stands for a body.
        headers: Named<HeaderText> => { "x-api-key" = "k-123" },
        /// The expected result.
        @required("expect = { allowed = 20, refused = 1 }") expect: Expect => { allowed = 20, refused = 1 },
    }
}

settings! {
    /// The expected result of a test. Values that are left out are not checked.
    pub struct Expect {
        /// Number of requests admitted.
        allowed: Option<u64> => 20,
        /// Number of requests refused by a limit.
        refused: Option<u64> => 1,
        /// Number of requests admitted on another target of their route (`over_limit`).
        over_limit: Option<u64> => 5,
        /// The `Retry-After` of the last refusal, in whole seconds, rounded up.
        retry_after: Option<Micros> => "2s",
        /// The status of the last response, where it is the gateway's own (404, 401, 429).
        status: Option<u16> [100..=599] => 429,
        /// The limit that refused last.
        limit: Option<String> => "search",
    }
    check check_expect;
}

/// What a test expects must be possible.
fn check_expect(expect: &Expect, table: &Table<'_>, context: &mut Context<'_>) {
    if table.keys.is_empty() {
        context
            .error("a test that expects nothing", table.place, "an empty table")
            .help("expect = { allowed = 20, refused = 1 }");
    }
    let Some((place, after)) = table.place("retry_after").zip(expect.retry_after) else {
        return;
    };
    if expect.refused == Some(0) {
        let title = "a wait is expected, but no refusal";
        context.error(title, place, "only a refusal names a wait");
    }
    if !after.0.is_multiple_of(1_000_000) {
        context
            .error(
                "`Retry-After` is whole seconds",
                place,
                "no client is ever told this",
            )
            .help("waits are rounded up to whole seconds: a wait of 100ms is \"1s\"");
    }
}
