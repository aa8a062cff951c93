//! One set of numbers (the limit's own, a tier's or the candidate's): builds its algorithm, or
//! reports why it cannot.

use super::settled::Above;
use super::{Builder, Tier, dotted};
use crate::calendar;
use crate::raw::{RawAlign, RawTier, RawWindow};
use crate::reading::{At, Mirror, Place};
use crate::validate::costs::Amounts;
use crate::values::in_flight::InFlight;
use crate::values::rate::{Currency, Rate, Unit, money_flaw};
use tollgate_limit::{
    Algorithm, Align, Kind, Limit, Micros, Mode, Placement, QuotaError, Role, Terms, WAIT_MAX,
    in_flight,
};

impl Builder<'_, '_> {
    /// One set of numbers. `settled`: how much a response may cost above the estimate.
    pub(super) fn variant(
        &mut self,
        tier: Option<&At<String>>,
        role: Role,
        numbers: &At<RawTier>,
        settled: Above,
        amounts: &mut Vec<Amounts>,
    ) -> Option<Limit> {
        let both = numbers.rate.place().zip(numbers.in_flight.place());
        if let (Some((rate, in_flight)), true) = (both, tier.is_some() || role == Role::Candidate) {
            self.context
                .either("a rate and a concurrency limit at once", rate, in_flight);
        }
        if !(numbers.rate.is_absent() || numbers.in_flight.is_absent()) {
            // This was reported, here or by `check_keys`.
            return None;
        }
        let place = numbers.rate.place().or(numbers.in_flight.place());
        let place = place.unwrap_or(numbers.place);
        let (terms, adaptive) = match (numbers.rate.get(), numbers.in_flight.get()) {
            (Some(rate), _) => match rate.value {
                Rate::Unlimited => {
                    if self.is_ceiling() && role == Role::Live {
                        let label = "it bounds nothing";
                        self.breaks_ceiling(Some(rate.place), label, "write a rate");
                    }
                    return self.unlimited(tier, role);
                }
                Rate::Per {
                    rate,
                    unit,
                    currency,
                } => {
                    self.check_money(currency, place)?;
                    self.check_kind(false, numbers.place)?;
                    let align = self.align(place, rate.period, unit)?;
                    let kind = self.raw.algorithm().value;
                    let terms = Terms {
                        align,
                        ..self.terms(kind, rate.amount, rate.period)
                    };
                    (terms, None)
                }
            },
            (None, Some(places)) => {
                let (most, adaptive) = match places.value {
                    InFlight::Most(most) => (most, None),
                    InFlight::Adaptive { least, most } => (most, Some((least, most))),
                };
                if adaptive.is_some() && self.placement() == Placement::Shared {
                    let title = "an adaptive concurrency limit is kept in the process";
                    self.context
                        .error(title, places.place, "each gateway finds its own")
                        .help("add store = \"local\"");
                    return None;
                }
                self.check_kind(true, numbers.place)?;
                (self.terms(Kind::InFlight, most, Micros::ZERO), adaptive)
            }
            (None, None) => return None,
        };
        let burst = numbers.burst.get().map(|burst| burst.value);
        let terms = Terms { burst, ..terms };
        let at_once = terms.burst.unwrap_or(terms.amount);
        if at_once > 0 {
            amounts.push(Amounts {
                most: at_once.saturating_add(terms.debt),
                place: numbers.burst.place().unwrap_or(place),
                tier: tier.map(|tier| tier.value.clone()),
            });
        }
        match self.algorithm(&terms, settled, adaptive) {
            Ok(algorithm) => {
                let mode = self.raw.mode().value;
                Some(self.limit(tier, role, algorithm, mode))
            }
            Err(errors) => {
                self.report(errors, tier, role, numbers);
                None
            }
        }
    }

    /// A rate in money is for a limit that counts money, and such a limit has no other rate.
    fn check_money(&mut self, currency: Option<Currency>, place: Place) -> Option<()> {
        let counted = self.raw.prices.place().is_some();
        let known = self.around.prices.as_ref().map(|prices| &*prices.currency);
        let written = currency.as_ref().map(Currency::as_str);
        if counted && written.is_some() && known.is_none() {
            return None;
        }
        let counted = counted.then(|| known.unwrap_or_default());
        let Some((title, label)) = money_flaw(written, counted) else {
            return Some(());
        };
        let problem = self.context.error(title, place, label);
        problem.help("write rate = \"50 USD/month\" and prices = \"json:model\"");
        None
    }

    /// What a set of numbers has in common with the limit's others.
    fn terms(&self, kind: Kind, amount: u64, period: Micros) -> Terms {
        let max_wait = self.raw.max_wait().value;
        let is_in_line = self.reserves() && max_wait <= WAIT_MAX;
        Terms {
            debt: self.raw.debt().value,
            max_wait: if is_in_line { Micros::ZERO } else { max_wait },
            shared: self.placement() == Placement::Shared,
            ..Terms::new(kind, amount, period)
        }
    }

    /// A limit that is off; its algorithm is never asked.
    fn unlimited(&self, tier: Option<&At<String>>, role: Role) -> Option<Limit> {
        let terms = Terms::new(Kind::TokenBucket, 1, Micros::from_secs(1));
        let algorithm = Algorithm::new(&terms).ok()?;
        Some(self.limit(tier, role, algorithm, Mode::Off))
    }

    fn algorithm(
        &self,
        terms: &Terms,
        settled: Above,
        adaptive: Option<(u64, u64)>,
    ) -> Result<Algorithm, Vec<QuotaError>> {
        let made = settled.applied(Algorithm::new(terms)?, terms.shared)?;
        let made = if self.is_ceiling() {
            made.ceiling()
        } else {
            made
        };
        if let Some((least, most)) = adaptive {
            return in_flight::InFlight::adaptive(least, most).map(Algorithm::InFlight);
        }
        if terms.kind == Kind::InFlight {
            return Ok(made);
        }
        let follow = self.raw.follow_upstream.get();
        let least = follow.and_then(|follow| follow.least.get());
        let (Some(follow), Some(Rate::Per { rate, .. })) = (follow, least.map(|at| at.value))
        else {
            return Ok(made);
        };
        let made = made.following(rate)?;
        // Set explicitly, or implied by egress mode.
        Ok(if follow.obey_quota.or(self.around.egress) {
            made.obeying_quota()
        } else {
            made
        })
    }

    fn report(
        &mut self,
        errors: Vec<QuotaError>,
        tier: Option<&At<String>>,
        role: Role,
        numbers: &At<RawTier>,
    ) {
        let tier = tier.map(|tier| tier.value.as_str());
        let whose = dotted(&self.name.value, tier, role);
        let mut said = Vec::new();
        for error in errors {
            // One reason per key is enough.
            if said.contains(&error.field) {
                continue;
            }
            said.push(error.field);
            let place = self.place_of(error.field, numbers);
            let title = format!("`{whose}.{}` is not possible", error.field);
            self.context.error(title, place, error.message);
        }
    }

    /// A rate cannot replace a concurrency limit, nor the other way.
    fn check_kind(&mut self, in_flight: bool, place: Place) -> Option<()> {
        if in_flight == self.raw.in_flight.is_absent() {
            let name = &self.name.value;
            let title = format!("other numbers of `{name}` must be of its kind");
            let label = "a rate cannot replace a concurrency limit, nor the other way";
            self.context
                .error(title, place, label)
                .at(self.name.place, "the limit");
            return None;
        }
        Some(())
    }

    /// A bucket of windows, of a log or of an interval counts what was used in its period, so all
    /// callers of the limit have that period.
    pub(super) fn check_period(
        &mut self,
        tier: &At<String>,
        numbers: &At<RawTier>,
        tiers: &[Tier],
    ) {
        let Some(rate) = numbers.rate.get() else {
            return;
        };
        let kind = self.raw.algorithm().value;
        let has_period = |rate: &&At<Rate>| matches!(rate.value, Rate::Per { .. });
        let others = tiers.iter().filter_map(|(_, numbers)| numbers.rate.get());
        let raw = self.raw;
        let own = raw.rate.get().into_iter().chain(others).find(has_period);
        let Some(own) = own.filter(|own| !own.value.has_period_of(&rate.value)) else {
            return;
        };
        if kind == Kind::TokenBucket {
            return;
        }
        let title = format!(
            "tier `{}` changes the period of `{}`",
            tier.value, self.name.value
        );
        let label = "only the number can change";
        self.context
            .error(title, rate.place, label)
            .at(own.place, "the period of all callers")
            .help("write the same period; another one needs a limit of its own, or algorithm = \"token_bucket\"");
    }

    /// The place of the key that causes an error, or of the key its default came from.
    fn place_of(&self, field: &str, numbers: &At<RawTier>) -> Place {
        let raw = &self.raw.value;
        let place = match field {
            "burst" | "in_flight" => numbers.place(field),
            "debt" | "max_wait" | "window" | "follow_upstream" | "algorithm" => raw.place(field),
            "settle" => {
                let max = raw.settle.get().and_then(|settle| settle.max);
                max.or(raw.settle.place())
            }
            _ => None,
        };
        place
            .or(numbers.rate.place())
            .or(numbers.in_flight.place())
            .unwrap_or(numbers.place)
    }

    /// Where windows begin. Only a calendar knows months.
    fn align(&mut self, rate: Place, period: Micros, unit: Unit) -> Option<Align> {
        let window = self.raw.window.or(RawWindow::default());
        let align = window.align().value;
        if align == RawAlign::Calendar {
            let calendar =
                calendar::windows(&window, rate, period, unit, self.around.now, self.context);
            return calendar.map(Align::Calendar);
        }
        if unit == Unit::Month {
            let title = "months are not all of one length";
            self.context.error(title, rate, "only a calendar knows them").help("add algorithm = \"fixed_window\" and window = { align = \"calendar\", zone = \"UTC\" }, or write \"30d\" for the period");
            return None;
        }
        for (key, place) in window.written(["zone", "anchor_day"]) {
            let title = format!("`{key}` is for calendar windows");
            self.context
                .error(title, place, "this window has none")
                .help("add align = \"calendar\"");
        }
        Some(if align == RawAlign::Clock {
            Align::Clock
        } else {
            Align::FirstHit
        })
    }
}
