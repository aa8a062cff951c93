//! `[decide]`: the listeners over which other proxies and programs ask for decisions.

use crate::reading::settings;
use crate::values::envoy_file::{EnvoyFile, EnvoyFiles};
use crate::values::forms::TIMEOUT;
use crate::values::listener::{DecideListener, DecideListeners};
use crate::values::networks::ProxyNetworks;
use crate::values::rate::OverrideText;
use tollgate_limit::{Micros, Rate};
use tollgate_policy::identity::address::NetSet;

settings! {
    /// The listeners over which other proxies and programs ask for decisions: `auth_request` of NGINX, `forwardAuth` of
    /// Traefik, `forward_auth` of Caddy, Envoy's rate limit service. Without this table there are none.
    pub struct Decide {
        /// Addresses: `http://ADDRESS:PORT` or `unix:/PATH` for `/check` and the JSON resources, `grpc://ADDRESS:PORT` for Envoy's
        /// rate limit service. They speak no TLS.
        listen: Vec<DecideListener> as DecideListeners = "http://127.0.0.1:9190" => ["http://127.0.0.1:9190", "unix:/run/tollgate/decide.sock"],
        /// Networks of the proxies and programs that may ask. All others get a 403, and nothing is decided or charged for them.
        /// Processes that can connect to a Unix socket are trusted.
        trusted: NetSet as ProxyNetworks = ["127.0.0.0/8", "::1"] => ["127.0.0.0/8", "10.0.0.0/8"],
        /// The status of a refusal. With 429 each refusal has its own status: 429 for a limit, 404 without a route, 503 without the
        /// store. Another status replaces all of these but 401; the header `X-Tollgate-Status` has the original. NGINX needs 403:
        /// its `auth_request` turns every other status except 401 into 500.
        refuse_status: u16 [400..=599] = 429 => 403,
        /// Number of requests at the same time whose charges are still open: those that hold a place of an `in_flight` limit, or
        /// whose charge a report may correct (`settle`, `refund_on`, `count`). Further ones are refused with 503.
        permits: usize [1..=10_000_000] = 100000 => 10000,
        /// How long an admitted request stays open if no program reports its end. A place of an `in_flight` limit is then given
        /// back; any other charge stays as it is.
        permit_expiry: Micros [TIMEOUT] = "60s" => "5m",
        /// Files of envoyproxy/ratelimit, read as they are, relative to this one; `*` in the last part matches many. They have at
        /// most 10,000 descriptors in all. Each of their limits is a fixed window of the clock, called by its domain, keys and
        /// values: `edge.remote_address`. A change of a file reloads the configuration.
        envoy: Vec<EnvoyFile> as EnvoyFiles = [] => ["ratelimit/*.yaml"],
        /// Rules for the descriptors of Envoy's rate limit service, beside those of the files.
        rules: Vec<RuleOfDescriptors> = [] => [{ domain = "edge", descriptor = [{ key = "remote_address" }], limits = ["per_caller"] }],
        /// Rates that Envoy may ask for instead of a limit's own (`limit` of a route's `rate_limits`). Any other rate changes nothing.
        /// Where no rule matches such a descriptor, the limit `overrides` counts it by that rate, or by the first of these.
        overrides: Vec<Rate> as Vec<OverrideText> = [] => ["1000/minute"],
    }
}

settings! {
    /// A rule for descriptors: a request whose descriptor has just these entries, in this order, is charged on its limits.
    pub struct RuleOfDescriptors {
        /// The domain that Envoy's filter sends.
        @required("domain = \"edge\" is the `domain` of Envoy's filter") domain: String => "edge",
        /// The entries of the descriptor, in the order of the route's actions.
        @required("descriptor = [{ key = \"remote_address\" }] matches each client's address") descriptor: Vec<DescriptorEntry> => [{ key = "remote_address" }, { key = "path", value = "/login*" }],
        /// The limits that it is charged on; `[]` admits everything. `per = "descriptor"` has a bucket for each descriptor, `per = "address"`
        /// for each address in `remote_address` or `masked_remote_address`, `per = "everyone"` one bucket.
        @required("limits = [\"per_login\"] names limits; limits = [] admits everything") limits: Vec<String> => ["per_login"],
        /// A name by which other rules replace it.
        name: Option<String> => "logins",
        /// The names of the rules that do not hold for a request that this rule matches as well.
        replaces: Vec<String> = [] => ["all_requests"],
        /// Whether it refuses a request only together with all other rules with `quota_mode` that the request matches.
        quota_mode: bool = false => true,
    }
}

settings! {
    /// One entry of a descriptor.
    pub struct DescriptorEntry {
        /// Its key.
        @required("{ key = \"path\" } matches every path, { key = \"path\", value = \"/login\" } one") key: String => "path",
        /// Its value; `*` stands for any characters. Default: any value. Each value has a bucket of its own.
        value: Option<String> => "/login*",
        /// Whether all values that match share one bucket.
        share_threshold: bool = false => true,
    }
}
