//! Keys of one limit that cannot be combined, or that need another key.

use super::Builder;
use crate::problem::Problem;
use crate::rate::Rate;
use crate::raw::{self, RawPlacement};
use crate::settings::Topology;
use crate::source::Place;
use crate::validate::Context;
use tollgate_limit::Placement;

impl Builder<'_> {
    /// Reports keys that have no meaning together.
    pub(super) fn check_keys(&self, context: &mut Context<'_>) {
        let raw = &self.raw.value;
        let name = &self.name.value;
        let mut clash = |one: Option<Place>, other: Option<Place>, title: &str, label: &str| {
            if let (Some(one), Some(other)) = (one, other) {
                context.push(
                    Problem::error(title)
                        .at(one, label)
                        .at(other, "beside this"),
                );
            }
        };
        let in_flight = raw.in_flight.place();
        clash(
            in_flight,
            raw.rate.place(),
            &format!("limit `{name}` is a rate and a concurrency limit at once"),
            "make two limits of it, and name both on the route",
        );
        for (key, place) in [
            ("algorithm", raw.algorithm.place()),
            ("lease", raw.lease.place()),
            ("settle", raw.settle.place()),
            ("count", raw.count.place()),
            ("refund_on", raw.refund_on.place()),
            ("follow_upstream", raw.follow_upstream.place()),
        ] {
            clash(
                place,
                in_flight,
                &format!("`{key}` means nothing for a concurrency limit"),
                "it counts requests in flight, and gives each place back when the request ends",
            );
        }
        clash(
            raw.settle.place(),
            raw.count.place(),
            "`settle` and `count` cannot be combined",
            "both decide after the response what was charged",
        );
        clash(
            raw.cost.place(),
            raw.settle.place(),
            "`cost` and `settle` cannot be combined",
            "the estimate is what is charged at first",
        );
        for (key, place) in [
            ("settle", raw.settle.place()),
            ("count", raw.count.place()),
            ("refund_on", raw.refund_on.place()),
        ] {
            clash(
                raw.follow_upstream.place(),
                place,
                &format!("`follow_upstream` and `{key}` cannot be combined"),
                "what was taken at one price would be given back at another",
            );
        }
        self.check_following(context);
        let shared = self.placement() == Placement::Shared;
        if let (true, Some(rule)) = (shared, raw.on_failover.get())
            && rule.value == raw::OnFailover::Drain
            && self
                .store
                .is_some_and(|store| store.topology == Topology::Cluster)
        {
            let problem =
                Problem::error("`on_failover = \"drain\"` cannot be kept on a Redis Cluster")
                    .at(rule.place, "nobody would see the fail-over");
            context.push(
                problem
                    .note("a fail-over is known by the identity of the server that answers; here many servers answer, and slots move between them")
                    .help("leave it out (\"keep\"), or use one server or redis+sentinel://"),
            );
        }
        let local = raw.store.place();
        for (key, place) in [
            ("lease", raw.lease.place()),
            ("on_failover", raw.on_failover.place()),
            ("when_down", raw.when_down.place()),
        ] {
            if let (false, Some(place)) = (shared, place) {
                let problem = Problem::error(format!("`{key}` needs a shared store"))
                    .at(place, "this limit's buckets live in the process");
                let problem = match local {
                    Some(local) => problem.at(local, "because of this"),
                    None if self.store.is_none() => problem.note("no [store] is configured"),
                    None => problem,
                };
                context.push(problem);
            }
        }
        if let (true, Some(place)) = (
            raw.rate.is_absent() && raw.in_flight.is_absent(),
            Some(self.raw.place),
        ) {
            let problem = Problem::error(format!("limit `{name}` does not say how much"))
                .at(place, "`rate` is missing");
            context
                .push(problem.help(
                    "write rate = \"100/minute\", or in_flight = 10 for a concurrency limit",
                ));
        }
        if let (Some(place), None, Some(at)) = (raw.store.place(), self.store, raw.store.get())
            && at.value == RawPlacement::Shared
        {
            let problem = Problem::error(format!(
                "limit `{name}` is to be shared, but there is no store"
            ))
            .at(place, "where?");
            context
                .push(problem.help("add a [store] with its kind, url, when_down and key_secret"));
        }
    }

    /// `follow_upstream` needs a minimum, and only works for local limits.
    fn check_following(&self, context: &mut Context<'_>) {
        let Some(follow) = self.raw.follow_upstream.get() else {
            return;
        };
        let least = follow.least.get();
        if follow.least.is_absent() || least.is_some_and(|least| least.value == Rate::Unlimited) {
            let place = least.map_or(follow.place, |least| least.place);
            let problem =
                Problem::error("`follow_upstream` does not say how far the rate may fall")
                    .at(place, "`least` must be a rate");
            context.push(problem.help("write follow_upstream = { least = \"10/minute\" }"));
        }
        if let (Some(obeys), Some(per)) = (
            follow.obey_quota.get().filter(|at| at.value),
            self.raw.per.get(),
        ) && per.list.iter().any(|part| part.as_str() != "everyone")
        {
            let problem = Problem::warning("what the upstream says to one caller holds them all")
                .at(obeys.place, "here");
            context.push(problem.at(per.place, "each of these has a bucket of its own").help(
                "obey_quota is meant for limits per \"everyone\": the quota that the upstream gives to this gateway",
            ));
        }
        if self.placement() == Placement::Shared {
            let problem =
                Problem::error("a rate that follows the upstream's health is kept in the process");
            context.push(
                problem
                    .at(follow.place, "each gateway judges by itself")
                    .help("add store = \"local\""),
            );
        }
    }
}
