//! `[[routes]]`: the requests a route matches, its target, its limits.
//!
//! This module assembles a route and reads its `limits`; `target` reads its target, `edits` its
//! changes to messages.

mod edits;
mod over_limit;
mod target;

use std::collections::HashSet;
use std::sync::Arc;

use super::limits::Limits;
use super::upstreams::Upstreams;
use super::{costs, entry_of, list_of, names_of, prices};
use crate::raw::{RawDefaults, RawFile, RawRoute, RawRouteLimit};
use crate::reading::{At, Context, Mirror, Place, Problem, ShortOr, Text};
use tollgate_policy::routes::{Pattern, Route, RouteLimit, Target};
use tollgate_policy::{Cost, ScopePart};

#[derive(Debug, Default)]
pub(crate) struct Routes {
    pub(crate) list: Vec<Route>,
    pub(crate) places: Vec<Place>,
    pub(crate) broken: bool,
}

pub(crate) struct Compiler<'c, 'e> {
    pub(crate) raw: &'c RawFile,
    pub(crate) identities: &'c [&'c str],
    pub(crate) limits: &'c Limits,
    /// The largest body for routes without a setting of their own.
    pub(crate) body: Option<u64>,
    /// Whether the gateway needs no routes.
    pub(crate) none: bool,
    /// Whether it decides about descriptors, so that it would need none without a listener for clients.
    pub(crate) decides: bool,
    /// The upstreams; those that routes name by their URL are added.
    pub(crate) upstreams: &'c mut Upstreams,
    pub(crate) context: &'c mut Context<'e>,
}

impl Compiler<'_, '_> {
    pub(crate) fn routes(&mut self) -> Routes {
        let mut made = Routes::default();
        if self.raw.routes.is_absent() && !self.none {
            let title = "there are no routes: every request would get 404";
            let help = if self.decides {
                "add [[routes]], or remove `listen` of [server]: a gateway that only decides for Envoy listens for no clients"
            } else {
                "add [[routes]] with match = \"/**\" and upstream = \"http://127.0.0.1:3000\""
            };
            self.context.problems.push(Problem::error(title)).help(help);
        }
        let mut named: Vec<&At<Text>> = Vec::new();
        for at in list_of(&self.raw.routes) {
            if let Some(name) = at.name.get() {
                match named.iter().find(|other| other.as_str() == name.as_str()) {
                    Some(first) => {
                        let title = format!("two routes are called `{}`", name.as_str());
                        self.context.twice(title, name.place, first.place);
                    }
                    None => named.push(name),
                }
            }
            match self.route(at) {
                Some(route) => {
                    made.list.push(route);
                    made.places.push(at.r#match.place().unwrap_or(at.place));
                }
                None => made.broken = true,
            }
        }
        made
    }

    fn route(&mut self, at: &At<RawRoute>) -> Option<Route> {
        let pattern = at.r#match.get().map(|written| match &written.value {
            ShortOr::Short(pattern) | ShortOr::Table(pattern) => pattern.clone(),
        });
        let limits = self.limits_of(at);
        let target = self.target(at);
        let context = &mut *self.context;
        let request_headers = edits::edits(&at.request_headers, self.identities, context);
        let response_headers = edits::edits(&at.response_headers, self.identities, context);
        let strip_prefix = edits::prefix("strip_prefix", &at.strip_prefix, context);
        let add_prefix = edits::prefix("add_prefix", &at.add_prefix, context);
        if let (Some(pattern), Some(prefix)) = (&pattern, &strip_prefix) {
            edits::check_strip(pattern, prefix, at, context);
        }
        if matches!(target, Some(Target::Fixed { .. } | Target::Redirect { .. })) {
            for (key, place) in at.written(["strip_prefix", "add_prefix", "request_headers"]) {
                let title = format!("`{key}` means nothing where nothing is forwarded");
                context.error(title, place, "the gateway answers by itself");
            }
        }
        let over_limit = self.over_limit(at, limits.as_deref());
        let pattern = pattern?;
        let over = over_limit.iter().flatten().flat_map(|over| &over.limits);
        for limit in limits.iter().flatten().chain(over) {
            let rule = &self.limits.rules[limit.rule];
            if (rule.prices.as_ref()).is_some_and(|its| its.source(&pattern).is_none()) {
                let title = format!("limit `{}` finds no model on this route", rule.name);
                let place = at.r#match.place().unwrap_or(at.place);
                let label = "it has no segment that names one";
                self.context.error(title, place, label).help(
                "add the segment, such as {deployment}; or let the limit read the body as well: prices = [\"path:deployment\", \"json:model\"]",
            );
            }
        }
        let name = at.name.get().map_or_else(
            || own_name(&pattern, &self.context.from_environment),
            |name| name.as_str().to_owned(),
        );
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
            body_max: at.body.or(self.body),
        })
    }

    fn limits_of(&mut self, at: &At<RawRoute>) -> Option<Vec<RouteLimit>> {
        let defaults = self.raw.defaults.or(RawDefaults::default()).limits().value;
        let list = if at.limits.is_absent() {
            defaults.as_slice()
        } else {
            list_of(&at.limits)
        };
        let made = self.named_limits(list)?;
        self.check_claims(&made, at.limits.place().unwrap_or(at.place))
            .then_some(made)
    }

    fn named_limits(
        &mut self,
        list: &[At<ShortOr<Text, RawRouteLimit>>],
    ) -> Option<Vec<RouteLimit>> {
        let rules = &self.limits.rules;
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
                self.context
                    .twice(format!("a route names limit `{name}` twice"), place, *first)
                    .help("for a higher price write { limit = \"…\", cost = 2 }");
                continue;
            }
            seen.push((name, place));
            let names = names_of(&self.raw.limits);
            let Some(rule) = rules.iter().position(|rule| &*rule.name == name) else {
                whole = false;
                if !names.contains(&name) {
                    self.context.unknown("limit", name, place, &names);
                }
                continue;
            };
            if rules[rule].scope.parts().contains(&ScopePart::Descriptor) {
                let title = format!("limit `{name}` is for descriptors");
                self.context
                .error(title, place, "a request of a route has no descriptor")
                .help("its `per` is \"descriptor\": name it in [[decide.rules]], and take another limit here");
            }
            let cost = table.cost.get();
            if let Some(cost) = cost {
                self.check_own_cost(cost, rule);
            }
            let cost = cost.map(|cost| cost.value.clone());
            made.push(RouteLimit { rule, cost });
        }
        whole.then_some(made)
    }

    /// Reports what is wrong with a route's own cost of the limit at `rule`.
    fn check_own_cost(&mut self, cost: &At<Cost>, rule: usize) {
        let (amounts, rule) = (&self.limits.written[rule].amounts, &self.limits.rules[rule]);
        let context = &mut *self.context;
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
            && let Some((_, limit)) = entry_of(&self.raw.limits, name)
            && let Some(settle) = limit.settle.get()
        {
            costs::check_reservation(settle, cost, bounds.1, context);
        }
        let counted = rule.live.currency.as_deref();
        costs::check_payable(name, counted, bounds, cost.place, amounts, context);
    }

    fn check_claims(&mut self, limits: &[RouteLimit], place: Place) -> bool {
        let buckets = |limit: &RouteLimit| self.limits.rules[limit.rule].buckets();
        let claims: usize = limits.iter().map(buckets).sum();
        let most = tollgate_limit::CLAIMS_MAX;
        if claims > most {
            let title = format!("a route draws from more than {most} buckets");
            let label = format!("{claims}: candidates are buckets too");
            self.context.error(title, place, label);
        }
        claims <= most
    }
}

/// The name of a route without a name in the file: its pattern, and the headers and parts of the body
/// that distinguish it from another route with that pattern. The name is in logs and pages, so it has
/// no value of the environment, which may be a secret.
fn own_name(pattern: &Pattern, from_environment: &HashSet<String>) -> String {
    let headers = pattern.headers.iter().map(|(header, value)| {
        // A value that is not text is represented by its header alone.
        let value = value.as_ref().and_then(|value| value.to_str().ok());
        (header.to_string(), value)
    });
    let body = pattern.body.iter();
    let body = body.map(|(source, value)| (source.words(), value.as_deref()));
    let mut name = pattern.to_string();
    for (what, value) in headers.chain(body) {
        match value.filter(|value| !from_environment.contains(*value)) {
            Some(value) => name.push_str(&format!(" [{what}: {value}]")),
            None => name.push_str(&format!(" [{what}]")),
        }
    }
    name
}
