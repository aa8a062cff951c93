//! `ceiling = true`: what would let a limit be exceeded is an error. Whether reservations are a
//! bound is checked when routes are known (`together::ceilings`).

use super::Builder;
use crate::reading::{Mirror, Place};
use crate::values::costs::Settlement;
use tollgate_limit::{Kind, Micros, Mode, Placement, WhenDown};

/// A cost that is a bound, as a help of an error writes it.
const RESERVATION: &str = "cost = { usage = \"openai\", max = 30000, plus = \"body_bytes\" }";

impl Builder<'_, '_> {
    pub(super) fn is_ceiling(&self) -> bool {
        self.raw.ceiling().value
    }

    pub(super) fn check_ceiling(&mut self) {
        // (For a concurrency limit another check reports that a ceiling has no meaning.)
        if !self.is_ceiling() || !self.raw.in_flight.is_absent() {
            return;
        }
        self.check_numbers();
        self.check_given_back();
        self.check_outages();
    }

    fn ceiling_place(&self) -> Place {
        self.raw.ceiling.place().unwrap_or(self.raw.place)
    }

    pub(super) fn breaks_ceiling(&mut self, place: Option<Place>, label: &str, help: &str) {
        let title = format!("limit `{}` cannot be a ceiling", self.name.value);
        let ceiling = self.ceiling_place();
        let problem = self.context.error(title, place.unwrap_or(ceiling), label);
        if place.is_some() {
            problem.at(ceiling, "nothing may ever exceed the limit");
        }
        problem.help(help);
    }

    fn check_numbers(&mut self) {
        let raw = &self.raw.value;
        if raw.debt().value > 0 {
            let label = "a bucket would go below zero";
            self.breaks_ceiling(raw.debt.place(), label, "leave out `debt`");
        }
        if raw.max_wait().value > Micros::ZERO && !self.reserves() {
            let label = "requests would be promised units that are not there yet";
            self.breaks_ceiling(raw.max_wait.place(), label, "leave out `max_wait`");
        }
        if raw.mode().value != Mode::Enforce {
            let label = "it would refuse nothing";
            self.breaks_ceiling(raw.mode.place(), label, "leave out `mode`");
        }
        if raw.enforce_for().value < 10_000 {
            let label = "it would refuse nothing to the other keys";
            let help = "leave out `enforce_for`";
            self.breaks_ceiling(raw.enforce_for.place(), label, help);
        }
        if let Some(lease) = raw.lease.get().filter(|lease| lease.value) {
            let label = "leased units are granted by a gateway, in whichever window";
            let help = "leave out `lease`: every decision asks the store";
            self.breaks_ceiling(Some(lease.place), label, help);
        }
        if raw.algorithm().value == Kind::SlidingWindow {
            let label = "it estimates: a period may have up to twice the quota";
            let help = "write algorithm = \"fixed_window\"";
            self.breaks_ceiling(raw.algorithm.place(), label, help);
        }
    }

    /// Units may be given back only where the window is known that they came from.
    fn check_given_back(&mut self) {
        let raw = &self.raw.value;
        if let Some(settle) = raw.settle.get() {
            self.check_settle(settle);
        }
        let kind = raw.algorithm().value;
        if matches!(kind, Kind::FixedWindow | Kind::SlidingWindow) {
            return;
        }
        let mut given_back = raw.written(["settle", "count", "refund_on"]);
        if let Some((key, place)) = given_back.next() {
            let label = format!(
                "`{key}` gives units back, and only `fixed_window` knows the window that they came from"
            );
            let help = "write algorithm = \"fixed_window\": in another one, units that were given back late would be granted on top of those that \
                        were added meanwhile";
            self.breaks_ceiling(Some(place), &label, help);
        }
    }

    /// What a response costs above `max`, or above an estimate while others are granted, is not charged
    /// in time.
    fn check_settle(&mut self, settle: &Settlement) {
        if let Some(place) = settle.estimate {
            let label = "a response may cost more, and others may have been granted that by then";
            let help = format!(
                "leave out `estimate` and write {RESERVATION}: the most that the request may come to is reserved"
            );
            self.breaks_ceiling(Some(place), label, &help);
        } else if let Some(place) = settle.max {
            let label = "what a response costs above this would be charged to no bucket";
            let help = "leave out `max`: a response that costs more than its reservation takes what the bucket still holds";
            self.breaks_ceiling(Some(place), label, help);
        }
    }

    /// A gateway that decides without the store does not know what the others grant.
    fn check_outages(&mut self) {
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
            self.breaks_ceiling(raw.when_down.place(), label, help);
        }
    }
}
