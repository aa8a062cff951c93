//! Lifts overrides that no limit of the policy leads to: of a key of which only the name in logs is
//! known, because an override outlasts what the gateway remembers of refused keys, and of a limit
//! that a reload has removed.

use super::{Changed, ChangedLimit, FORMAT, Recorded, Wanted, overridden_by, problem};
use crate::admin::api::Problem;
use crate::admin::audit::Outcome;
use crate::admin::changes::By;
use crate::admin::live::{Key, Live, Now};
use crate::overrides::{Bucket, ChangeError, InForce};
use tollgate_config::settings::Word as _;
use tollgate_policy::Policy;

impl Live {
    /// The overrides whose key has this name in logs, as far as the change is for them.
    pub(super) fn overrides_named(&self, name: &str, wanted: &Wanted<'_>) -> Vec<InForce> {
        let mut in_force = self.overrides.list();
        in_force.retain(|one| {
            one.name == *name
                && wanted.limit.is_none_or(|limit| *limit == *one.limit)
                && wanted.is_for(one.placement)
        });
        in_force
    }

    pub(super) fn of_no_limit(
        &self,
        policy: &Policy,
        name: &str,
        wanted: &Wanted<'_>,
    ) -> Vec<InForce> {
        let mut in_force = self.overrides_named(name, wanted);
        in_force.retain(|one| {
            let mut limits = policy.rules.iter().map(|rule| &rule.live);
            !limits.any(|limit| *limit.name == *one.limit && limit.placement == one.placement)
        });
        in_force
    }

    pub(super) async fn lift_all(
        &self,
        in_force: Vec<InForce>,
        key: Key,
        wanted: &Wanted<'_>,
        by: &By<'_>,
    ) -> Result<Changed, Problem> {
        let snapshot = self.current.load_full();
        let mut prepared = by.prepared()?;
        let mut limits = Vec::new();
        for one in in_force {
            let Some(hash) = one.bucket else { continue };
            let mut before = Some(overridden_by(&one, &snapshot));
            let mut unsure = None;
            if !wanted.dry_run {
                let of = Bucket {
                    limit: &one.limit,
                    placement: one.placement,
                    hash,
                };
                let lifted = self.overrides.change_bucket(of, None);
                match self.change_in_time(one.placement, lifted).await {
                    Ok(replaced) => before = replaced.map(|one| overridden_by(&one, &snapshot)),
                    Err(error @ ChangeError::Unsure(_)) => {
                        unsure = Some(problem(&one.limit, &error));
                    }
                    Err(error) => return Err(problem(&one.limit, &error)),
                }
            }
            let now = || Now::unknown("the gateway does not know the bucket");
            let mut rules = snapshot.policy.rules.iter();
            let rule = rules.find(|rule| *rule.name == *one.limit);
            let lifted = ChangedLimit {
                limit: one.limit.clone(),
                tier: None,
                store: one.placement.word().to_owned(),
                before,
                after: None,
                words: rule.map_or_else(String::new, |rule| rule.live.words()),
                now: now(),
            };
            if !wanted.dry_run {
                let outcome = Outcome::of(unsure.is_some());
                self.record(
                    &mut prepared,
                    by,
                    wanted,
                    outcome,
                    Recorded {
                        key: key.clone(),
                        before: now(),
                        one: &lifted,
                    },
                )?;
            }
            if let Some(problem) = unsure {
                return Err(problem);
            }
            limits.push(lifted);
        }
        Ok(Changed {
            format: FORMAT,
            dry_run: wanted.dry_run,
            key,
            limits,
            notes: Vec::new(),
        })
    }
}
