//! What the gateway tells of the configured store that gateways share: readiness, status, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::admin::figures::StoreNow;
use crate::admin::{Standing, status};
use tollgate_admission::shared_store::why_not;
use tollgate_config::settings::{Store, Word as _};
use tollgate_limit::key::WHOLE;
use tollgate_limit::lease::Terms;
use tollgate_limit::{Limit, Mode, Placement, Role, WhenDown};
use tollgate_policy::Policy;
use tollgate_store::audit::Finding;
use tollgate_store::{RemoteStore, Store as _};
use tollgate_telemetry::metrics::Samples;

/// Whether the gateway is ready with regard to the store: while any route, or any rule for
/// descriptors, can be served without it. One that cannot be served should not take the others away,
/// on all gateways at once.
pub(super) fn standing(store: &RemoteStore, policy: &Policy) -> Standing {
    let words = without_store(&policy.limits);
    let Some(why) = why_not(store) else {
        let Some(why) = why_not_all(store) else {
            return match store.engine() {
                engine if engine.is_empty() => Standing::Holds,
                engine => Standing::HoldsWith(engine),
            };
        };
        return Standing::Strained(format!("{why}; for buckets in its slots {words}"));
    };
    let routes = policy.routes.iter();
    let routes = routes.map(|route| needs_store(policy, route.limits.iter().map(|one| one.rule)));
    let rules = policy.domains.rules();
    let rules = rules.map(|rule| needs_store(policy, rule.limits.iter().copied()));
    let needs: Vec<bool> = routes.chain(rules).collect();
    let refused = needs.iter().filter(|needs| **needs).count();
    let described = match refused {
        0 => format!("{why}; {words}"),
        _ => format!(
            "{why}; {words}: {refused} of {} routes and rules for descriptors refuse",
            needs.len()
        ),
    };
    if refused > 0 && refused == needs.len() {
        Standing::Fails(described)
    } else {
        Standing::Strained(described)
    }
}

/// Whether one of these limits refuses its requests while the store does not respond.
fn needs_store(policy: &Policy, mut limits: impl Iterator<Item = usize>) -> bool {
    let refuses = |limit: &Limit| {
        limit.placement == Placement::Shared
            && limit.when_down == WhenDown::Refuse
            && limit.mode == Mode::Enforce
            && limit.enforce_for >= WHOLE
    };
    limits.any(|limit| {
        let rule = &policy.rules[limit];
        // If a tier has numbers of its own and its callers pass, the limit still admits some callers.
        refuses(&rule.live) && rule.tiers.iter().all(|(_, limit)| refuses(limit))
    })
}

/// The state of the store for the status.
pub(super) fn status(
    settings: &Store,
    store: &RemoteStore,
    limits: &[Arc<Limit>],
) -> status::Store {
    let why_not = why_not(store);
    let finding = |finding: Finding| status::Finding {
        weight: finding.weight.label(),
        message: finding.message,
    };
    status::Store {
        now: StoreNow {
            kind: settings.kind.word().to_owned(),
            answers: why_not.is_none(),
            when_down: why_not.is_some().then(|| without_store(limits)),
            why_not: why_not.or_else(|| why_not_all(store)),
            replicas: store.replicas(),
            name: store.name().map(|name| format!("{name:016x}")),
        },
        server: Some(store.engine()).filter(|engine| !engine.is_empty()),
        audit: store.findings().into_iter().map(finding).collect(),
    }
}

/// The reason why some masters of a cluster do not respond, while others do.
fn why_not_all(store: &RemoteStore) -> Option<String> {
    let health = store.health();
    let partly = health.up && health.down > 0;
    partly.then(|| {
        format!(
            "{} of {} masters do not answer: {}",
            health.down, health.servers, health.last_error
        )
    })
}

/// Describes how shared limits behave without their store.
fn without_store(limits: &[Arc<Limit>]) -> String {
    let mut rules: Vec<&str> = limits
        .iter()
        .filter(|limit| limit.placement == Placement::Shared)
        .map(|limit| limit.when_down.word())
        .collect();
    rules.sort_unstable();
    rules.dedup();
    if rules.is_empty() {
        return "no limit lives there".to_owned();
    }
    format!("limits go on by when_down = {}", rules.join(", "))
}

/// Metrics of leases: grants, costs, and the largest number of idle units in them.
#[expect(clippy::cast_precision_loss, reason = "gauges to be read by people")]
pub(super) fn lease_samples(store: &RemoteStore, limits: &[Arc<Limit>], samples: &mut Samples) {
    let leased = || {
        limits
            .iter()
            .filter(|limit| limit.lease && limit.placement == Placement::Shared)
    };
    let Some(counters) = store.lease_counters().filter(|_| leased().next().is_some()) else {
        return;
    };
    let out = counters.out.load(Ordering::Relaxed);
    samples.gauge("store_leases_out", "Leases held now", &[], out as f64);
    for (name, help, count) in counters.named() {
        samples.counter(name, help, &[], count);
    }
    for (limit, terms) in
        leased().filter_map(|limit| Some((limit, Terms::of(&limit.algorithm).ok()?)))
    {
        let help = "Units of each bucket that may lie idle in leases, all gateways together";
        let mut labels = vec![("limit", &*limit.name)];
        labels.extend(limit.tier.as_deref().map(|tier| ("tier", tier)));
        if limit.role == Role::Live {
            samples.gauge("limit_lease_bound_units", help, &labels, terms.most as f64);
        }
    }
}
