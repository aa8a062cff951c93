//! `PUT` and `DELETE /api/v1/keys/{identity}/{value}/override`, and `GET /api/v1/overrides`: other
//! numbers, no limit, or a block for one caller, until a moment.

mod checks;
mod documents;
mod grants;
mod lift;
mod recorded;

use http::StatusCode;

use super::api::Problem;
use super::audit::Outcome;
use super::changes::{By, chosen, left_to_others};
use super::live::{Key, Live};
use crate::overrides::{ChangeError, InForce, NewOverride, OVERRIDES_MAX};
use tollgate_config::settings::Word as _;
use tollgate_limit::Limit;
use tollgate_policy::identity::keys;

pub(super) use checks::{numbers, overridden_by};
pub use documents::{Changed, ChangedLimit, List, Listed, Overridden, emit};
pub(super) use documents::{OverrideRequest, Set, Wanted};
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

    /// Sets an override of the limits that are chosen.
    pub(super) async fn change_override(
        &self,
        identity: &str,
        values: &[&str],
        wanted: &Wanted<'_>,
        set: &Set,
        by: &By<'_>,
    ) -> Result<Changed, Problem> {
        let snapshot = self.current.load_full();
        let policy = &snapshot.policy;
        let (sought, mut notes) = self.sought(policy, identity, values)?;
        let mut rules = chosen(
            &policy.rules,
            wanted.limit,
            |rule| sought.decides(rule),
            |rule| refuses(rule, set.effect),
        )?;
        notes.extend(left_to_others(&mut rules, wanted));
        let limits = rules.iter();
        let limits = limits.map(|rule| &**rule.variant(sought.numbers(rule)));
        let limits: Vec<&Limit> = limits.collect();
        checked(&limits, set.effect)?;
        for rule in &rules {
            in_unit(rule, &set.setting)?;
        }
        let new = NewOverride {
            key: (keys::words(&sought.key, true), self.names.text(&sought.key)),
            setting: set.setting.clone(),
            end: set.end,
            operator: by.operator.name.clone(),
            reason: wanted.reason.to_owned(),
            grant: set.grant.clone(),
        };
        let mut audit = by.prepared()?;
        let mut changed = Vec::new();
        for limit in limits {
            let (level, before) = self.stands(limit, &sought.key, 1).await;
            let until = self.overrides.end(limit.placement, new.end);
            let asked = Overridden::of_new(&new, self.now(), until);
            if wanted.dry_run {
                changed.push(changed_limit(limit, before, Some(asked), level));
                continue;
            }
            let made = self.overrides.change(limit, &sought.key, Some(&new));
            let (before, after, unsure) = match self.change_in_time(limit.placement, made).await {
                // What another gateway has changed since it was looked is known to the document alone.
                Ok(replaced) => (
                    replaced
                        .map(|one| overridden_by(&one, &snapshot))
                        .or(before.filter(Overridden::is_penalty)),
                    self.shown(limit, &sought.key, &new).unwrap_or(asked),
                    None,
                ),
                // It may be in force, so the audit has what was asked for.
                Err(error @ ChangeError::Unsure(_)) => {
                    (before, asked, Some(problem(&limit.name, &error)))
                }
                Err(error) => return Err(problem(&limit.name, &error)),
            };
            let (level_after, _) = self.stands(limit, &sought.key, 1).await;
            let one = changed_limit(limit, before, Some(after), level_after);
            let outcome = Outcome::of(unsure.is_some());
            let recorded = Recorded {
                key: self.key(&sought.key),
                before: level,
                one: &one,
            };
            self.record(&mut audit, by, wanted, outcome, recorded)?;
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

    /// The override that was set, as it is in force; `None`: another gateway has changed it once more, or
    /// a penalty decides.
    fn shown(&self, limit: &Limit, key: &[u8], new: &NewOverride) -> Option<Overridden> {
        let shown = self.overridden(limit, key);
        shown.filter(|shown| match new.grant {
            None => shown.setting == new.setting,
            // The sum is the document's.
            Some(_) => {
                let granted = &shown.setting.granted;
                (granted, &shown.reason) == (&new.setting.granted, &new.reason)
            }
        })
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
