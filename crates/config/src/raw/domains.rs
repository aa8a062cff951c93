//! `[[decide.rules]]`: rules for the descriptors of Envoy's rate limit service.

use crate::declare::settings;

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
