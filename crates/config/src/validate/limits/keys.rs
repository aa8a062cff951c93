//! Keys of one limit that cannot be combined, or that need another key.

use super::{Builder, dotted};
use crate::raw::RawLimit;
use crate::reading::{Mirror, Program};
use crate::settings::Topology;
use crate::values::rate::Rate;
use tollgate_limit::lease::Terms;
use tollgate_limit::{Kind, Mode, OnFailover, Placement, Role};
use tollgate_policy::{Cost, Rule};

impl Builder<'_, '_> {
    pub(super) fn check_keys(&mut self) {
        let raw = &self.raw.value;
        let name = &self.name.value;
        let title = format!("limit `{name}` is a rate and a concurrency limit at once");
        let label = "make two limits of it, and name both on the route";
        self.clash("in_flight", "rate", title, label);
        for key in NOT_IN_FLIGHT {
            let title = format!("`{key}` means nothing for a concurrency limit");
            let label =
                "it counts requests in flight, and gives each place back when the request ends";
            self.clash(key, "in_flight", title, label);
        }
        let both = "both decide after the response what was charged";
        let given_back = "what was taken at one price would be given back at another";
        let mut excluded = vec![
            ("settle", "count", both),
            ("follow_upstream", "settle", given_back),
            ("follow_upstream", "count", given_back),
            ("follow_upstream", "refund_on", given_back),
        ];
        if raw.lease().value {
            let label = "a gateway may refuse a key while other gateways hold units of it";
            excluded.push(("penalty", "lease", label));
        }
        for (one, other, label) in excluded {
            let title = format!("`{one}` and `{other}` cannot be combined");
            self.clash(one, other, title, label);
        }
        self.check_estimate();
        self.check_following();
        self.check_store(raw);
        if raw.rate.is_absent() && raw.in_flight.is_absent() {
            let title = format!("limit `{name}` does not say how much");
            self.context
                .error(title, self.raw.place, "`rate` is missing")
                .help("write rate = \"100/minute\", or in_flight = 10 for a concurrency limit");
        }
    }

    fn clash(&mut self, one: &str, other: &str, title: String, label: &str) {
        if let (Some(one), Some(other)) = (self.raw.place(one), self.raw.place(other)) {
            let problem = self.context.error(title, one, label);
            problem.at(other, "beside this");
        }
    }

    /// The percentages whose use is an event, in ascending order. They are of a window: a bucket that fills
    /// continuously has no use that begins anew.
    pub(super) fn events(&mut self) -> Vec<u8> {
        let raw = &self.raw.value;
        let (mut events, place) = (raw.events().value, raw.events.place());
        let Some(place) = place.filter(|_| !events.is_empty() && raw.in_flight.is_absent()) else {
            return Vec::new();
        };
        if raw.algorithm().value != Kind::FixedWindow {
            let label = "they are percentages of what a window grants";
            self.context
                .error("`events` needs a window", place, label)
                .help("write algorithm = \"fixed_window\"");
        }
        if !self.around.has_admin && self.context.program == Program::Gateway {
            let label = "the admin listener and its webhook send them";
            self.context
                .error("`events` needs an admin listener", place, label)
                .help("write admin.listen = \"127.0.0.1:9180\"");
        }
        events.sort_unstable();
        events.dedup();
        events
    }

    /// `cost` and `estimate` would both say what is charged at admission.
    fn check_estimate(&mut self) {
        let raw = &self.raw.value;
        let estimate = raw.settle.get().and_then(|settle| settle.estimate);
        let (Some(cost), Some(estimate)) = (raw.cost.get(), estimate) else {
            return;
        };
        let title = "`cost` and the `estimate` of `settle` cannot be combined";
        let label = "both say what is charged until the response is known";
        let problem = self
            .context
            .error(title, estimate, label)
            .at(cost.place, "beside this");
        match cost.value {
            Cost::Fixed(_) => problem.help("leave out `cost`"),
            _ => problem.help("leave out `estimate`: then the cost is reserved, the most that the request may come to, and the response settles it"),
        };
    }

    fn check_store(&mut self, raw: &RawLimit) {
        let store = self.around.store;
        let shared = self.placement() == Placement::Shared;
        let cluster = store.is_some_and(|store| store.topology == Topology::Cluster);
        if let (true, true, Some(rule)) = (shared, cluster, raw.on_failover.get())
            && rule.value == OnFailover::Drain
        {
            let title = "`on_failover = \"drain\"` cannot be kept on a Redis Cluster";
            self.context
                .error(title, rule.place, "a gateway would not see the fail-over")
                .note("a fail-over is detected by the identity of the server that responds; in a cluster many servers respond, and slots move between them")
                .help("leave it out (\"keep\"), or use one server or redis+sentinel://");
        }
        let of_store = raw.written(["lease", "on_failover", "when_down"]);
        for (key, place) in of_store.filter(|_| !shared) {
            let title = format!("`{key}` needs a shared store");
            let label = "this limit's buckets live in the process";
            let problem = self.context.error(title, place, label);
            match raw.store.place() {
                Some(local) => problem.at(local, "because of this"),
                None if !self.around.has_store => problem.note("no [store] is configured"),
                None => problem,
            };
        }
        if let (Some(at), false) = (raw.store.get(), self.around.has_store)
            && at.value == Placement::Shared
        {
            let name = &self.name.value;
            let title = format!("limit `{name}` is to be shared, but there is no store");
            self.context
                .error(title, at.place, "`[store]` is missing")
                .help("add a [store] with its kind, url, when_down and key_secret");
        }
    }

    /// `follow_upstream` needs a minimum, and only works for local limits.
    fn check_following(&mut self) {
        let Some(follow) = self.raw.follow_upstream.get() else {
            return;
        };
        if let Some(least) = follow.least.get()
            && least.value == Rate::Unlimited
        {
            let title = "`follow_upstream` does not say how far the rate may fall";
            self.context
                .error(title, least.place, "`least` must be a rate")
                .help("write follow_upstream = { least = \"10/minute\" }");
        }
        if self.placement() == Placement::Shared {
            let title = "a rate that follows the upstream's health is kept in the process";
            self.context
                .error(title, follow.place, "each gateway judges by itself")
                .help("add store = \"local\"");
        }
    }

    /// Reports sets of numbers of a leased limit that cannot be leased.
    pub(super) fn check_lease(&mut self, rule: &Rule) {
        let raw = &self.raw.value;
        let (Some(place), Some(store)) = (raw.lease.place(), self.around.store) else {
            return;
        };
        // For a concurrency limit another check reports that a lease has no meaning.
        if !rule.live.lease
            || rule.live.placement != Placement::Shared
            || rule.live.algorithm.kind() == Kind::InFlight
        {
            return;
        }
        for limit in rule.variants().filter(|limit| limit.mode != Mode::Off) {
            let Err(reason) = Terms::of(&limit.algorithm) else {
                continue;
            };
            let whose = dotted(&limit.name, limit.tier.as_deref(), limit.role);
            let base = limit.tier.is_none() && limit.role == Role::Live;
            // In a cluster a request's buckets may be on different servers only if all of them can be leased.
            let problem = if base || store.topology == Topology::Cluster {
                let title = format!("`{whose}` cannot be leased");
                self.context.error(title, place, "asked for here")
            } else {
                let title = format!("`{whose}` is not leased: every decision asks the store");
                self.context.warning(title, place, "asked for here")
            };
            let at = match reason.field {
                "algorithm" | "debt" | "max_wait" => raw.place(reason.field),
                _ => raw.burst.place().or(raw.rate.place()),
            };
            match at.filter(|_| base) {
                Some(at) => problem.at(at, reason.message),
                None => problem.note(reason.message),
            };
        }
    }
}

/// The keys that mean nothing for a concurrency limit.
const NOT_IN_FLIGHT: [&str; 9] = [
    "algorithm",
    "lease",
    "settle",
    "count",
    "refund_on",
    "follow_upstream",
    "ceiling",
    "refuse_status",
    "events",
];
