//! `POST /api/v1/keys/{identity}/{value}/reset`: fills a caller's buckets.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::api::Problem;
use super::audit::{Entry, Outcome};
use super::callers::Hint;
use super::changes::{By, chosen, unrecorded};
use super::events::Kind;
use super::live::{Key, Live, Now, in_force};
use super::once::made_before;
use super::overrides::Wanted;
use crate::overrides::ChangeError;
use tollgate_config::settings::Word as _;
use tollgate_limit::Limit;
use tollgate_policy::Rule;

/// An operator's request to fill buckets or to lift overrides.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Why, for the audit.
    pub(super) reason: String,
    /// The limit; `None`: every limit that the identity alone decides.
    pub(super) limit: Option<String>,
    /// Only tells what would be changed.
    #[serde(default)]
    pub(super) dry_run: bool,
    /// The name of the change, if several gateways are asked for it.
    pub(super) change: Option<String>,
}

/// What was changed, or would be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reset {
    /// The version of this document.
    pub format: u32,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The caller's part of a bucket's key.
    #[serde(flatten)]
    pub key: Key,
    /// The buckets.
    pub buckets: Vec<ResetBucket>,
    /// What is to be said about the caller.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One bucket that was filled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResetBucket {
    /// The limit.
    pub limit: String,
    /// The tier whose numbers apply.
    pub tier: Option<String>,
    /// `local` or `shared`.
    pub store: String,
    /// How the bucket stood before.
    pub before: Now,
    /// How it stands; as before with `dry_run`.
    pub after: Now,
}

/// The event of one bucket that was filled.
#[derive(Serialize)]
struct ResetEvent<'e> {
    outcome: Outcome,
    operator: &'e str,
    reason: &'e str,
    limit: &'e str,
    tier: Option<&'e str>,
    #[serde(flatten)]
    key: Key,
}

impl Live {
    /// Fills the buckets of a caller.
    ///
    /// # Errors
    /// Why nothing, or not everything, was changed.
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
        let (sought, mut notes) = self.sought(policy, identity, values, Hint::Given)?;
        let limits = chosen(
            &policy.rules,
            wanted.limit,
            |rule| sought.decides(rule),
            fills,
        )?;
        let mut audit = by.prepared()?;
        let mut buckets = Vec::new();
        for rule in limits {
            let limit = rule.variant(sought.numbers(rule));
            let (before, _) = self.stands(limit, &sought.key, 1).await;
            if let (Some(change), false) = (wanted.change, wanted.dry_run) {
                let taken = self.change_in_time(self.overrides.take_on(limit, change));
                if let Err(ChangeError::MadeBefore) = taken.await {
                    notes.push(made_before(limit));
                    continue;
                }
            }
            let (after, failed) = if wanted.dry_run {
                (before.clone(), None)
            } else {
                self.fill(limit, &sought.key, &before).await?
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
                self.events.emit(
                    Kind::Reset,
                    &ResetEvent {
                        outcome,
                        operator: &by.operator.name,
                        reason,
                        limit: &bucket.limit,
                        tier: bucket.tier.as_deref(),
                        key: self.key(&sought.key),
                    },
                );
                let entry = Entry {
                    outcome,
                    reason: reason.to_owned(),
                    limit: bucket.limit.clone(),
                    tier: bucket.tier.clone(),
                    key: self.key(&sought.key),
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

    /// Fills one bucket; returns how it stands then, and the problem to report if that is not confirmed: the bucket may be
    /// filled later, so the audit records it.
    ///
    /// # Errors
    /// Why nothing was changed.
    async fn fill(
        &self,
        limit: &Limit,
        key: &[u8],
        before: &Now,
    ) -> Result<(Now, Option<Problem>), Problem> {
        let unavailable = |why: &str| {
            let detail = format!("limit `{}`: {why}", limit.name);
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        };
        let Some(was) = &before.level else {
            let why = before.why_not.as_deref().unwrap_or("not known");
            return Err(unavailable(why));
        };
        let limiter = self.current.load().limiter.clone();
        let Some(in_force) = in_force(&limiter, limit) else {
            return Err(unavailable("it is no longer in force"));
        };
        limiter.reset(in_force, key);
        // The refund is on its way whether or not the other gateways are told, and their bounds of
        // exhausted buckets end by themselves.
        let _ = self
            .change_in_time(self.overrides.was_reset(in_force))
            .await;
        let full = limit.algorithm.capacity();
        for _ in 0..LOOKS {
            let (after, _) = self.stands(limit, key, 1).await;
            let level = after.level.as_ref();
            if level.is_some_and(|now| now.remaining > was.remaining || now.remaining >= full) {
                return Ok((after, None));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let after = Now::unknown("the reset was sent and is not confirmed");
        let problem = unavailable(
            "the bucket is not confirmed to be full: its store does not respond, or requests wait for its units (max_wait); it may be filled later, and the audit records it",
        );
        Ok((after, Some(problem)))
    }
}

/// Why a limit's buckets cannot be filled.
fn fills(rule: &Rule) -> Option<&'static str> {
    let fills = rule.live.algorithm.depth().is_some() && !rule.is_off();
    (!fills).then_some(
        "has nothing to fill: it is off, or its places are held by requests until they end",
    )
}

/// [`Reset::format`] of this version.
const FORMAT: u32 = 1;

/// How often, and at what interval, a gateway checks whether a bucket is full: corrections of a
/// shared bucket are sent with the next call.
const LOOKS: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(5);
