//! The numbers of an override, and whether they are obeyed under the policy in force.

use std::borrow::Cow;

use super::checks::refuses;
use super::documents::Overridden;
use crate::overrides::InForce;
use tollgate_gateway::Snapshot;
use tollgate_limit::{Limit, QuotaError};
use tollgate_limiter::Effect;
use tollgate_policy::Rule;

/// The limit with the numbers of an override in force.
pub(in crate::admin) fn numbers<'l>(
    limit: &'l Limit,
    overridden: Option<&Overridden>,
) -> Cow<'l, Limit> {
    let obeyed = overridden.filter(|one| one.why_not.is_none());
    let effect = obeyed.and_then(|one| one.setting.effect().ok());
    let numbers = effect.and_then(|effect| under(limit, effect)?.ok());
    numbers.map_or(Cow::Borrowed(limit), Cow::Owned)
}

/// The limit with the numbers of an override; `None`: it has none.
pub(super) fn under(limit: &Limit, effect: Effect) -> Option<Result<Limit, Vec<QuotaError>>> {
    match effect {
        Effect::Numbers { rate, burst } => Some(limit.with_numbers(rate, burst)),
        Effect::Places(places) => Some(limit.with_places(places)),
        Effect::Unlimited | Effect::Block => None,
    }
}

/// The override `one` as it stands under `snapshot`.
pub(in crate::admin) fn overridden_by(one: &InForce, snapshot: &Snapshot) -> Overridden {
    Overridden {
        why_not: why_not(one, &snapshot.policy.rules),
        ..Overridden::from(one)
    }
}

/// Why an override changes nothing under the policy in force.
fn why_not(one: &InForce, rules: &[Rule]) -> Option<String> {
    let Some(rule) = rules.iter().find(|rule| *rule.name == *one.limit) else {
        return Some("no limit has this name any more".to_owned());
    };
    if rule.live.placement != one.placement {
        return Some("the limit has its buckets elsewhere now".to_owned());
    }
    let effect = one.setting.effect();
    if let Err(why) = effect {
        return Some(format!("this version cannot read it: {why}"));
    }
    if let Some(why) = refuses(rule, effect.ok()) {
        return Some(format!("the limit {why}"));
    }
    let taken = under(&rule.live, one.setting.effect().ok()?)?;
    taken
        .err()
        .map(|_| "the limit cannot have these numbers any more".to_owned())
}
