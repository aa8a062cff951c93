//! `[limits.*]` and `[tiers.*]`: names with numbers become rules, every variant of every rule a limit.

use std::sync::Arc;

use super::costs::{self, Amounts};
use super::{Context, entries_of, leases, names_of};
use crate::config::calendar;
use crate::config::problem::Problem;
use crate::config::quantity::Time;
use crate::config::rate::{Rate, Unit};
use crate::config::raw::{self, InFlight, RawAlgorithm, RawAlign, RawLimit, RawMode, RawPlacement, RawTier};
use crate::config::reader::Field;
use crate::config::scalar::ShortOr;
use crate::config::settings::{Store, Topology};
use crate::config::source::{At, Place};
use crate::limit::in_flight;
use crate::limit::{
    Algorithm, Align, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, Timestamp, WhenDown,
};
use crate::policy::{Count, Rule, Scope, ScopePart};

/// The limits of a file, compiled.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// The rules, in the order of the file.
    pub(crate) rules: Vec<Rule>,
    /// Where each rule is written, and what it can pay.
    pub(crate) written: Vec<Written>,
}

/// What messages about a rule need.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// Its name.
    pub(crate) name: At<String>,
    /// `per` as it is written.
    pub(crate) per: Vec<String>,
    /// What each of its variants can pay at once.
    pub(crate) amounts: Vec<Amounts>,
}

/// Compiles `[limits]`. `scopes`: the identities' names by index.
pub(crate) fn limits(
    raw: &raw::RawFile,
    identities: &[&str],
    store: Option<&Store>,
    now: Timestamp,
    context: &mut Context<'_>,
) -> Limits {
    let mut made = Limits::default();
    check_tiers(raw, context);
    let egress = raw.server.get().is_some_and(|server| server.egress.or(false));
    for (name, limit) in entries_of(&raw.limits) {
        check_name(name, "limit", context);
        let scope = scope(name, limit, identities, context);
        let tiers = tiers_of(&name.value, raw);
        let memory = context.bounded("memory", &limit.memory, MEMORY, 64 << 10, 1 << 40);
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let builder = Builder { name, raw: limit, store, now, memory, egress };
        if let Some(scope) = scope
            && let Some((rule, amounts)) = builder.rule(scope, &tiers, context)
        {
            made.rules.push(rule);
            let per = limit
                .per
                .get()
                .map_or_else(Vec::new, |per| per.list.iter().map(|part| part.as_str().to_owned()).collect());
            made.written.push(Written { name: name.clone(), per, amounts });
        }
    }
    made
}

/// A name must stand in a quota header: printable ASCII without quotes (RFC 9651 section 3.3.3), and be short.
pub(crate) fn check_name(name: &At<String>, what: &str, context: &mut Context<'_>) {
    let plain = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if name.is_empty() || name.len() > 64 || !plain {
        let problem = Problem::error(format!("`{}` cannot name a {what}", name.value));
        context
            .push(problem.at(name.place, "1 to 64 printable ASCII characters without spaces and quotes were expected"));
    }
}

/// Every tier's limits must exist.
fn check_tiers(raw: &raw::RawFile, context: &mut Context<'_>) {
    let names = names_of(&raw.limits);
    for (tier, limits) in entries_of(&raw.tiers) {
        check_name(tier, "tier", context);
        for (limit, _) in limits.entries.iter().filter(|(limit, _)| !names.contains(&limit.value.as_str())) {
            context.unknown("limit", &limit.value, limit.place, &names);
        }
    }
}

/// A tier's name, and its numbers for one limit.
type Tier<'r> = (&'r At<String>, At<RawTier>);

/// The tiers that say something of `limit`, sorted by name.
fn tiers_of<'r>(limit: &str, raw: &'r raw::RawFile) -> Vec<Tier<'r>> {
    let mut tiers: Vec<Tier<'r>> = Vec::new();
    for (tier, limits) in entries_of(&raw.tiers) {
        for (_, numbers) in limits.entries.iter().filter(|(name, _)| name.value == limit) {
            let table = match &numbers.value {
                ShortOr::Short(rate) => RawTier { rate: Field::Here(numbers.with(*rate)), ..RawTier::default() },
                ShortOr::Table(table) => table.clone(),
            };
            tiers.push((tier, numbers.with(table)));
        }
    }
    tiers.sort_by(|one, other| one.0.value.cmp(&other.0.value));
    tiers
}

/// `per`.
fn scope(name: &At<String>, limit: &At<RawLimit>, identities: &[&str], context: &mut Context<'_>) -> Option<Scope> {
    let Some(per) = limit.per.get() else {
        if limit.per.is_absent() {
            let problem = Problem::error(format!("limit `{}` does not say for whom", name.value));
            context.push(problem.at(limit.place, "`per` is missing").help(
                "per = \"address\" counts each address by itself, per = \"everyone\" all callers together, the name of an identity each of its keys",
            ));
        }
        return None;
    };
    let mut parts: Vec<(ScopePart, Place)> = Vec::new();
    for part in &per.list {
        let word = part.as_str();
        let scope_part = match word {
            "everyone" if per.list.len() == 1 => return Some(Scope::Everyone),
            "everyone" => {
                let problem =
                    Problem::error("`everyone` cannot be a part of a list").at(part.place, "all callers together");
                context.push(problem.help("leave it out: the other parts say who shares a bucket"));
                return None;
            }
            "address" => ScopePart::Address,
            _ => match identities.iter().position(|identity| *identity == word) {
                Some(index) => ScopePart::Identity(index),
                None => {
                    let known: Vec<&str> = identities.iter().copied().chain(["address", "everyone"]).collect();
                    context.unknown("identity", word, part.place, &known);
                    return None;
                }
            },
        };
        if let Some((_, first)) = parts.iter().find(|(other, _)| *other == scope_part) {
            let problem = Problem::error(format!("`{word}` stands in `per` twice"));
            context.push(problem.at(part.place, "again here").at(*first, "first here"));
            return None;
        }
        parts.push((scope_part, part.place));
    }
    if parts.is_empty() {
        let problem = Problem::error("`per` is an empty list").at(per.place, "nobody");
        context.push(problem.help("write per = \"everyone\" for one bucket that all callers share"));
        return None;
    }
    Some(Scope::Identities(parts.into_iter().map(|(part, _)| part).collect()))
}

struct Builder<'b> {
    name: &'b At<String>,
    raw: &'b At<RawLimit>,
    store: Option<&'b Store>,
    now: Timestamp,
    memory: usize,
    /// Whether the gateway stands in front of services one depends on.
    egress: bool,
}

impl Builder<'_> {
    fn rule(&self, scope: Scope, tiers: &[Tier<'_>], context: &mut Context<'_>) -> Option<(Rule, Vec<Amounts>)> {
        self.check_keys(context);
        let mut amounts = Vec::new();
        let at_once = match self.raw.rate.get().map(|rate| rate.value) {
            Some(Rate::Per { amount, .. }) => self.raw.burst.or(amount).saturating_add(self.raw.debt.or(0)),
            Some(Rate::Unlimited) | None => 1,
        };
        let settle = self.raw.settle.get().and_then(|settle| costs::settle(settle, at_once, context));
        let settled = settle.as_ref().map_or(0, |settle| settle.most.saturating_sub(settle.estimate));
        let numbers = RawTier {
            rate: self.raw.rate.clone(),
            burst: self.raw.burst.clone(),
            in_flight: self.raw.in_flight.clone(),
        };
        let live = self.variant(None, Role::Live, &self.raw.with(numbers), settled, context, &mut amounts);
        let mut variants = Vec::new();
        for (tier, numbers) in tiers {
            let numbers = self.inherited(numbers);
            variants.push((tier, self.variant(Some(tier), Role::Live, &numbers, settled, context, &mut amounts)));
        }
        let candidate = self.raw.candidate.get().map(|numbers| {
            let numbers = self.inherited(numbers);
            self.variant(None, Role::Candidate, &numbers, settled, context, &mut Vec::new())
        });
        let cost = costs::cost(&self.raw.cost, context);
        let count = costs::count(&self.raw.count, context);
        let refund_on = costs::statuses(self.raw.refund_on.get().map_or(&[], |list| list.as_slice()), context);
        let refundable = settle.is_some() || count != Count::All || !refund_on.is_empty();
        costs::check_payable(
            &self.name.value,
            &cost,
            self.raw.cost.place().unwrap_or(self.raw.place),
            &amounts,
            context,
        );
        if let Some(settle) = &settle {
            costs::check_estimate(settle.estimate, self.raw.settle.place().unwrap_or_default(), &amounts, context);
        }
        // Whoever leaves while held in the process gives the place back.
        let held = self.placement() == Placement::Local
            && self.raw.max_wait.get().is_some_and(|wait| wait.value.0 > Micros::ZERO);
        let keep = |limit: Limit| Arc::new(Limit { refundable: refundable || held, ..limit });
        // Nothing is kept of a limit whose numbers are wrong: that has been said.
        let live = keep(live?);
        let variants: Option<Vec<_>> =
            variants.into_iter().map(|(tier, limit)| Some((Arc::from(tier.value.as_str()), keep(limit?)))).collect();
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

    /// Other numbers with what they leave unsaid taken from the limit.
    fn inherited(&self, numbers: &At<RawTier>) -> At<RawTier> {
        let mut full = numbers.value.clone();
        if full.rate.is_absent() && full.in_flight.is_absent() {
            full.rate = self.raw.rate.clone();
            full.in_flight = self.raw.in_flight.clone();
        }
        let unlimited = full.rate.get().is_some_and(|rate| rate.value == Rate::Unlimited);
        if full.burst.is_absent() && full.in_flight.is_absent() && !unlimited {
            full.burst = self.raw.burst.clone();
        }
        numbers.with(full)
    }

    /// Keys that say nothing together.
    fn check_keys(&self, context: &mut Context<'_>) {
        let raw = &self.raw.value;
        let name = &self.name.value;
        let mut clash = |one: Option<Place>, other: Option<Place>, title: &str, label: &str| {
            if let (Some(one), Some(other)) = (one, other) {
                context.push(Problem::error(title).at(one, label).at(other, "beside this"));
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
        for (key, place) in
            [("settle", raw.settle.place()), ("count", raw.count.place()), ("refund_on", raw.refund_on.place())]
        {
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
            && self.store.is_some_and(|store| store.topology == Topology::Cluster)
        {
            let problem = Problem::error("`on_failover = \"drain\"` cannot be kept on a Redis Cluster")
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
        if let (true, Some(place)) = (raw.rate.is_absent() && raw.in_flight.is_absent(), Some(self.raw.place)) {
            let problem =
                Problem::error(format!("limit `{name}` does not say how much")).at(place, "`rate` is missing");
            context.push(problem.help("write rate = \"100/minute\", or in_flight = 10 for a concurrency limit"));
        }
        if let (Some(place), None, Some(at)) = (raw.store.place(), self.store, raw.store.get())
            && at.value == RawPlacement::Shared
        {
            let problem =
                Problem::error(format!("limit `{name}` is to be shared, but there is no store")).at(place, "where?");
            context.push(problem.help("add a [store] with its kind, url, when_down and key_secret"));
        }
    }

    /// `follow_upstream` says down to what, and is kept in the process.
    fn check_following(&self, context: &mut Context<'_>) {
        let Some(follow) = self.raw.follow_upstream.get() else { return };
        let least = follow.least.get();
        if follow.least.is_absent() || least.is_some_and(|least| least.value == Rate::Unlimited) {
            let place = least.map_or(follow.place, |least| least.place);
            let problem = Problem::error("`follow_upstream` does not say how far the rate may fall")
                .at(place, "`least` must be a rate");
            context.push(problem.help("write follow_upstream = { least = \"10/minute\" }"));
        }
        if let (Some(obeys), Some(per)) = (follow.obey_quota.get().filter(|at| at.value), self.raw.per.get())
            && per.list.iter().any(|part| part.as_str() != "everyone")
        {
            let problem =
                Problem::warning("what the upstream says to one caller holds them all").at(obeys.place, "here");
            context.push(problem.at(per.place, "each of these has a bucket of its own").help(
                "obey_quota is meant for limits per \"everyone\": the quota that the upstream gives to this gateway",
            ));
        }
        if self.placement() == Placement::Shared {
            let problem = Problem::error("a rate that follows the upstream's health is kept in the process");
            context.push(problem.at(follow.place, "each gateway judges by itself").help("add store = \"local\""));
        }
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

    /// One set of numbers. `settled`: what an answer may cost above the estimate.
    fn variant(
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
            // The limit's own two, which has been said.
            return None;
        }
        let (kind, amount, period, unit, unlimited) = match (numbers.rate.get(), numbers.in_flight.get()) {
            (Some(rate), _) => match rate.value {
                Rate::Per { amount, period, unit } => (self.kind(), amount, period, unit, false),
                Rate::Unlimited => (Kind::TokenBucket, 1, Micros::from_secs(1), Unit::Span, true),
            },
            (None, Some(most)) => match most.value {
                InFlight::Most(most) => (Kind::InFlight, most, Micros::ZERO, Unit::Span, false),
                InFlight::Adaptive { .. } if self.placement() == Placement::Shared => {
                    let problem = Problem::error("an adaptive concurrency limit is kept in the process");
                    context.push(problem.at(most.place, "each gateway finds its own").help("add store = \"local\""));
                    return None;
                }
                InFlight::Adaptive { most, .. } => (Kind::InFlight, most, Micros::ZERO, Unit::Span, false),
            },
            (None, None) => return None,
        };
        let live_kind = if self.raw.in_flight.is_absent() { self.kind() } else { Kind::InFlight };
        if !unlimited && (kind == Kind::InFlight) != (live_kind == Kind::InFlight) {
            let problem = Problem::error(format!("other numbers of `{}` must be of its kind", self.name.value))
                .at(numbers.place, "a rate cannot stand in for a concurrency limit, nor the other way");
            context.push(problem.at(self.name.place, "the limit"));
            return None;
        }
        let align = if unlimited { Align::FirstHit } else { self.align(numbers, period, unit, context)? };
        let time = |field: &Field<Time>| field.get().map_or(Micros::ZERO, |at| at.value.0);
        let plain = unlimited || kind == Kind::InFlight;
        let terms = Terms {
            kind,
            amount,
            period,
            burst: if unlimited { None } else { numbers.burst.get().map(|burst| burst.value) },
            align,
            debt: if unlimited { 0 } else { self.raw.debt.or(0) },
            max_wait: if unlimited { Micros::ZERO } else { time(&self.raw.max_wait) },
            warm_up: if plain { Micros::ZERO } else { time(&self.raw.warm_up) },
            shared: self.placement() == Placement::Shared,
        };
        if !unlimited {
            let source = numbers.burst.place().or(numbers.rate.place()).or(numbers.in_flight.place());
            amounts.push(Amounts {
                most: terms.burst.unwrap_or(amount),
                debt: terms.debt,
                place: source.unwrap_or(numbers.place),
                tier: tier.map(|tier| tier.value.clone()),
            });
        }
        let made = Algorithm::new(&terms);
        let made = if unlimited { made } else { made.and_then(|made| made.settling(settled, terms.shared)) };
        if kind == Kind::Interval && terms.debt == 0 && terms.burst.is_some_and(|burst| burst < amount) {
            self.warn_of_lost_units(numbers, &terms, context);
        }
        let algorithm = match (numbers.in_flight.get().map(|at| at.value), self.least_rate()) {
            // What it has no meaning for is still an error.
            (Some(InFlight::Adaptive { least, most }), _) => {
                made.and_then(|_| in_flight::InFlight::adaptive(least, most)).map(Algorithm::InFlight)
            }
            (None, Some((amount, period))) if !unlimited => made
                .and_then(|made| made.following(amount, period))
                .map(|made| if self.obeys_quota() { made.obeying_quota() } else { made }),
            _ => made,
        };
        match algorithm {
            Ok(algorithm) => Some(self.limit(tier, role, algorithm, unlimited)),
            Err(errors) => {
                let mut said = Vec::new();
                for error in errors {
                    // One reason for each key is enough.
                    if said.contains(&error.field) {
                        continue;
                    }
                    said.push(error.field);
                    let place = self.place_of(error.field, numbers);
                    let whose = match tier {
                        Some(tier) => format!("tiers.{}.{}", tier.value, self.name.value),
                        None if role == Role::Candidate => format!("limits.{}.candidate", self.name.value),
                        None => format!("limits.{}", self.name.value),
                    };
                    let title = format!("`{whose}.{}` is not possible", error.field);
                    context.push(Problem::error(title).at(place, error.message));
                }
                None
            }
        }
    }

    /// An interval that adds more than there is room for.
    fn warn_of_lost_units(&self, numbers: &At<RawTier>, terms: &Terms, context: &mut Context<'_>) {
        let (amount, burst) = (terms.amount, terms.burst.unwrap_or(terms.amount));
        let period = crate::limit::words::period(terms.period);
        let problem =
            Problem::warning(format!("limit `{}` yields {burst} per {period}, not {amount}", self.name.value));
        let problem = problem.at(numbers.burst.place().unwrap_or(numbers.place), "what is added beyond this is lost");
        let problem = problem.at(numbers.rate.place().unwrap_or(numbers.place), "added all at once");
        context
            .push(problem.help("algorithm = \"token_bucket\" adds it evenly; or write a burst of the rate's number"));
    }

    /// Where the key that an error hangs on is written, or what its default came from.
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
            "settle" => raw.settle.get().and_then(|settle| settle.max.place()).or(raw.settle.place()),
            "algorithm" => raw.algorithm.place(),
            _ => None,
        };
        place.or(numbers.rate.place()).or(numbers.in_flight.place()).unwrap_or(numbers.place)
    }

    /// The rate that a limit which follows the upstream's health keeps at least.
    fn least_rate(&self) -> Option<(u64, Micros)> {
        match self.raw.follow_upstream.get()?.least.get()?.value {
            Rate::Per { amount, period, .. } => Some((amount, period)),
            Rate::Unlimited => None,
        }
    }

    /// Whether the upstream's own quota is obeyed: said, or since everything here is on its way out.
    fn obeys_quota(&self) -> bool {
        self.raw.follow_upstream.get().is_some_and(|follow| follow.obey_quota.or(self.egress))
    }

    fn kind(&self) -> Kind {
        match self.raw.algorithm.or(RawAlgorithm::TokenBucket) {
            RawAlgorithm::TokenBucket => Kind::TokenBucket,
            RawAlgorithm::Interval => Kind::Interval,
            RawAlgorithm::FixedWindow => Kind::FixedWindow,
            RawAlgorithm::SlidingWindow => Kind::SlidingWindow,
            RawAlgorithm::SlidingLog => Kind::SlidingLog,
        }
    }

    /// Where windows begin. A month is only known to a calendar.
    fn align(&self, numbers: &At<RawTier>, period: Micros, unit: Unit, context: &mut Context<'_>) -> Option<Align> {
        let window = self.raw.window.or(raw::RawWindow::default());
        let align = window.align.or(RawAlign::FirstHit);
        let rate = numbers.rate.place().unwrap_or(numbers.place);
        if unit == Unit::Month && align != RawAlign::Calendar {
            let problem = Problem::error("months are not all of one length").at(rate, "only a calendar knows them");
            context.push(problem.help("add algorithm = \"fixed_window\" and window = { align = \"calendar\", zone = \"UTC\" }, or write \"30d\" for the period"));
            return None;
        }
        if align != RawAlign::Calendar {
            for (key, place) in [("zone", window.zone.place()), ("anchor_day", window.anchor_day.place())] {
                if let Some(place) = place {
                    let problem =
                        Problem::error(format!("`{key}` is for calendar windows")).at(place, "this window has none");
                    context.push(problem.help("add align = \"calendar\""));
                }
            }
        }
        match align {
            RawAlign::FirstHit => Some(Align::FirstHit),
            RawAlign::Clock => Some(Align::Clock),
            RawAlign::Calendar => {
                calendar::windows(&window, rate, period, unit, self.now, context).map(Align::Calendar)
            }
        }
    }

    fn limit(&self, tier: Option<&At<String>>, role: Role, algorithm: Algorithm, unlimited: bool) -> Limit {
        let raw = &self.raw.value;
        let default_down = self.store.map_or(WhenDown::LocalShare, |store| store.when_down);
        Limit {
            name: Arc::from(self.name.value.as_str()),
            index: 0,
            tier: tier.map(|tier| Arc::from(tier.value.as_str())),
            role,
            algorithm,
            mode: match raw.mode.or(RawMode::Enforce) {
                _ if unlimited => Mode::Off,
                RawMode::Enforce => Mode::Enforce,
                RawMode::Shadow => Mode::Shadow,
                RawMode::Off => Mode::Off,
            },
            enforce_for: raw.enforce_for.get().map_or(10_000, |share| share.value.0),
            placement: self.placement(),
            when_down: raw.when_down.get().map_or(default_down, |at| super::store::when_down(at.value)),
            on_failover: match raw.on_failover.or(raw::OnFailover::Keep) {
                raw::OnFailover::Keep => OnFailover::Keep,
                raw::OnFailover::Drain => OnFailover::Drain,
            },
            lease: raw.lease.or(false),
            memory: self.memory,
            refundable: false,
        }
    }
}

/// What a local table takes at most when the file does not say.
const MEMORY: u64 = 64 << 20;
