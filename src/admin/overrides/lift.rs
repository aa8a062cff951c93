//! Lifts the overrides of a caller, and its penalties.
//!
//! An override is found by the name that its key has in logs: it outlasts its limit, the list of callers,
//! and what the gateway remembers of a refused key.

use super::checks::overridden_by;
use super::documents::{Changed, ChangedLimit, Overridden, Wanted, changed_limit};
use super::recorded::Recorded;
use super::{FORMAT, problem};
use crate::admin::api::Problem;
use crate::admin::audit::{Audit, Outcome};
use crate::admin::changes::{By, chosen};
use crate::admin::live::{Key, Live, Now};
use crate::overrides::{Bucket, ChangeError, InForce};
use tollgate_config::settings::Word as _;
use tollgate_limit::{Limit, Placement};
use tollgate_policy::Rule;

/// What is lifted of one bucket.
struct Target<'t> {
    /// Its limit and its key; `None`: no limit of the policy has it, or only the name of its key is known.
    bucket: Option<Known<'t>>,
    /// The override; `None`: there is a penalty alone.
    one: Option<InForce>,
}

#[derive(Clone, Copy)]
struct Known<'t> {
    limit: &'t Limit,
    key: &'t [u8],
}

impl Target<'_> {
    fn limit(&self) -> &str {
        let named = self.bucket.map(|bucket| &*bucket.limit.name);
        named
            .or(self.one.as_ref().map(|one| &*one.limit))
            .unwrap_or_default()
    }

    fn placement(&self) -> Option<Placement> {
        let known = self.bucket.map(|bucket| bucket.limit.placement);
        known.or(self.one.as_ref().map(|one| one.placement))
    }
}

impl Live {
    pub(in crate::admin) async fn lift(
        &self,
        identity: &str,
        values: &[&str],
        wanted: &Wanted<'_>,
        by: &By<'_>,
    ) -> Result<Changed, Problem> {
        let snapshot = self.current.load_full();
        let policy = &snapshot.policy;
        let (sought, mut notes) = match self.sought(policy, identity, values) {
            Ok((sought, notes)) => (Some(sought), notes),
            Err(_) if values.is_empty() && !self.overrides_of(identity, wanted).is_empty() => {
                (None, Vec::new())
            }
            Err(unknown) => return Err(unknown),
        };
        let name = sought.as_ref().map(|sought| self.names.text(&sought.key));
        let mut in_force = self.overrides_of(name.as_deref().unwrap_or(identity), wanted);
        let key = match (&sought, in_force.first()) {
            (Some(sought), _) => self.key(&sought.key),
            (None, one) => one.map(Key::of).unwrap_or_default(),
        };
        let mut targets = Vec::new();
        if let Some(sought) = &sought {
            let is_meant = |name: &str| wanted.limit.is_none_or(|limit| limit == name);
            let mut limits: Vec<&Limit> = Vec::new();
            for rule in policy.rules.iter().filter(|rule| is_meant(&rule.name)) {
                if !sought.decides(rule) {
                    in_force.retain(|one| *one.limit != *rule.name);
                    continue;
                }
                let limit = rule.variant(sought.numbers(rule));
                let is_of_it =
                    |one: &InForce| *one.limit == *limit.name && one.placement == limit.placement;
                let place = in_force.iter().position(is_of_it);
                let one = place.map(|place| in_force.remove(place));
                let key = &sought.key;
                if one.is_some() || snapshot.limiter.penalty(limit, key).is_some() {
                    let bucket = Some(Known { limit, key });
                    targets.push(Target { bucket, one });
                }
                limits.push(limit);
            }
            if targets.is_empty() && in_force.is_empty() {
                if wanted.limit.is_some() {
                    let decides = |rule: &Rule| sought.decides(rule);
                    chosen(&policy.rules, wanted.limit, decides, |_| None)?;
                }
                self.store_responds(&limits, &sought.key).await?;
                let none = "no override and no penalty of this caller is in force";
                if wanted.in_store.is_none() {
                    return Err(Problem::not_found(none));
                }
                notes.push(format!("{none} on this gateway"));
            }
        }
        targets.extend(in_force.into_iter().map(|one| Target {
            bucket: None,
            one: Some(one),
        }));
        // The local ones wait for no store, and a store that does not respond ends the change.
        targets.sort_by_key(|target| target.placement() == Some(Placement::Shared));
        let mut audit = by.prepared()?;
        let mut limits = Vec::new();
        for target in targets {
            let (level, mut before) = self.target_stands(&target).await;
            let mut unsure = None;
            if !wanted.dry_run {
                match self.end(&target, by.audit).await {
                    // What another gateway has changed since it was looked is known to the document alone.
                    Ok(Some(replaced)) => before = Some(overridden_by(&replaced, &snapshot)),
                    Ok(None) => before = before.filter(Overridden::is_penalty),
                    Err(error @ ChangeError::Unsure(_)) => {
                        unsure = Some(problem(target.limit(), &error));
                    }
                    Err(error) => return Err(problem(target.limit(), &error)),
                }
            }
            let (after, _) = self.target_stands(&target).await;
            let lifted = match (target.bucket, &target.one) {
                (Some(bucket), _) => changed_limit(bucket.limit, before, None, after),
                (None, one) => ChangedLimit {
                    limit: target.limit().to_owned(),
                    tier: None,
                    store: one
                        .as_ref()
                        .map_or("", |one| one.placement.word())
                        .to_owned(),
                    before,
                    after: None,
                    words: String::new(),
                    now: after,
                },
            };
            if !wanted.dry_run {
                let recorded = Recorded {
                    key: key.clone(),
                    before: level,
                    one: &lifted,
                };
                let outcome = Outcome::of(unsure.is_some());
                self.record(&mut audit, by, wanted, outcome, recorded)?;
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
            notes,
        })
    }

    /// The overrides whose key has this name in logs, as far as the change is for them.
    fn overrides_of(&self, name: &str, wanted: &Wanted<'_>) -> Vec<InForce> {
        let mut in_force = self.overrides.list();
        in_force.retain(|one| {
            one.name == *name
                && wanted.limit.is_none_or(|limit| *limit == *one.limit)
                && wanted.is_for(one.placement)
        });
        in_force
    }

    async fn target_stands(&self, target: &Target<'_>) -> (Now, Option<Overridden>) {
        if let Some(Known { limit, key }) = target.bucket {
            return self.stands(limit, key, 1).await;
        }
        let one = target.one.as_ref();
        let overridden = one.map(|one| overridden_by(one, &self.current.load()));
        (
            Now::unknown("the gateway does not know the bucket"),
            overridden,
        )
    }

    /// Ends the penalty and the override of a bucket; returns the override.
    async fn end(
        &self,
        target: &Target<'_>,
        audit: &Audit,
    ) -> Result<Option<InForce>, ChangeError> {
        if let Some(Known { limit, key }) = target.bucket {
            self.lift_penalty(limit, key, audit);
        }
        let one = target.one.as_ref();
        let Some((one, hash)) = one.and_then(|one| Some((one, one.bucket?))) else {
            return Ok(None);
        };
        let bucket = Bucket {
            limit: &one.limit,
            placement: one.placement,
            hash,
        };
        let lifted = self.overrides.change_bucket(bucket, None);
        self.change_in_time(one.placement, lifted).await
    }
}
