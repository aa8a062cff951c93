//! `PUT` and `DELETE /api/v1/keys/{identity}/{value}/override`, and `GET /api/v1/overrides`: other
//! numbers, no limit, or a block for one caller, until a moment.

mod checks;
mod documents;
mod grants;
mod named;
mod recorded;

use http::StatusCode;

use super::api::Problem;
use super::audit::{Audit, Outcome};
use super::callers::Hint;
use super::changes::{By, chosen, left_to_others};
use super::live::{Key, Live};
use super::penalties::still_penalized;
use crate::overrides::{ChangeError, InForce, NewOverride, OVERRIDES_MAX};
use tollgate_config::settings::Word as _;
use tollgate_limit::Limit;
use tollgate_policy::identity::keys;
use tollgate_policy::{Policy, Sought};

pub(super) use checks::{numbers, overridden_by};
pub use documents::{Changed, ChangedLimit, List, Listed, Overridden, emit};
pub(super) use documents::{OverrideRequest, Wanted};
use recorded::Recorded;
pub(super) use recorded::own_line;
pub use recorded::record_end;

use checks::{checked, in_unit, refuses};
use documents::changed_limit;

impl Live {
    pub(super) fn overrides(&self) -> List {
        let snapshot = self.current.load();
        let listed = |one: InForce| Listed {
            limit: one.limit.clone(),
            store: one.placement.word().to_owned(),
            key: Key::of(&one),
            overridden: overridden_by(&one, &snapshot),
        };
        List {
            format: FORMAT,
            most: OVERRIDES_MAX,
            overrides: self.overrides.list().into_iter().map(listed).collect(),
        }
    }

    pub(super) async fn change_override(
        &self,
        identity: &str,
        values: &[&str],
        wanted: &Wanted<'_>,
        by: &By<'_>,
    ) -> Result<Changed, Problem> {
        let snapshot = self.current.load_full();
        let policy = &snapshot.policy;
        let mut changed = Vec::new();
        let found = self.sought(policy, identity, values, Hint::Given);
        // A caller that was removed from the list keeps its override, which can be lifted.
        let removed = match &wanted.set {
            None => self.removed(policy, identity, values),
            Some(_) => None,
        };
        let (sought, mut notes) = match removed {
            Some(removed) => {
                let note = format!(
                    "`{}` is not in the list of callers of `{identity}` any more",
                    values.join(" ")
                );
                (removed, vec![note])
            }
            None => match found {
                // The key of an override that is in force may be forgotten.
                Err(unknown) if wanted.set.is_none() && values.is_empty() => {
                    let in_force = self.overrides_named(identity, wanted);
                    let Some(key) = in_force.first().map(Key::of) else {
                        return Err(unknown);
                    };
                    return self.lift_all(in_force, key, wanted, by).await;
                }
                found => found?,
            },
        };
        let gone = match &wanted.set {
            None => self.of_no_limit(policy, &self.names.text(&sought.key), wanted),
            Some(_) => Vec::new(),
        };
        let effect = wanted.set.as_ref().map(|(_, effect, _)| *effect);
        let rules = chosen(
            &policy.rules,
            wanted.limit,
            |rule| sought.decides(rule),
            |rule| refuses(rule, effect),
        );
        let mut rules = match rules {
            // The limit that is named is one of those that are gone.
            Err(_) if !gone.is_empty() => Vec::new(),
            rules => rules?,
        };
        if wanted.set.is_some() {
            notes.extend(left_to_others(&mut rules, wanted));
        }
        let limits = rules
            .iter()
            .map(|rule| &**rule.variant(sought.numbers(rule)));
        let mut limits: Vec<&Limit> = limits.collect();
        let asked = limits.clone();
        if wanted.set.is_none() {
            let limiter = &snapshot.limiter;
            limits.retain(|limit| match wanted.is_for(limit.placement) {
                true => self.overridden(limit, &sought.key).is_some(),
                // Penalties are in the process, wherever the buckets are.
                false => limiter.penalty(limit, &sought.key).is_some(),
            });
        }
        if !gone.is_empty() {
            let key = self.key(&sought.key);
            let lifted = self.lift_all(gone, key, wanted, by).await?;
            changed.extend(lifted.limits);
        }
        if limits.is_empty() && changed.is_empty() {
            self.store_responds(&asked, &sought.key).await?;
            let none = "no override and no penalty of this caller is in force";
            if wanted.in_store.is_none() {
                return Err(Problem::not_found(none));
            }
            notes.push(format!("{none} on this gateway"));
        }
        checked(&limits, effect)?;
        if let Some((setting, ..)) = &wanted.set {
            rules.iter().try_for_each(|rule| in_unit(rule, setting))?;
        }
        let mut prepared = by.prepared()?;
        for limit in limits {
            let (level, before) = self.stands(limit, &sought.key, 1).await;
            let new = wanted.set.as_ref().map(|(setting, _, end)| NewOverride {
                key: (keys::words(&sought.key, true), self.names.text(&sought.key)),
                setting: setting.clone(),
                end: *end,
                operator: by.operator.name.clone(),
                reason: wanted.reason.to_owned(),
                grant: wanted.grant.clone(),
            });
            let of_new = |new: &NewOverride| {
                let until = self.overrides.end(limit.placement, new.end);
                Overridden::of_new(new, self.now(), until)
            };
            if wanted.dry_run {
                let after = new.as_ref().map(of_new);
                notes.extend(self.notes(limit, wanted, &level, None));
                changed.push(changed_limit(limit, before, after, level));
                continue;
            }
            let made = self
                .set_or_lift(limit, &sought.key, new.as_ref(), wanted, by.audit)
                .await;
            // What another gateway has changed since it was looked is known to the document alone.
            let before = match &made {
                Ok(Some(replaced)) => Some(overridden_by(replaced, &snapshot)),
                Ok(None) => before.filter(Overridden::is_penalty),
                Err(_) => before,
            };
            let (after, unsure) = match made {
                Ok(_) => {
                    // Another gateway may have changed it once more.
                    let shown = self.overridden(limit, &sought.key);
                    let own = |new: &NewOverride| {
                        let shown = shown.filter(|shown| match new.grant {
                            None => shown.setting == new.setting,
                            // The sum is the document's.
                            Some(_) => {
                                let granted = &shown.setting.granted;
                                (granted, &shown.reason) == (&new.setting.granted, &new.reason)
                            }
                        });
                        shown.unwrap_or_else(|| of_new(new))
                    };
                    (new.as_ref().map(own), None)
                }
                // It may be in force, so the audit has what was asked for.
                Err(error @ ChangeError::Unsure(_)) => {
                    (new.as_ref().map(of_new), Some(problem(&limit.name, &error)))
                }
                Err(error) => return Err(problem(&limit.name, &error)),
            };
            let (level_after, in_force) = self.stands(limit, &sought.key, 1).await;
            let sets_numbers = after.as_ref().is_some_and(|after| !after.is_penalty());
            if sets_numbers && let Some(penalty) = in_force.filter(Overridden::is_penalty) {
                notes.push(still_penalized(limit, &penalty));
            }
            notes.extend(self.notes(limit, wanted, &level, Some(&level_after)));
            let one = changed_limit(limit, before, after, level_after);
            let outcome = Outcome::of(unsure.is_some());
            self.record(
                &mut prepared,
                by,
                wanted,
                outcome,
                Recorded {
                    key: self.key(&sought.key),
                    before: level,
                    one: &one,
                },
            )?;
            if let Some(problem) = unsure {
                return Err(problem);
            }
            changed.push(one);
        }
        Ok(Changed {
            format: FORMAT,
            dry_run: wanted.dry_run,
            key: self.key(&sought.key),
            limits: changed,
            notes,
        })
    }

    /// The caller of this name, which is not listed any more, if an override of its buckets is in
    /// force.
    fn removed(&self, policy: &Policy, identity: &str, values: &[&str]) -> Option<Sought> {
        let removed = policy.look_up_removed(identity, values)?;
        let rules = policy.rules.iter();
        let mut limits = rules
            .filter(|rule| removed.decides(rule))
            .map(|rule| &rule.live);
        let has_one = limits.any(|limit| self.overrides.find(limit, &removed.key).is_some());
        has_one.then_some(removed)
    }

    /// Sets an override, or lifts one with the penalty of the key; returns the override that was
    /// replaced.
    async fn set_or_lift(
        &self,
        limit: &Limit,
        key: &[u8],
        new: Option<&NewOverride>,
        wanted: &Wanted<'_>,
        audit: &Audit,
    ) -> Result<Option<InForce>, ChangeError> {
        if new.is_none() {
            self.lift_penalty(limit, key, audit);
            let has_override = self.overrides.find(limit, key).is_some();
            if !has_override || !wanted.is_for(limit.placement) {
                return Ok(None);
            }
        }
        let made = self.overrides.change(limit, key, new);
        self.change_in_time(limit.placement, made).await
    }
}

fn problem(limit: &str, error: &ChangeError) -> Problem {
    let code = match error {
        ChangeError::TooMany(_) | ChangeError::Conflict(_) => StatusCode::CONFLICT,
        ChangeError::Unavailable(_) | ChangeError::Unsure(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(code, format!("limit `{limit}`: {error}"))
}

/// [`Changed::format`] and [`List::format`] of this version.
const FORMAT: u32 = 1;
