//! `[[routes]]`: the requests a route matches, its target, its limits.
//!
//! This module assembles a route and reads its `limits`; `matching` reads its pattern, `target` its
//! target, `edits` its changes to messages.

mod edits;
mod matching;
mod over_limit;
mod target;

pub(crate) use matching::{BodyPattern, HeaderPattern, MethodText};

use std::sync::Arc;

use super::limits::Limits;
use super::upstreams::Upstreams;
use super::{costs, entries_of, list_of, names_of, prices};
use crate::context::Context;
use crate::lists::ShortOr;
use crate::problem::Problem;
use crate::raw::{RawDefaults, RawFile, RawRoute, RawRouteLimit};
use crate::source::{At, Place};
use crate::text::Text;
use tollgate_policy::route::{Pattern, Route, RouteLimit, Target};
use tollgate_policy::{Cost, Scope, ScopePart};

/// The routes of a file.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// In the order of the file.
    pub(crate) list: Vec<Route>,
    /// The place of each route's pattern.
    pub(crate) places: Vec<Place>,
    /// Whether one of them could not be built.
    pub(crate) broken: bool,
}

/// The names that routes refer to.
pub(crate) struct Known<'k> {
    /// Identities by index.
    pub(crate) identities: &'k [&'k str],
    /// The limits.
    pub(crate) limits: &'k Limits,
    /// The largest body for routes without a setting of their own.
    pub(crate) body: Option<u64>,
    /// Whether the gateway needs no routes.
    pub(crate) none: bool,
    /// Whether it decides about descriptors, so that it would need none without a listener for clients.
    pub(crate) decides: bool,
}

impl Known<'_> {
    /// The index of the identity with this name.
    fn identity(&self, name: &str) -> Option<usize> {
        self.identities
            .iter()
            .position(|identity| *identity == name)
    }
}

/// Compiles `[[routes]]`.
pub(crate) fn routes(
    raw: &RawFile,
    known: &Known<'_>,
    upstreams: &mut Upstreams,
    context: &mut Context<'_>,
) -> Routes {
    let mut made = Routes::default();
    if raw.routes.is_absent() && !known.none {
        let title = "there are no routes: every request would get 404";
        let help = if known.decides {
            "add [[routes]], or remove `listen` of [server]: a gateway that only decides for Envoy listens for no clients"
        } else {
            "add [[routes]] with match = \"/**\" and upstream = \"http://127.0.0.1:3000\""
        };
        context.problems.push(Problem::error(title)).help(help);
    }
    let mut named: Vec<&At<Text>> = Vec::new();
    for at in list_of(&raw.routes) {
        if let Some(name) = at.name.get() {
            match named.iter().find(|other| other.as_str() == name.as_str()) {
                Some(first) => {
                    let title = format!("two routes are called `{}`", name.as_str());
                    context.twice(title, name.place, first.place);
                }
                None => named.push(name),
            }
        }
        match route(at, raw, known, upstreams, context) {
            Some(route) => {
                made.list.push(route);
                made.places.push(at.r#match.place().unwrap_or(at.place));
            }
            None => made.broken = true,
        }
    }
    made
}

fn route(
    at: &At<RawRoute>,
    raw: &RawFile,
    known: &Known<'_>,
    upstreams: &mut Upstreams,
    context: &mut Context<'_>,
) -> Option<Route> {
    let pattern = matching::pattern(at, context);
    let limits = limits(at, raw, known, context);
    let target = target::target(at, raw, known, upstreams, context);
    let identity = |name: &str| known.identity(name);
    let request_headers = edits::edits(&at.request_headers, &identity, context);
    let response_headers = edits::edits(&at.response_headers, &identity, context);
    let strip_prefix = edits::prefix("strip_prefix", &at.strip_prefix, context);
    let add_prefix = edits::prefix("add_prefix", &at.add_prefix, context);
    if let (Some(pattern), Some(prefix)) = (&pattern, &strip_prefix) {
        edits::check_strip(pattern, prefix, at, context);
    }
    if matches!(target, Some(Target::Fixed { .. } | Target::Redirect { .. })) {
        let fields = [
            ("strip_prefix", at.strip_prefix.place()),
            ("add_prefix", at.add_prefix.place()),
            ("request_headers", at.request_headers.place()),
        ];
        for (key, place) in fields {
            if let Some(place) = place {
                let title = format!("`{key}` means nothing where nothing is forwarded");
                context.error(title, place, "the gateway answers by itself");
            }
        }
    }
    let over_limit = over_limit::over_limit(at, limits.as_deref(), raw, known, upstreams, context);
    let pattern = pattern?;
    let over = over_limit.iter().flatten().flat_map(|over| &over.limits);
    for limit in limits.iter().flatten().chain(over) {
        let rule = &known.limits.rules[limit.rule];
        if (rule.prices.as_ref()).is_some_and(|its| its.source(&pattern).is_none()) {
            let title = format!("limit `{}` finds no model on this route", rule.name);
            let place = at.r#match.place().unwrap_or(at.place);
            let label = "it has no segment that names one";
            context.error(title, place, label).help(
                "add the segment, such as {deployment}; or let the limit read the body as well: prices = [\"path:deployment\", \"json:model\"]",
            );
        }
    }
    let name = at
        .name
        .get()
        .map_or_else(|| own_name(&pattern), |name| name.as_str().to_owned());
    Some(Route {
        name: Arc::from(name),
        pattern,
        target: target?,
        limits: limits?,
        over_limit: over_limit?,
        strip_prefix,
        add_prefix,
        request_headers,
        response_headers,
        refusal: at.refusal.get().map(|refusal| refusal.value.clone()),
        body_max: at.body.or(known.body),
    })
}

/// The name of a route without a name in the file: its pattern, and the headers and parts of the body
/// that distinguish it from another route with that pattern.
fn own_name(pattern: &Pattern) -> String {
    let mut name = pattern.to_string();
    for (header, value) in &pattern.headers {
        // A value that is not text is represented by its header alone.
        match value.as_ref().and_then(|value| value.to_str().ok()) {
            Some(value) => name.push_str(&format!(" [{header}: {value}]")),
            None => name.push_str(&format!(" [{header}]")),
        }
    }
    for (source, value) in &pattern.body {
        match value {
            Some(value) => name.push_str(&format!(" [{}: {value}]", source.words())),
            None => name.push_str(&format!(" [{}]", source.words())),
        }
    }
    name
}

/// `limits`.
fn limits(
    at: &At<RawRoute>,
    raw: &RawFile,
    known: &Known<'_>,
    context: &mut Context<'_>,
) -> Option<Vec<RouteLimit>> {
    let defaults = raw.defaults.or(RawDefaults::default()).limits().value;
    let list = if at.limits.is_absent() {
        defaults.as_slice()
    } else {
        list_of(&at.limits)
    };
    let made = named_limits(list, raw, known, context)?;
    check_claims(&made, at.limits.place().unwrap_or(at.place), known, context).then_some(made)
}

/// The limits of a list.
fn named_limits(
    list: &[At<ShortOr<Text, RawRouteLimit>>],
    raw: &RawFile,
    known: &Known<'_>,
    context: &mut Context<'_>,
) -> Option<Vec<RouteLimit>> {
    let mut made: Vec<RouteLimit> = Vec::new();
    let mut seen: Vec<(&str, Place)> = Vec::new();
    let mut whole = true;
    for entry in list {
        let default = RawRouteLimit::default();
        let (name, place, table) = match &entry.value {
            ShortOr::Short(text) => (text.value.as_str(), entry.place, &default),
            ShortOr::Table(table) => match table.limit.get() {
                Some(name) => (name.as_str(), name.place, table),
                None => {
                    whole = false;
                    continue;
                }
            },
        };
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == name) {
            context
                .twice(format!("a route names limit `{name}` twice"), place, *first)
                .help("for a higher price write { limit = \"…\", cost = 2 }");
            continue;
        }
        seen.push((name, place));
        let names = names_of(&raw.limits);
        let Some(rule) = known
            .limits
            .rules
            .iter()
            .position(|rule| &*rule.name == name)
        else {
            whole = false;
            if !names.contains(&name) {
                context.unknown("limit", name, place, &names);
            }
            continue;
        };
        if matches!(&known.limits.rules[rule].scope, Scope::Identities(parts) if parts.contains(&ScopePart::Descriptor))
        {
            let title = format!("limit `{name}` is for descriptors");
            context
                .error(title, place, "a request of a route has no descriptor")
                .help("its `per` is \"descriptor\": name it in [[decide.rules]], and take another limit here");
        }
        let cost = table.cost.get();
        if let Some(cost) = cost {
            check_own_cost(cost, rule, raw, known, context);
        }
        let cost = cost.map(|cost| cost.value.clone());
        made.push(RouteLimit { rule, cost });
    }
    whole.then_some(made)
}

/// Reports what is wrong with a route's own cost of the limit at `rule`.
fn check_own_cost(
    cost: &At<Cost>,
    rule: usize,
    raw: &RawFile,
    known: &Known<'_>,
    context: &mut Context<'_>,
) {
    let (amounts, rule) = (
        &known.limits.written[rule].amounts,
        &known.limits.rules[rule],
    );
    let name = &*rule.name;
    let bounds = rule.cost_bounds(Some(&cost.value));
    if rule.estimate().is_some() {
        let title = format!("limit `{name}` is settled from the response");
        context.error(title, cost.place, "a price of its own means nothing here");
    } else if rule.prices.is_some() && !prices::check_cost(&cost.value, cost.place, context) {
        return;
    } else if rule.reserves() && matches!(cost.value, Cost::Fixed(_)) {
        let title = format!("limit `{name}` reserves the most that a request may come to");
        let label = "a number is not computed from the request";
        context.error(title, cost.place, label);
    } else if rule.reserves()
        && let Some((_, limit)) = entries_of(&raw.limits)
            .iter()
            .find(|(other, _)| *other.value == *name)
        && let Some(settle) = limit.settle.get()
    {
        costs::check_reservation(settle, cost, bounds.1, context);
    }
    let counted = (name, rule.live.currency.as_deref());
    costs::check_payable(counted, bounds, cost.place, amounts, context);
}

/// Whether one draw can decide about these limits.
fn check_claims(
    limits: &[RouteLimit],
    place: Place,
    known: &Known<'_>,
    context: &mut Context<'_>,
) -> bool {
    let claims: usize = limits
        .iter()
        .map(|limit| known.limits.rules[limit.rule].buckets())
        .sum();
    let most = tollgate_limit::CLAIMS_MAX;
    if claims > most {
        let title = format!("a route draws from more than {most} buckets");
        let label = format!(
            "{claims}: candidates, and the blocks of penalties in a shared store, are buckets too"
        );
        context.error(title, place, label);
    }
    claims <= most
}
