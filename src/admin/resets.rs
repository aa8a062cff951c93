//! `POST /api/v1/keys/{identity}/{value}/reset`: fills a caller's buckets.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::api::Problem;
use super::audit::{Entry, Outcome};
use super::changes::{By, chosen, left_to_others, unrecorded};
use super::events::Kind;
use super::live::{Key, Level, Live, Now, in_force};
use super::overrides::Wanted;
use tollgate_config::settings::Word as _;
use tollgate_limit::{Limit, Placement};
use tollgate_policy::Rule;

/// An operator's request to fill buckets or to lift overrides.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetRequest {
    pub(super) reason: String,
    /// The limit; `None`: every limit that the identity alone decides.
    pub(super) limit: Option<String>,
    /// Only tells what would be changed.
    #[serde(default)]
    pub(super) dry_run: bool,
    pub(super) in_store: Option<bool>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reset {
    pub format: u32,
    pub dry_run: bool,
    #[serde(flatten)]
    pub key: Key,
    pub buckets: Vec<ResetBucket>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResetBucket {
    pub limit: String,
    pub tier: Option<String>,
    pub store: String,
    pub before: Now,
    /// How it stands; as before with `dry_run`.
    pub after: Now,
}

impl Live {
    pub(super) async fn reset(
        &self,
        identity: &str,
        values: &[&str],
        wanted: &Wanted<'_>,
        by: &By<'_>,
    ) -> Result<Reset, Problem> {
        let reason = wanted.reason;
        let snapshot = self.current.load_full();
        let policy = &snapshot.policy;
        let (sought, mut notes) = self.sought(policy, identity, values)?;
        let mut limits = chosen(
            &policy.rules,
            wanted.limit,
            |rule| sought.decides(rule),
            fills,
        )?;
        notes.extend(left_to_others(&mut limits, wanted));
        let mut audit = by.prepared()?;
        let mut buckets = Vec::new();
        for rule in limits {
            let limit = rule.variant(sought.numbers(rule));
            let (before, _) = self.stands(limit, &sought.key, 1).await;
            let (after, failed) = if wanted.dry_run {
                (before.clone(), None)
            } else {
                let was = self.can_fill(limit, &before)?;
                self.fill(limit, &sought.key, was).await
            };
            let bucket = ResetBucket {
                limit: limit.name.to_string(),
                tier: limit.tier.as_deref().map(str::to_owned),
                store: limit.placement.word().to_owned(),
                before,
                after,
            };
            if !wanted.dry_run {
                let outcome = Outcome::of(failed.is_some());
                let key = self.key(&sought.key);
                let event = json!({
                    "outcome": outcome, "operator": by.operator.name, "reason": reason,
                    "limit": bucket.limit, "tier": bucket.tier, "key": key.key, "name": key.name,
                });
                self.events.emit(Kind::Reset, &event);
                let entry = Entry {
                    outcome,
                    reason: reason.to_owned(),
                    limit: bucket.limit.clone(),
                    tier: bucket.tier.clone(),
                    key,
                    store: bucket.store.clone(),
                    before: bucket.before.clone(),
                    after: bucket.after.clone(),
                    ..Entry::default()
                };
                let recorded = audit.record(&by.line(self.now(), "reset", entry));
                recorded.map_err(|error| unrecorded("bucket", &error))?;
            }
            buckets.push(bucket);
            if let Some(problem) = failed {
                return Err(problem);
            }
        }
        Ok(Reset {
            format: FORMAT,
            dry_run: wanted.dry_run,
            key: self.key(&sought.key),
            buckets,
            notes,
        })
    }

    /// The level of a bucket that can be filled.
    fn can_fill<'n>(&self, limit: &Limit, before: &'n Now) -> Result<&'n Level, Problem> {
        let Some(was) = &before.level else {
            let why = before.why_not.as_deref().unwrap_or("not known");
            return Err(unavailable(limit, why));
        };
        match in_force(&self.current.load().limiter, limit) {
            Some(_) => Ok(was),
            None => Err(unavailable(limit, "it is no longer in force")),
        }
    }

    /// Fills one bucket; returns how it stands then, and the problem to report if that is not confirmed: the bucket may be
    /// filled later, so the audit records it.
    async fn fill(&self, limit: &Limit, key: &[u8], was: &Level) -> (Now, Option<Problem>) {
        let limiter = self.current.load().limiter.clone();
        // (One that a reload has just removed is not confirmed to be full.)
        if let Some(in_force) = in_force(&limiter, limit) {
            limiter.reset(in_force, key);
        }
        let looking = &self.for_confirmation();
        let look = || async move {
            let (after, _) = looking.stands(limit, key, 1).await;
            match &after.level {
                Some(now) if is_filled(was, now) => Some(after),
                _ => None,
            }
        };
        let notice = self.overrides.was_reset(limit);
        let seen = self.confirmed(limit, notice, look).await;
        if let Some(after) = seen {
            // Without a notice, or after one that came before the refund, requests would be refused
            // by what this gateway knew of the exhausted bucket.
            if let (Placement::Shared, Some(store)) = (limit.placement, limiter.shared().remote()) {
                store.let_go(&[]);
            }
            return (after, None);
        }
        let after = Now::unknown("the reset was sent and is not confirmed");
        let problem = unavailable(
            limit,
            "the bucket is not confirmed to be full: its store does not respond, or requests wait for its units (max_wait); it may be filled later, and the audit records it",
        );
        (after, Some(problem))
    }
}

/// Whether a bucket is full by the numbers in force, or at least has more units than before its
/// reset: requests may take some at once.
fn is_filled(was: &Level, now: &Level) -> bool {
    now.remaining > was.remaining || now.remaining >= now.capacity
}

fn unavailable(limit: &Limit, why: &str) -> Problem {
    let detail = format!("limit `{}`: {why}", limit.name);
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// Why a limit's buckets cannot be filled.
fn fills(rule: &Rule) -> Option<&'static str> {
    let fills = rule.live.algorithm.depth().is_some() && !rule.is_off();
    (!fills).then_some(
        "has nothing to fill: it is off, or its places are held by requests until they end",
    )
}

const FORMAT: u32 = 1;

#[cfg(test)]
mod tests;
