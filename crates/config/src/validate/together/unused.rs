use std::collections::HashSet;

use crate::raw::{RawFile, RawRoute};
use crate::reading::{At, Context, ShortOr, Text};
use crate::validate::{entries_of, entry_of, list_of};
use tollgate_policy::Policy;
use tollgate_policy::identity::WhenMissing;
use tollgate_policy::routes::Route;

/// Limits, identities and upstreams that nothing refers to.
pub(super) fn names(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    let mut unused = |what: &str, name: &At<String>, label: &str| {
        let title = format!("{what} `{}` is never used", name.value);
        context.warning(title, name.place, label);
    };
    let by_descriptors = policy
        .domains
        .rules()
        .flat_map(|rule| &rule.limits)
        .copied();
    let by_routes = policy.routes.iter().flat_map(Route::all_limits);
    let charged: HashSet<&str> = by_descriptors
        .chain(by_routes.map(|limit| limit.rule))
        .map(|rule| &*policy.rules[rule].name)
        .collect();
    for (name, _) in entries_of(&raw.limits) {
        if !charged.contains(name.value.as_str()) {
            unused("limit", name, "no route names it");
        }
    }
    let mut used = vec![false; policy.identities.len()];
    for index in policy.rules.iter().flat_map(|rule| rule.scope.identities()) {
        used[index] = true;
    }
    for identity in &policy.identities {
        if let WhenMissing::Use(index) = identity.when_missing {
            used[index] = true;
        }
    }
    for (name, _) in entries_of(&raw.identities) {
        let index = policy.identity(&name.value);
        let templated = format!("identity:{}", name.value);
        let in_template = list_of(&raw.routes)
            .iter()
            .flat_map(set_values)
            .any(|value| {
                let words = [&*templated, "{tier}", "{caller}"];
                words.iter().any(|word| value.as_str().contains(word))
            });
        if index.is_some_and(|index| !used[index]) && !in_template {
            unused("identity", name, "no limit is per this identity");
        }
    }
    for (name, _) in entries_of(&raw.upstreams) {
        let used = list_of(&raw.routes).iter().any(|route| {
            let over_limit = list_of(&route.over_limit);
            let mut upstreams = over_limit.iter().map(|over| &over.upstream);
            let is_it = |upstream: &At<Text>| upstream.as_str() == name.value;
            route.upstream.get().is_some_and(is_it)
                || upstreams.any(|upstream| upstream.get().is_some_and(is_it))
        });
        if !used {
            unused("upstream", name, "no route goes there");
        }
    }
}

/// Tiers that no caller has, and tier limits on routes where no caller's tier is known.
pub(super) fn tiers(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    // A list in a file of its own may name any tier when it is read again.
    let own_file = |index: usize| {
        entry_of(&raw.identities, &policy.identities[index].name)
            .and_then(|(_, identity)| identity.callers.get())
            .is_some_and(|at| matches!(at.value, ShortOr::Short(_)))
    };
    let gives = |index: usize, tier: &str| {
        if policy.identities[index].address_tier.as_deref() == Some(tier) {
            return true;
        }
        let listed = policy.identities[index].callers.as_ref();
        listed.is_some_and(|callers| {
            own_file(index)
                || callers
                    .load()
                    .iter()
                    .any(|caller| caller.tier.as_deref() == Some(tier))
        })
    };
    for (tier, limits) in entries_of(&raw.tiers) {
        if !(0..policy.identities.len()).any(|index| gives(index, &tier.value)) {
            if !limits.entries.is_empty() {
                let title = format!("no caller is of tier `{}`", tier.value);
                context.warning(title, tier.place, "no list of callers names it");
            }
            continue;
        }
        for (limit, _) in &limits.entries {
            let names = |route: &usize| {
                policy.routes[*route]
                    .all_limits()
                    .any(|one| *policy.rules[one.rule].name == *limit.value)
            };
            let on: Vec<usize> = (0..policy.routes.len()).filter(names).collect();
            let known = |route: &usize| {
                policy
                    .identities_of(*route)
                    .iter()
                    .any(|index| gives(*index, &tier.value))
            };
            if !on.is_empty() && !on.iter().any(known) {
                let title = format!(
                    "tier `{}` never changes limit `{}`",
                    tier.value, limit.value
                );
                let label = "no route of this limit learns who the caller is";
                context.warning(title, limit.place, label).help(
                    "a caller's tier is known where a limit of the route is `per` the identity that lists the caller",
                );
            }
        }
    }
}

fn set_values(route: &At<RawRoute>) -> impl Iterator<Item = &At<Text>> {
    let (request, response) = (&route.request_headers, &route.response_headers);
    let edits = request.get().into_iter().chain(response.get());
    edits
        .flat_map(|edits| entries_of(&edits.set))
        .map(|(_, value)| value)
}
