//! What the documents about limits, keys and decisions are made from.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use super::events::Events;
use super::overrides::Overridden;
use super::penalties::Penalties;
use super::waits::{TOO_SLOW, Waits};
use crate::moments::moment;
use crate::overrides::{InForce, Overrides};
use tollgate_gateway::Snapshot;
use tollgate_gateway::refusals::Refusals;
use tollgate_limit::{Claim, Limit, Micros, Mode, Role, Standing, Timestamp, Verdict, words};
use tollgate_limiter::{Effect, Limiter, Peeked};
use tollgate_policy::identity::keys;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::same_bucket;
use tollgate_telemetry::access::KeyNames;

#[derive(Clone)]
pub struct Live {
    pub current: Arc<ArcSwap<Snapshot>>,
    pub clock: Clock,
    /// The events of changes, for the clients that read them.
    pub events: Events,
    /// The last refusals; `None`: none are kept.
    pub refusals: Option<Refusals>,
    pub names: KeyNames,
    /// Whether keys are shown as they are (`log.keys = "plain"`).
    pub plain_keys: bool,
    pub overrides: Overrides,
    /// The penalties in force whose beginning was published.
    pub penalties: Penalties,
    /// How long the response that is being made waits for the store.
    pub waits: Waits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The key in words, `address 192.0.2.7`; a key that may be a secret is `a key` unless
    /// `log.keys = "plain"`.
    pub key: String,
    /// Its name in logs: a keyed hash.
    pub name: String,
}

impl Key {
    pub(super) fn of(one: &InForce) -> Self {
        Self {
            key: one.key.clone(),
            name: one.name.clone(),
        }
    }

    /// The key and its name in logs, in words; first what tells it from other keys. Lines about the
    /// bucket of everyone name no key.
    pub fn words(&self) -> String {
        let Self { key, name } = self;
        match (keys::hides(key), *key == keys::words(&[], false)) {
            (true, _) => format!("{name} ({key})"),
            (false, true) => key.clone(),
            (false, false) => format!("{key} ({name} in logs)"),
        }
    }

    /// What tells it from other keys of its limit: gateways may have different names for a key in logs,
    /// but of a key that is not shown only the name is known.
    pub(crate) fn identifying(&self) -> &str {
        match keys::hides(&self.key) {
            true => &self.name,
            false => &self.key,
        }
    }
}

/// How a bucket stands at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Units left; before the request, if it was refused.
    pub remaining: u64,
    /// Units below zero: a debt, or what waiting requests have drawn in advance.
    pub owed: u64,
    pub capacity: u64,
    /// The currency in millionths of which the limit counts; `null`: it counts units.
    pub currency: Option<String>,
    /// Whether the bucket could pay the cost.
    pub admits: bool,
    /// Milliseconds until it can pay the cost, rounded up; `null`: it can, or no wait is known to help.
    pub admits_in_ms: Option<u64>,
    /// The same moment, without other draws.
    pub admits_at: Option<String>,
    /// Milliseconds until it is full or its window ends, rounded up.
    pub full_in_ms: u64,
}

impl Level {
    /// The level of a bucket of `limit`, which has this capacity, by its `standing`, as it was at `at`.
    pub(super) fn new(limit: &Limit, capacity: u64, standing: &Standing, at: Timestamp) -> Self {
        let wait = match standing.verdict {
            Verdict::Allow { wait } if wait.0 > 0 => Some(wait),
            Verdict::Allow { .. } => None,
            Verdict::Deny { retry_after } => retry_after,
        };
        Self {
            remaining: standing.remaining(),
            owed: standing.owed(),
            // An override may have granted more than the limit's own numbers.
            capacity: capacity.max(standing.remaining()),
            currency: limit.currency.as_deref().map(str::to_owned),
            admits: standing.verdict.is_allow(),
            admits_in_ms: wait.map(Micros::ceil_millis),
            admits_at: wait.map(|wait| moment(at.after(wait))),
            full_in_ms: standing.reset.ceil_millis(),
        }
    }

    /// What is left, in words: `7 units`, `12.34 USD of 50 USD`, in debt `-75.84 USD of 50 USD`.
    pub(crate) fn left(&self) -> String {
        let currency = self.currency.as_deref();
        let of = words::units(self.capacity, currency);
        match (self.owed, currency) {
            (0, None) => words::units(self.remaining, None),
            (0, Some(_)) => format!("{} of {of}", words::amount(self.remaining, currency)),
            (owed, _) => format!("-{} of {of}", words::amount(owed, currency)),
        }
    }
}

/// How a bucket stands now, or why that is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Its level; `null`: not known.
    pub level: Option<Level>,
    /// Why it is not known.
    pub why_not: Option<String>,
    /// Whether its limit only counts: it refuses nothing, whatever its level is.
    pub only_counts: bool,
}

impl Now {
    /// The same for a key whose penalty may be in force: the bucket knows nothing of it.
    fn penalized(mut self, overridden: Option<&Overridden>, now: Timestamp) -> Self {
        let penalty = overridden.filter(|overridden| overridden.is_penalty());
        if let (Some(level), Some(penalty)) = (&mut self.level, penalty) {
            let until = penalty.until.parse::<jiff::Timestamp>();
            let until = until.map_or(0, jiff::Timestamp::as_millisecond);
            let until = u64::try_from(until).unwrap_or(0);
            let left = until.saturating_sub(now.as_micros() / 1_000);
            level.admits = false;
            // The bucket may need longer.
            if level.admits_in_ms.is_none_or(|own| own < left) {
                level.admits_in_ms = Some(left);
                level.admits_at = Some(penalty.until.clone());
            }
        }
        self
    }

    /// One whose level is not known.
    pub(crate) fn unknown(why: impl Into<String>) -> Self {
        Self {
            why_not: Some(why.into()),
            ..Self::default()
        }
    }
}

impl Live {
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn key(&self, bytes: &[u8]) -> Key {
        Key {
            key: keys::words(bytes, !self.plain_keys),
            name: self.names.text(bytes),
        }
    }

    /// How the bucket of `limit` for `key` stands, for a request of `cost` units.
    pub(super) async fn level(&self, limit: &Limit, key: &[u8], cost: u64) -> Now {
        let limiter = self.current.load().limiter.clone();
        let Some(limit) = in_force(&limiter, limit) else {
            return Now::unknown("the limit is no longer in force");
        };
        let peeked = self.in_time(limiter.peek(Claim::new(limit, key, cost)));
        match peeked.await {
            Some(Ok(Peeked {
                mut standing,
                capacity,
            })) => {
                let now = self.now();
                // Of these the bucket knows nothing.
                let overridden = limiter.overridden(limit, key);
                match overridden.map(|one| (one.effect, one.until.since(now))) {
                    Some((Effect::Unlimited, _)) => {
                        standing.verdict = Verdict::Allow { wait: Micros::ZERO };
                    }
                    Some((Effect::Block, left)) if limit.mode == Mode::Enforce => {
                        let retry_after = Some(left);
                        standing.verdict = Verdict::Deny { retry_after };
                    }
                    _ => {}
                }
                Now {
                    level: Some(Level::new(limit, capacity, &standing, now)),
                    only_counts: limit.mode != Mode::Enforce || limit.role != Role::Live,
                    ..Now::default()
                }
            }
            Some(Err(error)) => Now::unknown(error.to_string()),
            None => Now::unknown(TOO_SLOW),
        }
    }

    /// The same, and the override or the penalty in force.
    pub(super) async fn stands(
        &self,
        limit: &Limit,
        key: &[u8],
        cost: u64,
    ) -> (Now, Option<Overridden>) {
        let now = self.level(limit, key, cost).await;
        self.with_override(limit, key, now)
    }

    /// The level, as a penalty of the key lets it be, and the override or the penalty in force.
    pub(super) fn with_override(
        &self,
        limit: &Limit,
        key: &[u8],
        now: Now,
    ) -> (Now, Option<Overridden>) {
        let overridden = self.overridden(limit, key);
        (now.penalized(overridden.as_ref(), self.now()), overridden)
    }
}

/// The limit that has the buckets of `limit` now.
pub(super) fn in_force<'l>(limiter: &'l Limiter<Backend>, limit: &Limit) -> Option<&'l Arc<Limit>> {
    let mut limits = limiter.limits().iter();
    limits.find(|one| same_bucket(one, limit))
}
