//! Which overrides a limit can have, until when, and whether they are obeyed under the policy in force.

use std::borrow::Cow;

use super::super::api::Problem;
use super::super::live::Live;
use super::documents::Overridden;
use crate::moments::moment;
use crate::overrides::{End, InForce, Setting};
use http::StatusCode;
use tollgate_gateway::Snapshot;
use tollgate_limit::{Limit, Micros, Mode, Placement, QuotaError, Timestamp};
use tollgate_limiter::Effect;
use tollgate_policy::Rule;

/// Why a limit takes no override like that.
pub(super) fn refuses(rule: &Rule, effect: Effect) -> Option<&'static str> {
    match effect {
        _ if rule.is_off() => Some("is off: it has nothing to override"),
        Effect::Numbers { .. } if rule.live.algorithm.depth().is_none() => {
            Some("has places, not a rate: override `in_flight`")
        }
        Effect::Places(_) if rule.live.algorithm.quota().is_some() => {
            Some("has a rate, not places: override `rate` or `burst`")
        }
        Effect::Block if rule.live.mode != Mode::Enforce => {
            Some("only counts (mode = \"shadow\"): it refuses nothing, and blocks nothing")
        }
        _ => None,
    }
}

pub(super) fn checked(limits: &[&Limit], effect: Effect) -> Result<(), Problem> {
    if !matches!(effect, Effect::Numbers { .. } | Effect::Places(_)) {
        return Ok(());
    }
    if let [first, second, ..] = limits {
        let detail = format!(
            "numbers are for one limit: name it with `limit`; this caller has `{}`, `{}`{}",
            first.name,
            second.name,
            if limits.len() > 2 { " and others" } else { "" }
        );
        return Err(Problem::bad_request(detail));
    }
    for limit in limits {
        if let Some(Err(errors)) = under(limit, effect) {
            let errors: Vec<String> = errors
                .into_iter()
                .map(|error| format!("`{}`: {}", error.field, error.message))
                .collect();
            let detail = format!("limit `{}`: {}", limit.name, errors.join("; "));
            return Err(Problem::bad_request(detail));
        }
    }
    Ok(())
}

/// Checks that a rate is in the unit that the limit counts, as in the file.
pub(super) fn in_unit(rule: &Rule, setting: &Setting) -> Result<(), Problem> {
    let Some(rate) = &setting.rate else {
        return Ok(());
    };
    let money = rule.prices.as_ref().map(|prices| &*prices.prices.currency);
    let checked = tollgate_config::rate_in(rate, money);
    checked
        .map(|_| ())
        .map_err(|error| Problem::bad_request(format!("limit `{}`: {error}", rule.name)))
}

impl Live {
    /// Makes sure that the store of these limits responds: what this gateway knows of overrides is
    /// otherwise old, and a change that was not confirmed may be in force.
    pub(super) async fn store_responds(
        &self,
        limits: &[&Limit],
        key: &[u8],
    ) -> Result<(), Problem> {
        let is_shared = |limit: &&&Limit| limit.placement == Placement::Shared;
        // One store has them all.
        let Some(limit) = limits.iter().find(is_shared) else {
            return Ok(());
        };
        match self.level(limit, key, 1).await.why_not {
            None => Ok(()),
            Some(why) => {
                let detail = format!(
                    "limit `{}`: {why}; whether an override of this caller is in force is not known",
                    limit.name
                );
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
            }
        }
    }
}

/// The end that is asked for at the moment `now` of this gateway's clock.
pub(super) fn end(lasts: Option<&str>, until: Option<&str>, now: Timestamp) -> Result<End, String> {
    let (end, last) = match (lasts, until) {
        (Some(lasts), None) => {
            let span = tollgate_config::duration(lasts)
                .map_err(|why| format!("`for` is a duration like \"1h\": {why}"))?;
            (End::After(span), now.after(span))
        }
        (None, Some(until)) => {
            let wrong = |why: &dyn std::fmt::Display| {
                format!("`until` is a time like \"2030-01-31T18:00:00Z\": {why}")
            };
            let until: jiff::Timestamp = until.parse().map_err(|error| wrong(&error))?;
            let until = u64::try_from(until.as_microsecond())
                .map(Timestamp::from_micros)
                .map_err(|_| wrong(&"it is before 1970"))?;
            (End::At(until), until)
        }
        _ => {
            return Err("an override has an end: exactly one of `for` and `until`".to_owned());
        }
    };
    if last <= now {
        return Err(match until {
            Some(until) => format!(
                "an override ends in the future: `{}` is past, it is {} here",
                until.escape_default(),
                moment(now)
            ),
            None => "an override ends in the future: `for` is above 0s".to_owned(),
        });
    }
    if last.since(now) > LONGEST {
        let days = LONGEST.0 / DAY;
        return Err(format!(
            "an override lasts {days} days at most: change the numbers in the file for longer"
        ));
    }
    Ok(end)
}

const DAY: u64 = 86_400_000_000;

const LONGEST: Micros = Micros(30 * DAY);

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
    let effect = match one.setting.effect() {
        Ok(effect) => effect,
        Err(why) => return Some(format!("this version cannot read it: {why}")),
    };
    if let Some(why) = refuses(rule, effect) {
        return Some(format!("the limit {why}"));
    }
    under(&rule.live, effect)?
        .err()
        .map(|_| "the limit cannot have these numbers any more".to_owned())
}
