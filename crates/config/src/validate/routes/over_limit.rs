//! `over_limit` of a route: the upstreams that take what its limits refuse.

use super::Compiler;
use crate::raw::{RawOverLimit, RawRoute};
use crate::reading::{At, Text};
use crate::validate::list_of;
use tollgate_policy::TARGETS_MAX;
use tollgate_policy::claims::prices::PriceIndex;
use tollgate_policy::routes::{OverLimit, RouteLimit, Target};

impl Compiler<'_, '_> {
    /// `over_limit`. `limits`: those of the route; `None`: they could not be read.
    pub(super) fn over_limit(
        &mut self,
        at: &At<RawRoute>,
        limits: Option<&[RouteLimit]>,
    ) -> Option<Vec<OverLimit>> {
        let context = &mut *self.context;
        let written = list_of(&at.over_limit);
        let Some(first) = written.first() else {
            return at.over_limit.is_absent().then(Vec::new);
        };
        if at.upstream.is_absent() {
            let title = "`over_limit` is for a route with an `upstream`";
            context.error(title, first.place, "this route forwards nothing");
            return None;
        }
        if self.raw.server.get().is_some_and(|server| server.egress) {
            let title = "`over_limit` cannot be combined with `server.egress`";
            let label = "a client chooses the host that its request goes to";
            context.error(title, first.place, label);
            return None;
        }
        if written.len() >= TARGETS_MAX {
            let title = format!("a route has at most {TARGETS_MAX} targets");
            let label = format!("{} beside its own", written.len());
            context.error(title, first.place, label);
            return None;
        }
        let mut before = limits?.to_vec();
        let mut made = Vec::new();
        for over in written {
            let over = self.later_target(over, &before)?;
            before.clone_from(&over.limits);
            made.push(over);
        }
        Some(made)
    }

    /// One of them; `before`: the limits of the target before it.
    fn later_target(&mut self, at: &At<RawOverLimit>, before: &[RouteLimit]) -> Option<OverLimit> {
        let rules = &self.limits.rules;
        let names: Vec<&str> = before
            .iter()
            .map(|limit| &*rules[limit.rule].name)
            .collect();
        let mut instead_of = Vec::new();
        for text in &at.instead_of.get()?.value {
            match before
                .iter()
                .find(|limit| *rules[limit.rule].name == *text.as_str())
            {
                Some(limit) if rules[limit.rule].live.penalty.is_some() => {
                    let title = format!("limit `{}` has a penalty", text.as_str());
                    let label =
                        "a request that passes on is not refused, and would count towards it";
                    self.context.error(title, text.place, label).help(
                        "a limit of the last target, which refuses, can have the penalty instead",
                    );
                }
                Some(limit) => instead_of.push(limit.rule),
                None => self.context.unknown(
                    "limit of the target before",
                    text.as_str(),
                    text.place,
                    &names,
                ),
            }
        }
        let own = at.limits();
        let own = self.named_limits(&own.value)?;
        let place = at.limits.place().unwrap_or(at.place);
        if let Some(limit) = own
            .iter()
            .find(|limit| before.iter().any(|known| known.rule == limit.rule))
        {
            let title = format!(
                "limit `{}` is one of the target before",
                rules[limit.rule].name
            );
            self.context
                .error(title, place, "named again")
                .help("limits that `instead_of` does not name are charged for this upstream, too");
            return None;
        }
        let upstream = at.upstream.get()?;
        let Some(Target::Upstream(index)) = self.upstream(upstream) else {
            if upstream.as_str().starts_with("builtin:echo") {
                let title = "`over_limit` needs an upstream that requests are forwarded to";
                self.context
                    .error(title, upstream.place, "a name or a URL was expected");
            }
            return None;
        };
        let stays = |limit: &&RouteLimit| !instead_of.contains(&limit.rule);
        let limits: Vec<RouteLimit> = before.iter().filter(stays).chain(&own).cloned().collect();
        let model = match at.model.get() {
            Some(text) => Some(self.model_of(text, &limits)?),
            None => None,
        };
        let whole = self.check_claims(&limits, place) && !instead_of.is_empty();
        whole.then_some(OverLimit {
            instead_of,
            upstream: index,
            limits,
            model,
        })
    }

    /// The price of the model that a target with these limits serves.
    fn model_of(&mut self, text: &At<Text>, limits: &[RouteLimit]) -> Option<PriceIndex> {
        let rules = &self.limits.rules;
        let mut prices = limits
            .iter()
            .filter_map(|limit| rules[limit.rule].prices.as_ref());
        let Some(its) = prices.next() else {
            let title = "`model` is for a target with a limit of money";
            let label = "none of its limits has `prices`";
            self.context.error(title, text.place, label);
            return None;
        };
        let place = its.prices.of_model(text.as_str());
        if place.is_none() {
            let title = format!("model `{}` has no price", text.as_str());
            self.context
                .error(title, text.place, "no name in [prices.models] matches it");
        }
        place
    }
}
