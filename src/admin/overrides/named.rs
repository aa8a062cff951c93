//! Lifts overrides of a key of which only the name in logs is known: an override outlasts what the
//! gateway remembers of refused keys.

use super::{Changed, FORMAT, Wanted, changed_limit, problem, told};
use crate::admin::api::Problem;
use crate::admin::audit::Outcome;
use crate::admin::changes::By;
use crate::admin::live::{Key, Live, Now};
use crate::admin::once::made_before;
use crate::overrides::{ChangeError, InForce};

impl Live {
    /// Lifts the overrides whose key has this name.
    ///
    /// # Errors
    /// `unknown` if there is none; otherwise why not everything was changed.
    pub(super) async fn lift_named(
        &self,
        name: &str,
        wanted: &Wanted<'_>,
        by: &By<'_>,
        unknown: Problem,
    ) -> Result<Changed, Problem> {
        let snapshot = self.current.load_full();
        let is_asked = |one: &InForce| {
            one.name == *name && wanted.limit.is_none_or(|limit| *limit == *one.limit)
        };
        let mut in_force = self.overrides.list();
        in_force.retain(is_asked);
        let Some(first) = in_force.first() else {
            return Err(unknown);
        };
        let key = Key::of(first);
        let mut prepared = by.prepared()?;
        let (mut limits, mut notes) = (Vec::new(), Vec::new());
        for one in in_force {
            let rule = snapshot.policy.rules.iter();
            let rule = rule.filter(|rule| rule.live.placement == one.placement);
            let mut rule = rule.filter(|rule| *rule.name == *one.limit);
            let (Some(rule), Some(bucket)) = (rule.next(), one.bucket) else {
                continue;
            };
            let limit = &rule.live;
            let now = || Now::unknown("the gateway does not know the key");
            let mut before = Some(told(&one, &snapshot));
            let mut unsure = None;
            if !wanted.dry_run {
                let lifted = self
                    .overrides
                    .change_bucket(limit, bucket, None, wanted.change);
                match self.change_in_time(limit, lifted).await {
                    Ok(replaced) => before = replaced.map(|one| told(&one, &snapshot)),
                    Err(ChangeError::MadeBefore) => {
                        notes.push(made_before(limit));
                        continue;
                    }
                    Err(error @ ChangeError::Unsure(_)) => unsure = Some(problem(limit, &error)),
                    Err(error) => return Err(problem(limit, &error)),
                }
            }
            let lifted = changed_limit(limit, before, None, now());
            if !wanted.dry_run {
                let outcome = Outcome::of(unsure.is_some());
                self.record(
                    &mut prepared,
                    by,
                    (wanted, outcome),
                    (now(), &lifted),
                    key.clone(),
                )?;
            }
            if let Some(problem) = unsure {
                return Err(problem);
            }
            limits.push(lifted);
        }
        if limits.is_empty() && notes.is_empty() {
            return Err(unknown);
        }
        Ok(Changed {
            format: FORMAT,
            dry_run: wanted.dry_run,
            key,
            limits,
            notes,
        })
    }
}
