//! `lease`: which limits can be leased.

use crate::raw::RawLimit;
use crate::reading::{At, Context, Mirror, Place};
use crate::settings::{Store, Topology};
use tollgate_limit::lease::Terms;
use tollgate_limit::{Kind, Mode, Placement, Role};
use tollgate_policy::Rule;

pub(crate) fn check(
    raw: &At<RawLimit>,
    rule: &Rule,
    store: Option<&Store>,
    context: &mut Context<'_>,
) {
    let (Some(place), Some(store)) = (raw.lease.place(), store) else {
        return;
    };
    // (For a concurrency limit another check reports that a lease has no meaning.)
    if !rule.live.lease
        || rule.live.placement != Placement::Shared
        || rule.live.algorithm.kind() == Kind::InFlight
    {
        return;
    }
    for limit in rule.variants().filter(|limit| limit.mode != Mode::Off) {
        let Err(reason) = Terms::of(&limit.algorithm) else {
            continue;
        };
        let whose = match (&limit.tier, limit.role) {
            (Some(tier), _) => format!("tiers.{tier}.{}", limit.name),
            (None, Role::Candidate) => format!("limits.{}.candidate", limit.name),
            (None, Role::Live) => format!("limits.{}", limit.name),
        };
        let base = limit.tier.is_none() && limit.role == Role::Live;
        // In a cluster a request's buckets may be on different servers only if all of them can be
        // leased.
        let problem = if base || store.topology == Topology::Cluster {
            let title = format!("`{whose}` cannot be leased");
            context.error(title, place, "asked for here")
        } else {
            let title = format!("`{whose}` is not leased: every decision asks the store");
            context.warning(title, place, "asked for here")
        };
        match place_of(reason.field, &raw.value).filter(|_| base) {
            Some(at) => problem.at(at, reason.message),
            None => problem.note(reason.message),
        };
    }
}

fn place_of(field: &str, raw: &RawLimit) -> Option<Place> {
    match field {
        "algorithm" | "debt" | "max_wait" => raw.place(field),
        _ => raw.burst.place().or(raw.rate.place()),
    }
}
