//! Limits that are used together on a Redis Cluster: one call decides about all of them, and
//! reaches one slot.

use crate::reading::Context;
use crate::settings::{Store, Topology};
use crate::validate::limits::Limits;
use crate::validate::routes::Routes;
use tollgate_limit::{Mode, Placement};

/// Redis Cluster: the buckets that one call decides about must be in one slot, so limits that are
/// used together need the same `per`. A leased limit does not: its units are taken in the process,
/// and put back unless the call grants the rest.
pub(crate) fn check_cluster(
    routes: &Routes,
    limits: &Limits,
    store: Option<&Store>,
    context: &mut Context<'_>,
) {
    if store.is_none_or(|store| store.topology != Topology::Cluster) {
        return;
    }
    let mut said: Vec<(usize, usize)> = Vec::new();
    let targets = routes
        .list
        .iter()
        .zip(&routes.places)
        .flat_map(|(route, place)| {
            (0..=route.over_limit.len()).map(move |target| (route.limits_of(target), place))
        });
    for (charged, place) in targets {
        let bound: Vec<usize> = charged
            .iter()
            .map(|limit| limit.rule)
            .filter(|rule| {
                let live = &limits.rules[*rule].live;
                live.placement == Placement::Shared && live.mode != Mode::Off && !live.lease
            })
            .collect();
        let Some((first, rest)) = bound.split_first() else {
            continue;
        };
        for other in rest
            .iter()
            .filter(|other| limits.rules[**other].scope != limits.rules[*first].scope)
        {
            if said.contains(&(*first, *other)) {
                continue;
            }
            said.push((*first, *other));
            let (one, two) = (&limits.written[*first], &limits.written[*other]);
            let title = format!(
                "limits `{}` and `{}` cannot occur together on a Redis Cluster",
                one.name.value, two.name.value
            );
            context
                .error(title, *place, "this route is charged on both")
                .at(one.name.place, format!("per {}", one.per.join(" and ")))
                .at(two.name.place, format!("per {}", two.per.join(" and ")))
                .note("a request is charged on all of its limits or on none, which takes one call, and a call reaches one slot")
                .help("give both the same `per`, or let gateways hold parts of one of them: lease = true; or keep one in each process: store = \"local\"");
        }
    }
}
