//! `/api/v1/figures`: the counters of all limits, who is refused or close, and whether limits are
//! exact now, in one document. The stream of events has it, too, with rates.

mod observe;

use serde::{Deserialize, Serialize};

use super::limits::{KeyCount, LimitCounts};
pub(super) use observe::{Observed, is_admitted, is_refused};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub format: u32,
    pub at: String,
    pub phase: String,
    pub generation: u64,
    /// Why the last reload was refused; `null`: it was not.
    pub last_error: Option<String>,
    pub connections: usize,
    pub limits: Vec<LimitFigures>,
    pub refused: KeysNow,
    pub near: KeysNow,
    /// The keys that limits in shadow mode, and candidates, would refuse now.
    pub shadow: KeysNow,
    /// Whether the numbers of the file are enforced exactly.
    pub exact: Exact,
}

impl Figures {
    /// The name of the store that has the buckets of this limit; `None`: the process has them, or
    /// the name is not known.
    pub(crate) fn store_of(&self, limit: &str) -> Option<&str> {
        let mut limits = self.limits.iter().map(|one| &one.counts);
        let is_shared = limits.any(|one| one.limit == limit && one.store == "shared");
        let store = self.exact.store.as_ref().filter(|_| is_shared)?;
        store.name.as_deref()
    }
}

/// The counters of one variant of a limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitFigures {
    #[serde(flatten)]
    pub counts: LimitCounts,
    /// Admitted requests that left at most a fifth of the units, of all tiers together; counted at
    /// the variant without a tier.
    pub near: u64,
    /// The rates of the last two seconds; `null`: not known.
    pub per_second: Option<PerSecond>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PerSecond {
    pub allowed: f64,
    pub refused: f64,
    pub shadow_refused: f64,
    pub near: f64,
}

/// The keys of all limits that are refused, close, or would be refused.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeysNow {
    pub found: usize,
    pub unseen: u64,
    pub keys: Vec<KeyNow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyNow {
    pub limit: String,
    #[serde(flatten)]
    pub count: KeyCount,
}

/// What makes limits inexact. All zero, and a store that responds: every number holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exact {
    pub ungoverned: u64,
    pub key_evictions: u64,
    pub inherited_refusals: u64,
    /// The shared store; `null`: there is none.
    pub store: Option<StoreNow>,
    pub upstreams_out: Vec<UpstreamOut>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreNow {
    pub kind: String,
    pub answers: bool,
    /// The behaviour of its limits while it does not respond; `null`: it responds.
    pub when_down: Option<String>,
    /// The reason why it does not respond, or only in part.
    pub why_not: Option<String>,
    /// The number of gateways that share it, as estimated by this one.
    pub replicas: u32,
    /// Its name: gateways with the same one share its buckets. `null`: not known.
    pub name: Option<String>,
}

/// A server that gets no requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpstreamOut {
    pub upstream: String,
    pub server: String,
    pub state: String,
    pub since: Option<String>,
    pub error: Option<String>,
}

impl LimitFigures {
    /// Whether `other` has the counters of the same limit.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let (one, other) = (&self.counts, &other.counts);
        (&one.limit, &one.tier, one.candidate) == (&other.limit, &other.tier, other.candidate)
    }

    /// Adds the counters of the same limit in another gateway.
    pub(crate) fn add(&mut self, other: &Self) {
        let (sum, counts) = (&mut self.counts, &other.counts);
        sum.allowed += counts.allowed;
        sum.refused += counts.refused;
        sum.shadow_refused += counts.shadow_refused;
        if let (Some(sum), Some(more)) = (&mut sum.agreement, &counts.agreement) {
            sum.only_candidate_refuses += more.only_candidate_refuses;
            sum.only_live_refuses += more.only_live_refuses;
        }
        self.per_second = match (self.per_second, other.per_second) {
            (Some(one), Some(two)) => Some(PerSecond {
                allowed: one.allowed + two.allowed,
                refused: one.refused + two.refused,
                shadow_refused: one.shadow_refused + two.shadow_refused,
                near: one.near + two.near,
            }),
            (one, two) => one.or(two),
        };
    }
}

impl PerSecond {
    /// The rates between two looks that are this far apart.
    pub(crate) fn between(before: &LimitFigures, now: &LimitFigures, micros: u64) -> Self {
        let rate = |before: u64, now: u64| {
            let tenths =
                u128::from(now.saturating_sub(before)) * 10_000_000 / u128::from(micros.max(1));
            f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0
        };
        let (one, two) = (&before.counts, &now.counts);
        Self {
            allowed: rate(one.allowed, two.allowed),
            refused: rate(one.refused, two.refused),
            shadow_refused: rate(one.shadow_refused, two.shadow_refused),
            near: rate(before.near, now.near),
        }
    }
}

const FORMAT: u32 = 1;
