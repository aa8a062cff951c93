//! Corrects charges by the name of their limit, as the response of a request says.

use tollgate_limit::{Role, Timestamp, key};

use super::charge::{Charge, Settle};
use super::{Held, OpenCharge, Permit};
use crate::cause::Credit;

impl Permit {
    /// The charges that can still be corrected. Places of concurrency limits are not among them.
    pub fn open_charges(&self) -> impl Iterator<Item = OpenCharge<'_>> {
        let charges = self.held.iter().flat_map(|held| &held.charges);
        charges
            .filter(|charge| charge.limit.refundable && charge.limit.role == Role::Live)
            .map(|charge| OpenCharge {
                place: charge.place,
                limit: &charge.limit,
                key: &charge.key,
                units: charge.cost,
                left: self.outcomes[charge.place].standing.remaining(),
                window_end: charge.window_end,
            })
    }

    /// Counts what the limit named `rule` is charged as used, beside its bucket, if that use is an event. It is
    /// called once, when the reservation is settled.
    pub fn count_used(&self, rule: &str) {
        let Some((held, charge)) = self.charge_of(rule) else {
            return;
        };
        let (limit, window_end) = (&charge.limit, charge.window_end);
        if limit.events.is_empty() || charge.cost == 0 || window_end == Timestamp::default() {
            return;
        }
        let key = key::beside(&charge.key, window_end, key::USED);
        held.settler.count_used(limit, &key, charge.cost);
    }

    /// What the limit named `rule` was charged, if that can still be corrected.
    pub fn charged(&self, rule: &str) -> Option<u64> {
        self.charge_of(rule).map(|(_, charge)| charge.cost)
    }

    /// What the claim at `place` is charged so far, if that can be corrected; places cannot.
    pub fn charged_at(&self, place: usize) -> Option<u64> {
        let held = self.held.as_ref()?;
        let is_it = |charge: &&Charge| charge.place == place && charge.limit.refundable;
        held.charges.iter().find(is_it).map(|charge| charge.cost)
    }

    /// Settles the charge of the limit named `rule`: the response reported a cost of `units`.
    pub fn settled(&self, rule: &str, units: u64) {
        let Some(held) = self.held.as_deref() else {
            return;
        };
        let charges = held.charges.iter();
        for charge in charges.filter(|charge| &*charge.limit.name == rule) {
            held.settler.counters().settled(&charge.limit, units);
        }
    }

    /// Records that the response did not report its cost for the limit named `rule`, so the
    /// estimate stays charged. Returns whether to log it: once a minute for each limit.
    pub fn unsettled(&self, rule: &str) -> bool {
        self.charge_of(rule).is_some_and(|(held, charge)| {
            let now = held.settler.now();
            held.settler.counters().unsettled(&charge.limit, now)
        })
    }

    /// Records that the response cost `units` more than was reserved for it by the limit named
    /// `rule`. Returns whether to log it: once a minute for each limit.
    pub fn over_reserved(&self, rule: &str, units: u64) -> bool {
        self.charge_of(rule).is_some_and(|(held, charge)| {
            let (counters, now) = (held.settler.counters(), held.settler.now());
            counters.over_reserved(&charge.limit, units, now)
        })
    }

    fn charge_of(&self, rule: &str) -> Option<(&Held, &Charge)> {
        let held = self.held.as_deref()?;
        let mut charges = held.charges.iter();
        Some((held, charges.find(|charge| &*charge.limit.name == rule)?))
    }

    /// Charges `more` units to the limit named `rule`, both the live limit and its candidate.
    pub fn charge_more(&mut self, rule: &str, more: u64) {
        self.each(rule, |charge, settler, _| charge.raise(settler, more));
    }

    /// Refunds `units` to the limit named `rule`, live and candidate; at most what was charged.
    pub fn refund(&mut self, rule: &str, units: u64, _leave: Credit) {
        self.each(rule, |charge, settler, drawn_at| {
            charge.give_back(settler, drawn_at, units, false);
        });
    }

    fn each(&mut self, rule: &str, correct: impl Fn(&mut Charge, &dyn Settle, Timestamp)) {
        let Some(held) = self.held.as_deref_mut() else {
            return;
        };
        let charges = held.charges.iter_mut();
        for charge in charges.filter(|charge| &*charge.limit.name == rule) {
            correct(charge, &*held.settler, held.drawn_at);
        }
    }
}
