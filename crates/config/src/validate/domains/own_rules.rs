use std::sync::Arc;

use super::Compiler;
use crate::rate_limit_yaml;
use crate::raw::RuleOfDescriptors;
use crate::reading::{Context, Place};
use crate::validate::names_of;
use tollgate_limit::{Kind, Micros};
use tollgate_policy::claims::domains::{ADDRESS_KEYS, DescriptorRule, Step};
use tollgate_policy::{Cost, Count, Rule, ScopePart};

impl Compiler<'_, '_> {
    pub(super) fn own_rule(&mut self, rule: &RuleOfDescriptors, index: usize) {
        let (rules, context) = (&self.limits.rules, &mut *self.context);
        let whole = format!("decide.rules[{index}]");
        let at = |key: &str, context: &Context<'_>| {
            let place = context.place(&format!("{whole}.{key}"));
            place.or_else(|| context.place(&whole)).unwrap_or_default()
        };
        if rule.domain.is_empty() {
            let place = at("domain", context);
            context.error("a domain has a name", place, "it is empty");
        }
        if rule.descriptor.is_empty() || rule.descriptor.len() > rate_limit_yaml::DEEPEST {
            let place = at("descriptor", context);
            let title = format!("a descriptor has 1 to {} entries", rate_limit_yaml::DEEPEST);
            context.error(title, place, "here");
            return;
        }
        for (entry, written) in rule.descriptor.iter().enumerate() {
            let pattern = written
                .value
                .as_deref()
                .is_some_and(|value| value.contains('*'));
            if written.share_threshold && !pattern {
                let place = at(&format!("descriptor[{entry}].share_threshold"), context);
                let title = "`share_threshold` is for values with `*`";
                context.error(title, place, "this entry has no such value");
            }
            if written.key.is_empty() || written.key.contains('*') {
                let place = at(&format!("descriptor[{entry}].key"), context);
                let title = "a key has a name, without `*`";
                context.error(title, place, "`*` is for values");
            }
        }
        let mut charged = Vec::new();
        for (entry, name) in rule.limits.iter().enumerate() {
            let place = at(&format!("limits[{entry}]"), context);
            let names = names_of(&self.raw.limits);
            match rules.iter().position(|known| *known.name == **name) {
                Some(known) if charged.contains(&known) => {
                    let title = format!("a rule names limit `{name}` twice");
                    context.error(title, place, "again here");
                }
                Some(known) if rule.quota_mode && rules[known].live.penalty.is_some() => {
                    let title = format!("limit `{name}` has a penalty");
                    let label = "with `quota_mode` it refuses only together with others";
                    context
                        .error(title, place, label)
                        .help("a limit of a rule without `quota_mode` can have the penalty");
                }
                Some(known) => {
                    check_limit(&rules[known], rule, place, context);
                    charged.push(known);
                }
                None if names.contains(&name.as_str()) => {}
                None => context.unknown("limit", name, place, &names),
            }
        }
        let steps = rule.descriptor.iter().map(|entry| Step {
            key: entry.key.clone(),
            value: entry.value.clone(),
            shared: entry.share_threshold,
        });
        let steps: Vec<Step> = steps.collect();
        let compiled = DescriptorRule {
            name: rule.name.as_deref().map(Arc::from),
            replaces: rule
                .replaces
                .iter()
                .map(|name| Arc::from(name.as_str()))
                .collect(),
            limits: charged,
            path: Arc::from(rule.domain.as_str()),
            refuses: false,
            quota: rule.quota_mode,
        };
        let place = at("descriptor", context);
        self.insert(&rule.domain, &steps, compiled, place);
    }
}

/// A limit of a rule must be decidable from a descriptor alone, and when it arrives.
fn check_limit(limit: &Rule, rule: &RuleOfDescriptors, place: Place, context: &mut Context<'_>) {
    let name = &limit.name;
    let parts = limit.scope.parts();
    let by_request = parts.iter().any(|part| {
        matches!(
            part,
            ScopePart::Identity(_) | ScopePart::Route | ScopePart::Method | ScopePart::Host
        )
    });
    let has_address = rule
        .descriptor
        .iter()
        .any(|entry| ADDRESS_KEYS.contains(&entry.key.as_str()));
    let why = if by_request {
        "a descriptor has no request that its `per` could be read from"
    } else if parts.contains(&ScopePart::Address) && !has_address {
        "its `per` is an address, and no entry is `remote_address` or `masked_remote_address`"
    } else if !matches!(limit.cost, Cost::Fixed(_)) {
        "its cost is read from an HTTP request"
    } else if limit.settle.is_some() || limit.count != Count::All || !limit.refund_on.is_empty() {
        "it is corrected by a response, which the service does not see"
    } else if limit.live.algorithm.kind() == Kind::InFlight {
        "it counts requests in progress, whose end the service does not see"
    } else if limit.live.algorithm.max_wait() > Micros::ZERO {
        "it holds requests, and the service only decides about them"
    } else if limit.live.algorithm.follows().is_some() {
        "it follows an upstream, which the service does not see"
    } else {
        return;
    };
    context
        .error(
            format!("limit `{name}` cannot decide about descriptors"),
            place,
            why,
        )
        .help("write another limit, such as per = \"descriptor\" with a rate");
}
