//! Ceilings and what other tables do to them.

use crate::context::Context;
use crate::raw::{RawFile, RawLimit};
use crate::settings::{ColdStart, Server};
use crate::source::At;
use crate::validate::limits::ceiling::warn_of_bytes;
use crate::validate::{entries_of, list_of};
use tollgate_limit::Placement;
use tollgate_policy::{Policy, Rule};

/// Warns of ceilings that a crash or a route's own cost may let be exceeded.
pub(super) fn warn(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    for rule in policy.rules.iter().filter(|rule| rule.ceiling) {
        let local = rule.live.placement == Placement::Local;
        if let (true, ColdStart::Full, Some(limit)) = (local, server.cold_start, written(raw, rule))
        {
            let title = format!("a crash may let the ceiling `{}` be exceeded", rule.name);
            let place = limit.value.ceiling.place().unwrap_or(limit.place);
            context
                .warning(title, place, "its buckets live in the process, and start full after a crash")
                .help("write cold_start = \"empty\" in [server]: then they start empty; or keep them in a [store]");
        }
    }
    for (route, written) in policy.routes.iter().zip(list_of(&raw.routes)) {
        for limit in &route.limits {
            let rule = &policy.rules[limit.rule];
            if let (true, Some(cost)) = (rule.ceiling, &limit.cost) {
                let place = written.limits.place().unwrap_or(written.place);
                warn_of_bytes(&rule.name, cost, place, context);
            }
        }
    }
}

fn written<'r>(raw: &'r RawFile, rule: &Rule) -> Option<&'r At<RawLimit>> {
    let mut limits = entries_of(&raw.limits).iter();
    let found = limits.find(|(name, _)| *name.value == *rule.name);
    found.map(|(_, limit)| limit)
}
