//! `[limits.*]` and `[tiers.*]`: names with numbers become rules, every variant of every rule a
//! limit.
//!
//! This module assembles rules; `scope` reads `per`, `numbers` reads one set of numbers, `settled`
//! says how much a response may cost, `tiers` finds the sets of each tier, and `keys` checks which keys can be combined.

pub(crate) mod ceiling;
mod keys;
mod numbers;
pub(crate) mod scope;
mod settled;
mod tiers;

use std::sync::Arc;

use super::callers::OwnNumbers;
use super::costs::{self, Amounts};
use super::{check_name, entries_of, prices};
use crate::raw::{RawAlign, RawFile, RawLimit, RawTier, RawWindow};
use crate::reading::{At, Context, Field};
use crate::settings::Store;
use crate::values::rate::{Rate, Unit};
use tiers::Tier;
use tollgate_limit::{Algorithm, Kind, Limit, Micros, Mode, Placement, Role, Timestamp, WhenDown};
use tollgate_policy::claims::prices::Prices;
use tollgate_policy::{Count, Rule, Scope, ScopePart};

#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) rules: Vec<Rule>,
    /// The place of each rule, and what it can pay.
    pub(crate) written: Vec<Written>,
}

#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) name: At<String>,
    pub(crate) per: Vec<String>,
    pub(crate) amounts: Vec<Amounts>,
}

/// What limits depend on besides their own tables.
pub(crate) struct Surroundings<'s> {
    pub(crate) identities: &'s [&'s str],
    /// The store; `None`: there is none, or it cannot be used.
    pub(crate) store: Option<&'s Store>,
    /// Whether the file has a store. One that cannot be used was reported, and limits are judged as
    /// shared all the same.
    pub(crate) has_store: bool,
    pub(crate) now: Timestamp,
    pub(crate) egress: bool,
    pub(crate) has_admin: bool,
    /// Whether operators may fill buckets.
    pub(crate) resettable: bool,
    pub(crate) prices: Option<Arc<Prices>>,
    pub(crate) own_numbers: &'s [OwnNumbers],
    /// The limits that decide about descriptors, and the rates that a request may ask for instead
    /// of theirs.
    pub(crate) described: (&'s [&'s str], &'s [At<Rate>]),
}

pub(crate) fn limits(
    raw: &RawFile,
    around: &Surroundings<'_>,
    context: &mut Context<'_>,
) -> Limits {
    let mut made = Limits::default();
    tiers::check(raw, around.own_numbers, context);
    for (name, limit) in entries_of(&raw.limits) {
        check_name(name, "limit", context);
        let scope = scope::scope(name, limit, around.identities, context);
        let own_tiers = tiers::of_limit(&name.value, raw, around.own_numbers);
        let mut tiers = own_tiers.clone();
        if around.described.0.contains(&name.value.as_str()) {
            tiers.extend(overrides(around));
        }
        let Some(scope) = scope else { continue };
        let mut builder = Builder {
            name,
            raw: limit,
            around,
            context,
        };
        for (tier, numbers) in &own_tiers {
            builder.check_period(tier, numbers, &own_tiers);
        }
        let Some((rule, amounts)) = builder.rule(scope, &tiers) else {
            continue;
        };
        made.rules.push(rule);
        let per = limit.per.or(Vec::new());
        made.written.push(Written {
            name: name.clone(),
            per: per.iter().map(|part| part.as_str().to_owned()).collect(),
            amounts,
        });
    }
    made
}

/// A limit of a descriptor in a file of envoyproxy/ratelimit: a fixed window of the clock, all else
/// as it is for a limit that says no more.
pub(crate) fn window_of_clock(
    name: &At<String>,
    rate: tollgate_limit::Rate,
    mode: Mode,
    around: &Surroundings<'_>,
    context: &mut Context<'_>,
) -> Option<(Rule, Vec<Amounts>)> {
    let window = RawWindow {
        align: Field::Here(name.with(RawAlign::Clock)),
        ..RawWindow::default()
    };
    let rate = Rate::Per {
        rate,
        unit: Unit::Span,
        currency: None,
    };
    let raw = RawLimit {
        rate: Field::Here(name.with(rate)),
        algorithm: Field::Here(name.with(Kind::FixedWindow)),
        window: Field::Here(name.with(window)),
        mode: Field::Here(name.with(mode)),
        ..RawLimit::default()
    };
    let mut builder = Builder {
        name,
        raw: &name.with(raw),
        around,
        context,
    };
    let scope = Scope::Identities(vec![ScopePart::Descriptor]);
    let tiers: Vec<Tier> = overrides(around).collect();
    builder.rule(scope, &tiers)
}

/// The rates that a request may ask for, as tiers that no caller has. One of another period than the
/// limit's counts in buckets of its own, as it does in Envoy's service: no client chooses it.
fn overrides<'a>(around: &'a Surroundings<'_>) -> impl Iterator<Item = Tier> + 'a {
    around.described.1.iter().map(|rate| {
        let numbers = RawTier {
            rate: Field::Here(rate.clone()),
            ..RawTier::default()
        };
        let name = match rate.value {
            Rate::Per { rate, .. } => {
                let period = tollgate_limit::words::period(rate.period);
                format!("override {}/{period}", rate.amount)
            }
            Rate::Unlimited => "override unlimited".to_owned(),
        };
        (rate.with(name), rate.with(numbers))
    })
}

/// The dotted name of a set of numbers.
fn dotted(limit: &str, tier: Option<&str>, role: Role) -> String {
    match (tier, role) {
        (Some(tier), _) => format!("tiers.{tier}.{limit}"),
        (None, Role::Candidate) => format!("limits.{limit}.candidate"),
        (None, Role::Live) => format!("limits.{limit}"),
    }
}

struct Builder<'b, 'e> {
    name: &'b At<String>,
    raw: &'b At<RawLimit>,
    around: &'b Surroundings<'b>,
    context: &'b mut Context<'e>,
}

impl Builder<'_, '_> {
    fn rule(&mut self, scope: Scope, tiers: &[Tier]) -> Option<(Rule, Vec<Amounts>)> {
        self.check_keys();
        self.check_ceiling();
        let raw = &self.raw.value;
        let ceiling = self.is_ceiling();
        let cost = raw.cost();
        let prices = prices::of_limit(raw, self.around.prices.as_ref(), self.context);
        let written = raw.settle.get().map(|written| &written.settle);
        let bounds = cost.value.bounds(written, prices.as_ref());
        let settle = self.settle(bounds.1);
        let settled = self.above(settle.as_ref(), bounds.1);
        let mut amounts = Vec::new();
        let numbers = RawTier {
            rate: raw.rate.clone(),
            burst: raw.burst.clone(),
            in_flight: raw.in_flight.clone(),
        };
        let numbers = self.raw.with(numbers);
        let live = self.variant(None, Role::Live, &numbers, settled, &mut amounts);
        let mut variants = Vec::new();
        for (tier, numbers) in tiers {
            let numbers = self.inherited(numbers);
            let limit = self.variant(Some(tier), Role::Live, &numbers, settled, &mut amounts);
            variants.push((tier, limit));
        }
        let candidate = raw.candidate.get().map(|numbers| {
            let numbers = self.inherited(numbers);
            self.variant(None, Role::Candidate, &numbers, settled, &mut Vec::new())
        });
        let (count, refund_on) = (raw.count().value, raw.refund_on().value);
        let place = raw.cost.place().unwrap_or(self.raw.place);
        let currency = prices.as_ref().map(|its| Arc::clone(&its.prices.currency));
        let counted = currency.as_deref();
        let name = &self.name.value;
        costs::check_payable(name, counted, bounds, place, &amounts, self.context);
        if let Some(at) = raw.settle.get() {
            match at.settle.estimate {
                Some(estimate) => {
                    costs::check_estimate(estimate, counted, at.place, &amounts, self.context);
                }
                None => costs::check_reservation(at, &cost, bounds.1, self.context),
            }
        }
        let tiers = variants.iter().filter_map(|(_, limit)| limit.as_ref());
        let others = tiers.chain(candidate.iter().flatten());
        let settle = settle.map(|settle| settled.counted(settle, live.iter().chain(others)));
        // A client that disconnects while held in the process gives its place back.
        let held = self.placement() == Placement::Local && raw.max_wait().value > Micros::ZERO;
        let refundable = settle.is_some() || count != Count::All || !refund_on.is_empty() || held;
        let penalty = raw.penalty.get().map(|penalty| penalty.value);
        let events = self.events();
        let keep = |limit: Limit| {
            Arc::new(Limit {
                refundable,
                penalty: penalty.filter(|_| limit.role == Role::Live),
                currency: currency.clone(),
                events: match limit.role {
                    Role::Live => events.clone(),
                    Role::Candidate => Vec::new(),
                },
                ..limit
            })
        };
        // A limit with wrong numbers is dropped; the mistake was reported.
        let live = keep(live?);
        let variants: Option<Vec<_>> = variants
            .into_iter()
            .map(|(tier, limit)| Some((Arc::from(tier.value.as_str()), keep(limit?))))
            .collect();
        let candidate = match candidate {
            Some(limit) => Some(keep(limit?)),
            None => None,
        };
        let rule = Rule {
            name: Arc::from(self.name.value.as_str()),
            live,
            tiers: variants?,
            candidate,
            scope,
            ceiling,
            cost: cost.value,
            settle: match (&prices, settle) {
                (Some(_), Some(settle)) => {
                    Some(prices::with_models(settle, self.raw, self.context)?)
                }
                (_, settle) => settle,
            },
            prices,
            count,
            refund_on,
            refuse_status: raw.refuse_status().value,
            max_wait: match self.reserves() {
                true => raw.max_wait().value,
                false => Micros::ZERO,
            },
        };
        self.check_lease(&rule);
        Some((rule, amounts))
    }

    /// Other numbers, with missing ones taken from the limit.
    fn inherited(&self, numbers: &At<RawTier>) -> At<RawTier> {
        let mut full = numbers.value.clone();
        if full.rate.is_absent() && full.in_flight.is_absent() {
            full.rate = self.raw.rate.clone();
            full.in_flight = self.raw.in_flight.clone();
        }
        let unlimited = full
            .rate
            .get()
            .is_some_and(|rate| rate.value == Rate::Unlimited);
        if full.burst.is_absent() && full.in_flight.is_absent() && !unlimited {
            full.burst = self.raw.burst.clone();
        }
        numbers.with(full)
    }

    /// Whether a request reserves the most that it may cost. Then `max_wait` is a wait in line for what
    /// others reserve, and its buckets promise no units ahead of time.
    fn reserves(&self) -> bool {
        let settle = self.raw.settle.get();
        settle.is_some_and(|written| written.settle.estimate.is_none())
    }

    fn placement(&self) -> Placement {
        if self.around.has_store {
            self.raw.store.or(Placement::Shared)
        } else {
            Placement::Local
        }
    }

    fn limit(
        &self,
        tier: Option<&At<String>>,
        role: Role,
        algorithm: Algorithm,
        mode: Mode,
    ) -> Limit {
        let raw = &self.raw.value;
        let store = self.around.store;
        let when_down = store.map_or(WhenDown::LocalShare, |store| store.when_down);
        Limit {
            name: Arc::from(self.name.value.as_str()),
            index: 0,
            tier: tier.map(|tier| Arc::from(tier.value.as_str())),
            role,
            algorithm,
            mode,
            enforce_for: raw.enforce_for().value,
            placement: self.placement(),
            when_down: raw.when_down.or(when_down),
            on_failover: raw.on_failover().value,
            lease: raw.lease().value,
            memory: raw.memory().value,
            refundable: false,
            resettable: self.around.resettable,
            penalty: None,
            currency: None,
            events: Vec::new(),
        }
    }
}
