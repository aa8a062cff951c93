//! `[limits.*]` and `[tiers.*]`: names with numbers become rules, every variant of every rule a
//! limit.
//!
//! This module assembles rules; `scope` reads `per`, `numbers` reads one set of numbers, and `keys`
//! checks which keys can be combined.

mod keys;
mod numbers;
pub(crate) mod scope;

use std::sync::Arc;

use super::costs::{self, Amounts};
use super::{Context, callers, entries_of, leases, names_of};
use crate::problem::Problem;
use crate::rate::Rate;
use crate::raw::{self, RawLimit, RawMode, RawPlacement, RawTier};
use crate::reader::Field;
use crate::scalar::{ShortOr, Text};
use crate::settings::Store;
use crate::source::At;
use tollgate_limit::{
    Algorithm, Limit, Micros, Mode, OnFailover, Placement, Role, Timestamp, WhenDown,
};
use tollgate_policy::{Count, Rule, Scope};

/// The limits of a file, compiled.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// The rules, in the order of the file.
    pub(crate) rules: Vec<Rule>,
    /// The place of each rule, and what it can pay.
    pub(crate) written: Vec<Written>,
}

/// The data for messages about a rule.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// Its name.
    pub(crate) name: At<String>,
    /// `per` as written.
    pub(crate) per: Vec<String>,
    /// What each of its variants can pay at once.
    pub(crate) amounts: Vec<Amounts>,
}

/// Compiles `[limits]`. `identities`: their names by index.
pub(crate) fn limits(
    raw: &raw::RawFile,
    identities: &[&str],
    store: Option<&Store>,
    now: Timestamp,
    context: &mut Context<'_>,
) -> Limits {
    let mut made = Limits::default();
    check_tiers(raw, context);
    let egress = raw.server.get().is_some_and(|server| server.egress().value);
    for (name, limit) in entries_of(&raw.limits) {
        check_name(name, "limit", context);
        let scope = scope::scope(name, limit, identities, context);
        let tiers = tiers_of(&name.value, raw);
        let memory = context.bounded(limit.memory(), 64 << 10, 1 << 40);
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let builder = Builder {
            name,
            raw: limit,
            store,
            now,
            memory,
            egress,
        };
        if let Some(scope) = scope
            && let Some((rule, amounts)) = builder.rule(scope, &tiers, context)
        {
            made.rules.push(rule);
            let per = limit.per.get().map_or_else(Vec::new, |per| {
                per.list
                    .iter()
                    .map(|part| part.as_str().to_owned())
                    .collect()
            });
            made.written.push(Written {
                name: name.clone(),
                per,
                amounts,
            });
        }
    }
    made
}

/// A name must be valid in a quota header: printable ASCII without quotes (RFC 9651 section 3.3.3),
/// and short.
pub(crate) fn check_name(name: &At<String>, what: &str, context: &mut Context<'_>) {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if name.is_empty() || name.len() > 64 || !plain {
        let problem = Problem::error(format!("`{}` cannot name a {what}", name.value));
        context.push(problem.at(
            name.place,
            "1 to 64 printable ASCII characters without spaces and quotes were expected",
        ));
    }
}

/// Every tier's limits must exist.
fn check_tiers(raw: &raw::RawFile, context: &mut Context<'_>) {
    let names = names_of(&raw.limits);
    for (tier, _) in entries_of(&raw.tiers) {
        check_name(tier, "tier", context);
    }
    let of_tiers = entries_of(&raw.tiers)
        .iter()
        .flat_map(|(_, limits)| &limits.entries);
    let own = callers::with_own_numbers(raw).flat_map(|(_, caller)| entries_of(&caller.limits));
    for (limit, _) in of_tiers.chain(own) {
        if !names.contains(&limit.value.as_str()) {
            context.unknown("limit", &limit.value, limit.place, &names);
        }
    }
    let mut seen: Vec<&At<Text>> = Vec::new();
    for (name, _) in callers::with_own_numbers(raw) {
        match seen.iter().find(|other| other.as_str() == name.as_str()) {
            Some(first) => {
                let title = format!("caller `{}` has limits of its own twice", name.as_str());
                let problem = Problem::error(title)
                    .at(name.place, "again here")
                    .at(first.place, "first here");
                context.push(
                    problem.help("its keys share its buckets: write its limits beside one of them"),
                );
            }
            None => seen.push(name),
        }
    }
}

/// A tier's name, and its numbers for one limit.
type Tier = (At<String>, At<RawTier>);

/// The tiers, and the callers with numbers of their own, that have numbers for `limit`, sorted by
/// name.
fn tiers_of(limit: &str, raw: &raw::RawFile) -> Vec<Tier> {
    let mut tiers: Vec<Tier> = Vec::new();
    for (tier, limits) in entries_of(&raw.tiers) {
        for (_, numbers) in limits
            .entries
            .iter()
            .filter(|(name, _)| name.value == limit)
        {
            tiers.push((tier.clone(), table_of(numbers)));
        }
    }
    let own: Vec<Tier> = callers::with_own_numbers(raw)
        .filter_map(|(name, caller)| {
            let own = entries_of(&caller.limits)
                .iter()
                .find(|(name, _)| name.value == limit);
            let of_tier = || {
                let tier = caller.tier.get()?;
                let (_, numbers) = tiers.iter().find(|(name, _)| name.value == tier.as_str())?;
                Some(numbers.clone())
            };
            let numbers = own.map(|(_, numbers)| table_of(numbers)).or_else(of_tier)?;
            Some((name.with(callers::own_numbers(name.as_str())), numbers))
        })
        .collect();
    tiers.extend(own);
    tiers.sort_by(|one, other| one.0.value.cmp(&other.0.value));
    tiers
}

/// Numbers in their long form.
fn table_of(numbers: &At<ShortOr<Rate, RawTier>>) -> At<RawTier> {
    let table = match &numbers.value {
        ShortOr::Short(rate) => RawTier {
            rate: Field::Here(numbers.with(*rate)),
            ..RawTier::default()
        },
        ShortOr::Table(table) => table.clone(),
    };
    numbers.with(table)
}

/// The inputs of a rule.
struct Builder<'b> {
    name: &'b At<String>,
    raw: &'b At<RawLimit>,
    store: Option<&'b Store>,
    now: Timestamp,
    memory: usize,
    /// Whether egress mode is on.
    egress: bool,
}

impl Builder<'_> {
    fn rule(
        &self,
        scope: Scope,
        tiers: &[Tier],
        context: &mut Context<'_>,
    ) -> Option<(Rule, Vec<Amounts>)> {
        self.check_keys(context);
        let mut amounts = Vec::new();
        let at_once = match self.raw.rate.get().map(|rate| rate.value) {
            Some(Rate::Per { amount, .. }) => self
                .raw
                .burst
                .or(amount)
                .saturating_add(self.raw.debt().value),
            Some(Rate::Unlimited) | None => 1,
        };
        let settle = self
            .raw
            .settle
            .get()
            .and_then(|settle| costs::settle(settle, at_once, context));
        let settled = settle
            .as_ref()
            .map_or(0, |settle| settle.most.saturating_sub(settle.estimate));
        let numbers = RawTier {
            rate: self.raw.rate.clone(),
            burst: self.raw.burst.clone(),
            in_flight: self.raw.in_flight.clone(),
        };
        let live = self.variant(
            None,
            Role::Live,
            &self.raw.with(numbers),
            settled,
            context,
            &mut amounts,
        );
        let mut variants = Vec::new();
        for (tier, numbers) in tiers {
            let numbers = self.inherited(numbers);
            variants.push((
                tier,
                self.variant(
                    Some(tier),
                    Role::Live,
                    &numbers,
                    settled,
                    context,
                    &mut amounts,
                ),
            ));
        }
        let candidate = self.raw.candidate.get().map(|numbers| {
            let numbers = self.inherited(numbers);
            self.variant(
                None,
                Role::Candidate,
                &numbers,
                settled,
                context,
                &mut Vec::new(),
            )
        });
        let cost = costs::cost(&self.raw.cost().at(), context);
        let count = costs::count(&self.raw.count().value, context);
        let refund_on = costs::statuses(&self.raw.refund_on().value, context);
        let refundable = settle.is_some() || count != Count::All || !refund_on.is_empty();
        costs::check_payable(
            &self.name.value,
            &cost,
            self.raw.cost.place().unwrap_or(self.raw.place),
            &amounts,
            context,
        );
        if let Some(settle) = &settle {
            costs::check_estimate(
                settle.estimate,
                self.raw.settle.place().unwrap_or_default(),
                &amounts,
                context,
            );
        }
        // A client that disconnects while held in the process gives its place back.
        let held =
            self.placement() == Placement::Local && self.raw.max_wait().value.0 > Micros::ZERO;
        let keep = |limit: Limit| {
            Arc::new(Limit {
                refundable: refundable || held,
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
            cost,
            settle,
            count,
            refund_on,
        };
        leases::check(self.raw, &rule, self.store, context);
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

    fn placement(&self) -> Placement {
        if self.store.is_none() {
            return Placement::Local;
        }
        match self.raw.store.or(RawPlacement::Shared) {
            RawPlacement::Shared => Placement::Shared,
            RawPlacement::Local => Placement::Local,
        }
    }

    fn limit(
        &self,
        tier: Option<&At<String>>,
        role: Role,
        algorithm: Algorithm,
        unlimited: bool,
    ) -> Limit {
        let raw = &self.raw.value;
        let default_down = self
            .store
            .map_or(WhenDown::LocalShare, |store| store.when_down);
        Limit {
            name: Arc::from(self.name.value.as_str()),
            index: 0,
            tier: tier.map(|tier| Arc::from(tier.value.as_str())),
            role,
            algorithm,
            mode: match raw.mode().value {
                _ if unlimited => Mode::Off,
                RawMode::Enforce => Mode::Enforce,
                RawMode::Shadow => Mode::Shadow,
                RawMode::Off => Mode::Off,
            },
            enforce_for: raw.enforce_for().value.0,
            placement: self.placement(),
            when_down: raw
                .when_down
                .get()
                .map_or(default_down, |at| super::store::when_down(at.value)),
            on_failover: match raw.on_failover().value {
                raw::OnFailover::Keep => OnFailover::Keep,
                raw::OnFailover::Drain => OnFailover::Drain,
            },
            lease: raw.lease().value,
            memory: self.memory,
            refundable: false,
        }
    }
}
