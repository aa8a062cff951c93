//! `ceiling = true`: what would let a limit be exceeded is an error, what may is a warning.

use super::Builder;
use crate::context::Context;
use crate::settings::Topology;
use crate::source::Place;
use tollgate_limit::{Kind, Micros, Mode, OnFailover, Placement, WhenDown};
use tollgate_policy::Cost;

impl Builder<'_> {
    /// Whether nothing may ever exceed the limit.
    pub(super) fn is_ceiling(&self) -> bool {
        self.raw.ceiling().value
    }

    /// Reports keys that would let a ceiling be exceeded.
    pub(super) fn check_ceiling(&self, context: &mut Context<'_>) {
        // (For a concurrency limit another check reports that a ceiling has no meaning.)
        if !self.is_ceiling() || !self.raw.in_flight.is_absent() {
            return;
        }
        self.check_numbers(context);
        self.check_given_back(context);
        self.check_outages(context);
        self.warn_of_bounds(context);
    }

    /// The place of `ceiling`.
    fn ceiling_place(&self) -> Place {
        self.raw.ceiling.place().unwrap_or(self.raw.place)
    }

    /// An error at the key that breaks the ceiling.
    pub(super) fn breaks_ceiling(
        &self,
        place: Option<Place>,
        label: &str,
        help: &str,
        context: &mut Context<'_>,
    ) {
        let title = format!("limit `{}` cannot be a ceiling", self.name.value);
        let ceiling = self.ceiling_place();
        let problem = context.error(title, place.unwrap_or(ceiling), label);
        if place.is_some() {
            problem.at(ceiling, "nothing may ever exceed the limit");
        }
        problem.help(help);
    }

    fn check_numbers(&self, context: &mut Context<'_>) {
        let raw = &self.raw.value;
        if raw.debt().value > 0 {
            let label = "a bucket would go below zero";
            self.breaks_ceiling(raw.debt.place(), label, "leave out `debt`", context);
        }
        if raw.max_wait().value > Micros::ZERO {
            let label = "requests would be promised units that are not there yet";
            self.breaks_ceiling(raw.max_wait.place(), label, "leave out `max_wait`", context);
        }
        if raw.mode().value != Mode::Enforce {
            let label = "it would refuse nothing";
            self.breaks_ceiling(raw.mode.place(), label, "leave out `mode`", context);
        }
        if raw.enforce_for().value < 10_000 {
            let label = "it would refuse nothing to the other keys";
            let help = "leave out `enforce_for`";
            self.breaks_ceiling(raw.enforce_for.place(), label, help, context);
        }
        if let Some(lease) = raw.lease.get().filter(|lease| lease.value) {
            let label = "leased units are granted by a gateway, in whichever window";
            let help = "leave out `lease`: every decision asks the store";
            self.breaks_ceiling(Some(lease.place), label, help, context);
        }
        if raw.algorithm().value == Kind::SlidingWindow {
            let label = "it estimates: a period may have up to twice the quota";
            let help = "write algorithm = \"fixed_window\"";
            self.breaks_ceiling(raw.algorithm.place(), label, help, context);
        }
    }

    /// Units may be given back only where the window is known that they came from.
    fn check_given_back(&self, context: &mut Context<'_>) {
        let raw = &self.raw.value;
        let settle = raw.settle.get();
        if let Some(settle) = settle
            && let (Some(place), Some(estimate)) = (settle.estimate, settle.settle.estimate)
            && estimate < settle.settle.most
        {
            let label = format!("a response may cost {}", settle.settle.most);
            let help = "leave out `estimate` and write cost = { json = \"max_tokens\", default = 4000, max = 30000, plus = \"body_bytes\" }: the most that \
                        the request may come to is reserved; or let `max` be the estimate";
            self.breaks_ceiling(Some(place), &label, help, context);
        }
        let kind = raw.algorithm().value;
        if matches!(kind, Kind::FixedWindow | Kind::SlidingWindow) {
            return;
        }
        for (key, place) in [
            ("settle", raw.settle.place()),
            ("count", raw.count.place()),
            ("refund_on", raw.refund_on.place()),
        ] {
            if let Some(place) = place {
                let label = format!(
                    "`{key}` gives units back, and only `fixed_window` knows the window that they came from"
                );
                let help = "write algorithm = \"fixed_window\": in another one, units that were given back late would be granted on top of those that \
                            were added meanwhile";
                self.breaks_ceiling(Some(place), &label, help, context);
                return;
            }
        }
    }

    /// A gateway that decides without the store does not know what the others grant.
    fn check_outages(&self, context: &mut Context<'_>) {
        let raw = &self.raw.value;
        let Some(store) = self
            .around
            .store
            .filter(|_| self.placement() == Placement::Shared)
        else {
            return;
        };
        if raw.when_down.or(store.when_down) != WhenDown::Refuse {
            let label = "while the store does not respond, each gateway would grant by itself";
            let help = "write when_down = \"refuse\" for this limit";
            self.breaks_ceiling(raw.when_down.place(), label, help, context);
        }
        let keeps = raw.on_failover().value == OnFailover::Keep;
        if keeps && matches!(store.topology, Topology::Sentinel | Topology::Cluster) {
            let title = format!(
                "a fail-over may let the ceiling `{}` be exceeded",
                self.name.value
            );
            let place = raw.on_failover.place().unwrap_or(self.ceiling_place());
            let label = "a replica that is promoted may lack the charges of the last moments";
            let problem = context.warning(title, place, label);
            problem.help(if store.topology == Topology::Sentinel {
                "write on_failover = \"drain\": then every bucket starts empty; or let the server wait for its replicas"
            } else {
                "use one server or redis+sentinel:// with on_failover = \"drain\", or an SQL database with synchronous replicas"
            });
        }
    }

    /// A part of the body's bytes is no bound of its tokens.
    fn warn_of_bounds(&self, context: &mut Context<'_>) {
        if let Some(cost) = self.raw.cost.get() {
            warn_of_bytes(&self.name.value, &cost.value, cost.place, context);
        }
    }
}

/// Warns of a reservation that a caller can exceed by its choice of text.
pub(crate) fn warn_of_bytes(limit: &str, cost: &Cost, place: Place, context: &mut Context<'_>) {
    if let Cost::Body(body) = cost
        && let Some(per) = body.plus.filter(|per| *per > 1)
    {
        let title = format!("requests may cost more than the ceiling `{limit}` reserves");
        let label = format!("a text can have more than a token for every {per} bytes");
        context
            .warning(title, place, label)
            .help("plus = \"body_bytes\" is a true bound: a token stands for one byte at least");
    }
}
