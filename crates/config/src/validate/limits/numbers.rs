//! One set of numbers (the limit's own, a tier's or the candidate's): builds its algorithm, or
//! reports why it cannot.

use super::Builder;
use crate::calendar;
use crate::problem::Problem;

use crate::rate::{Rate, Unit};
use crate::raw::{self, InFlight, RawAlgorithm, RawAlign, RawTier};
use crate::source::{At, Place};
use crate::validate::Context;
use crate::validate::costs::Amounts;
use tollgate_limit::{Algorithm, Align, Kind, Limit, Micros, Placement, Role, Terms, in_flight};

impl Builder<'_> {
    /// One set of numbers. `settled`: how much a response may cost above the estimate.
    pub(super) fn variant(
        &self,
        tier: Option<&At<String>>,
        role: Role,
        numbers: &At<RawTier>,
        settled: u64,
        context: &mut Context<'_>,
        amounts: &mut Vec<Amounts>,
    ) -> Option<Limit> {
        if let (Some(place), Some(in_flight)) = (numbers.rate.place(), numbers.in_flight.place())
            && (tier.is_some() || role == Role::Candidate)
        {
            context.push(
                Problem::error("a rate and a concurrency limit at once")
                    .at(place, "one of them must go")
                    .at(in_flight, "the other"),
            );
            return None;
        }
        if !(numbers.rate.is_absent() || numbers.in_flight.is_absent()) {
            // The limit's own settings are wrong, which was reported.
            return None;
        }
        let (kind, amount, period, unit, unlimited) =
            match (numbers.rate.get(), numbers.in_flight.get()) {
                (Some(rate), _) => match rate.value {
                    Rate::Per {
                        amount,
                        period,
                        unit,
                    } => (self.kind(), amount, period, unit, false),
                    Rate::Unlimited => {
                        (Kind::TokenBucket, 1, Micros::from_secs(1), Unit::Span, true)
                    }
                },
                (None, Some(most)) => match most.value {
                    InFlight::Most(most) => (Kind::InFlight, most, Micros::ZERO, Unit::Span, false),
                    InFlight::Adaptive { .. } if self.placement() == Placement::Shared => {
                        let problem =
                            Problem::error("an adaptive concurrency limit is kept in the process");
                        context.push(
                            problem
                                .at(most.place, "each gateway finds its own")
                                .help("add store = \"local\""),
                        );
                        return None;
                    }
                    InFlight::Adaptive { most, .. } => {
                        (Kind::InFlight, most, Micros::ZERO, Unit::Span, false)
                    }
                },
                (None, None) => return None,
            };
        let live_kind = if self.raw.in_flight.is_absent() {
            self.kind()
        } else {
            Kind::InFlight
        };
        if !unlimited && (kind == Kind::InFlight) != (live_kind == Kind::InFlight) {
            let problem = Problem::error(format!(
                "other numbers of `{}` must be of its kind",
                self.name.value
            ))
            .at(
                numbers.place,
                "a rate cannot stand in for a concurrency limit, nor the other way",
            );
            context.push(problem.at(self.name.place, "the limit"));
            return None;
        }
        let align = if unlimited {
            Align::FirstHit
        } else {
            self.align(numbers, period, unit, context)?
        };
        let plain = unlimited || kind == Kind::InFlight;
        let terms = Terms {
            kind,
            amount,
            period,
            burst: if unlimited {
                None
            } else {
                numbers.burst.get().map(|burst| burst.value)
            },
            align,
            debt: if unlimited { 0 } else { self.raw.debt().value },
            max_wait: if unlimited {
                Micros::ZERO
            } else {
                self.raw.max_wait().value.0
            },
            warm_up: if plain {
                Micros::ZERO
            } else {
                self.raw.warm_up().value.0
            },
            shared: self.placement() == Placement::Shared,
        };
        if !unlimited {
            let source = numbers
                .burst
                .place()
                .or(numbers.rate.place())
                .or(numbers.in_flight.place());
            amounts.push(Amounts {
                most: terms.burst.unwrap_or(amount),
                debt: terms.debt,
                place: source.unwrap_or(numbers.place),
                tier: tier.map(|tier| tier.value.clone()),
            });
        }
        let made = Algorithm::new(&terms);
        let made = if unlimited {
            made
        } else {
            made.and_then(|made| made.settling(settled, terms.shared))
        };
        if kind == Kind::Interval
            && terms.debt == 0
            && terms.burst.is_some_and(|burst| burst < amount)
        {
            self.warn_of_lost_units(numbers, &terms, context);
        }
        let algorithm = match (
            numbers.in_flight.get().map(|at| at.value),
            self.least_rate(),
        ) {
            // A setting without meaning for it is still an error.
            (Some(InFlight::Adaptive { least, most }), _) => made
                .and_then(|_| in_flight::InFlight::adaptive(least, most))
                .map(Algorithm::InFlight),
            (None, Some((amount, period))) if !unlimited => made
                .and_then(|made| made.following(amount, period))
                .map(|made| {
                    if self.obeys_quota() {
                        made.obeying_quota()
                    } else {
                        made
                    }
                }),
            _ => made,
        };
        match algorithm {
            Ok(algorithm) => Some(self.limit(tier, role, algorithm, unlimited)),
            Err(errors) => {
                let mut said = Vec::new();
                for error in errors {
                    // One reason per key is enough.
                    if said.contains(&error.field) {
                        continue;
                    }
                    said.push(error.field);
                    let place = self.place_of(error.field, numbers);
                    let whose = match tier {
                        Some(tier) => format!("tiers.{}.{}", tier.value, self.name.value),
                        None if role == Role::Candidate => {
                            format!("limits.{}.candidate", self.name.value)
                        }
                        None => format!("limits.{}", self.name.value),
                    };
                    let title = format!("`{whose}.{}` is not possible", error.field);
                    context.push(Problem::error(title).at(place, error.message));
                }
                None
            }
        }
    }

    /// Warns of an interval that adds more units than the bucket holds.
    fn warn_of_lost_units(&self, numbers: &At<RawTier>, terms: &Terms, context: &mut Context<'_>) {
        let (amount, burst) = (terms.amount, terms.burst.unwrap_or(terms.amount));
        let period = tollgate_limit::words::period(terms.period);
        let problem = Problem::warning(format!(
            "limit `{}` yields {burst} per {period}, not {amount}",
            self.name.value
        ));
        let problem = problem.at(
            numbers.burst.place().unwrap_or(numbers.place),
            "what is added beyond this is lost",
        );
        let problem = problem.at(
            numbers.rate.place().unwrap_or(numbers.place),
            "added all at once",
        );
        context.push(problem.help(
            "algorithm = \"token_bucket\" adds it evenly; or write a burst of the rate's number",
        ));
    }

    /// The place of the key that causes an error, or of the key its default came from.
    fn place_of(&self, field: &str, numbers: &At<RawTier>) -> Place {
        let raw = &self.raw.value;
        let place = match field {
            "burst" => numbers.burst.place(),
            "debt" => raw.debt.place(),
            "max_wait" => raw.max_wait.place(),
            "warm_up" => raw.warm_up.place(),
            "window" => raw.window.place(),
            "in_flight" => numbers.in_flight.place(),
            "follow_upstream" => raw.follow_upstream.place(),
            "settle" => raw
                .settle
                .get()
                .and_then(|settle| settle.max.place())
                .or(raw.settle.place()),
            "algorithm" => raw.algorithm.place(),
            _ => None,
        };
        place
            .or(numbers.rate.place())
            .or(numbers.in_flight.place())
            .unwrap_or(numbers.place)
    }

    /// The minimum rate of a limit that follows the upstream's health.
    fn least_rate(&self) -> Option<(u64, Micros)> {
        match self.raw.follow_upstream.get()?.least.get()?.value {
            Rate::Per { amount, period, .. } => Some((amount, period)),
            Rate::Unlimited => None,
        }
    }

    /// Whether the upstream's own quota is obeyed: set explicitly, or implied by egress mode.
    fn obeys_quota(&self) -> bool {
        self.raw
            .follow_upstream
            .get()
            .is_some_and(|follow| follow.obey_quota.or(self.egress))
    }

    fn kind(&self) -> Kind {
        match self.raw.algorithm().value {
            RawAlgorithm::TokenBucket => Kind::TokenBucket,
            RawAlgorithm::Interval => Kind::Interval,
            RawAlgorithm::FixedWindow => Kind::FixedWindow,
            RawAlgorithm::SlidingWindow => Kind::SlidingWindow,
            RawAlgorithm::SlidingLog => Kind::SlidingLog,
        }
    }

    /// Where windows begin. Only a calendar knows months.
    fn align(
        &self,
        numbers: &At<RawTier>,
        period: Micros,
        unit: Unit,
        context: &mut Context<'_>,
    ) -> Option<Align> {
        let window = self.raw.window.or(raw::RawWindow::default());
        let align = window.align().value;
        let rate = numbers.rate.place().unwrap_or(numbers.place);
        if unit == Unit::Month && align != RawAlign::Calendar {
            let problem = Problem::error("months are not all of one length")
                .at(rate, "only a calendar knows them");
            context.push(problem.help("add algorithm = \"fixed_window\" and window = { align = \"calendar\", zone = \"UTC\" }, or write \"30d\" for the period"));
            return None;
        }
        if align != RawAlign::Calendar {
            for (key, place) in [
                ("zone", window.zone.place()),
                ("anchor_day", window.anchor_day.place()),
            ] {
                if let Some(place) = place {
                    let problem = Problem::error(format!("`{key}` is for calendar windows"))
                        .at(place, "this window has none");
                    context.push(problem.help("add align = \"calendar\""));
                }
            }
        }
        match align {
            RawAlign::FirstHit => Some(Align::FirstHit),
            RawAlign::Clock => Some(Align::Clock),
            RawAlign::Calendar => calendar::windows(&window, rate, period, unit, self.now, context)
                .map(Align::Calendar),
        }
    }
}
