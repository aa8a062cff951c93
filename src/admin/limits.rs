//! `/api/v1/limits`: every limit with its counts. `/api/v1/limits/{name}/keys`: who is refused now,
//! and who is close.

use serde::{Deserialize, Serialize};

use super::figures::{is_admitted, is_refused};
use super::live::{Key, Live, Now};
use super::overrides::Overridden;
use crate::moments::moment;
use tollgate_config::settings::Word as _;
use tollgate_gateway::near;
use tollgate_gateway::refusals::{Busy, Counted, Counts};
use tollgate_limit::{Limit, Role, Timestamp};
use tollgate_limiter::Snapshot as Counters;
use tollgate_policy::{Policy, Rule};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limits {
    pub format: u32,
    /// The limits in the order of the file, each with its tiers and its candidate.
    pub limits: Vec<LimitCounts>,
}

/// One variant of a limit, and its counts since the gateway started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitCounts {
    pub limit: String,
    pub tier: Option<String>,
    /// Whether this is the limit's candidate, which only counts.
    pub candidate: bool,
    pub words: String,
    /// What each bucket belongs to; empty: one bucket for everyone.
    pub per: Vec<String>,
    pub store: String,
    pub mode: String,
    pub allowed: u64,
    pub refused: u64,
    /// Refusals that were only counted.
    pub shadow_refused: u64,
    /// Decisions without the shared store, which did not respond.
    pub ungoverned: u64,
    /// Buckets forgotten with a debt that was kept; this and the next member are counted once for
    /// all tiers.
    pub key_evictions: u64,
    /// Refusals of keys that stood at an inherited debt.
    pub inherited_refusals: u64,
    /// For a candidate: how it compares with the limit in force.
    pub agreement: Option<Agreement>,
}

/// What a candidate and the limit in force said of the same requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Agreement {
    pub both_allow: u64,
    pub both_refuse: u64,
    /// Only the limit in force refused.
    pub only_live_refuses: u64,
    pub only_candidate_refuses: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Keys {
    pub format: u32,
    pub limit: String,
    pub from: String,
    /// The most events that a key which was not kept can have had.
    pub unseen: u64,
    /// The number of keys that were found, of which `keys` has the first.
    pub found: usize,
    pub keys: Vec<KeyCount>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyCount {
    #[serde(flatten)]
    pub key: Key,
    /// The tier whose numbers applied at the last event.
    pub tier: Option<String>,
    /// Requests lost, or with `near` requests that left at most a fifth of the units; never too small.
    pub count: u64,
    /// By how much `count` may be too large.
    pub count_error: u64,
    /// Since when, without a pause of ten seconds.
    pub since: String,
    pub last: String,
    /// From when on a request like the last one is admitted; `null`: not known, or `near`.
    pub until: Option<String>,
    /// How the bucket stands now, for a request like the last one.
    pub now: Now,
    /// The override or the penalty in force; `null`: none.
    #[serde(rename = "override")]
    pub overridden: Option<Overridden>,
}

impl KeyCount {
    /// Who blocks the key whatever its bucket has; `None`: its bucket alone refuses.
    pub(crate) fn blocked_by(&self) -> Option<&'static str> {
        let overridden = self.overridden.as_ref()?;
        let blocks = overridden.setting.block && overridden.why_not.is_none();
        blocks.then_some(match overridden.is_penalty() {
            true => "a penalty",
            false => "an operator",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) counted: Counted,
    pub(super) sort: Sort,
    pub(super) most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Count,
    Since,
    Last,
}

impl Query {
    /// Reads a query: `refused`, `near` or `shadow`, `sort=count|since|last`, `most=N`.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let mut asked = Self {
            counted: Counted::Refused,
            sort: Sort::Count,
            most: MOST_DEFAULT,
        };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=').unwrap_or((part, "")) {
                ("refused", "") => asked.counted = Counted::Refused,
                ("near", "") => asked.counted = Counted::Near,
                ("shadow", "") => asked.counted = Counted::Shadow,
                ("sort", "count") => asked.sort = Sort::Count,
                ("sort", "since") => asked.sort = Sort::Since,
                ("sort", "last") => asked.sort = Sort::Last,
                ("most", number) => match number.parse() {
                    Ok(most) if (1..=MOST).contains(&most) => asked.most = most,
                    _ => return Err(format!("`most` is a number from 1 to {MOST}")),
                },
                _ => {
                    return Err(format!(
                        "`{}` is not known here: refused, near, shadow, sort=count|since|last, most=N",
                        part.escape_default()
                    ));
                }
            }
        }
        Ok(asked)
    }
}

impl Live {
    pub(super) fn limits(&self) -> Limits {
        let snapshot = self.current.load();
        let policy = &snapshot.policy;
        let counts = snapshot.limiter.snapshot();
        let words = |counts: &Counters| {
            let rule = policy
                .rules
                .iter()
                .find(|rule| rule.name == counts.limit.name);
            limit_counts(counts, rule, policy)
        };
        Limits {
            format: FORMAT,
            limits: counts.iter().map(words).collect(),
        }
    }

    /// The keys of the limit `name`; `None`: there is no such limit.
    pub(super) async fn keys(&self, name: &str, query: Query) -> Option<Keys> {
        let snapshot = self.current.load_full();
        let rule = snapshot
            .policy
            .rules
            .iter()
            .find(|rule| &*rule.name == name)?;
        let now = self.now();
        let counts = self.counts(query.counted, now);
        let mut busy: Vec<Busy> = counts
            .keys
            .into_iter()
            .filter(|busy| *busy.limit.name == *name)
            .filter(|busy| match query.counted {
                Counted::Refused | Counted::Shadow => is_refused(busy, now),
                Counted::Near => true,
            })
            .collect();
        match query.sort {
            Sort::Count => busy.sort_by_key(|one| std::cmp::Reverse(one.count)),
            Sort::Since => busy.sort_by_key(|one| one.since),
            Sort::Last => busy.sort_by_key(|one| std::cmp::Reverse(one.last)),
        }
        let mut keys = Vec::new();
        let (mut found, mut silent) = (0, None);
        for one in busy {
            // Without a limit of what is asked, a store that is slow would be asked for long.
            if keys.len() >= query.most {
                found += 1;
                continue;
            }
            let limit = rule.variant(one.limit.tier.as_ref());
            let level = match &silent {
                Some(silent) => Now::clone(silent),
                None => self.level(limit, &one.key, one.cost).await,
            };
            if level.level.is_none() {
                silent = Some(level.clone());
            }
            let (level, overridden) = self.with_override(limit, &one.key, level);
            match (&level.level, query.counted) {
                (Some(level), Counted::Near) if !is_near(limit, level.remaining) => continue,
                (Some(_), Counted::Refused | Counted::Shadow) if is_admitted(&one, &level, now) => {
                    continue;
                }
                _ => {}
            }
            found += 1;
            keys.push(self.key_count(&one, level, overridden));
        }
        Some(Keys {
            format: FORMAT,
            limit: name.to_owned(),
            from: moment(counts.from),
            unseen: counts.unseen,
            found,
            keys,
        })
    }

    pub(super) fn counts(&self, counted: Counted, now: Timestamp) -> Counts {
        match &self.refusals {
            Some(refusals) => refusals.counts(counted, now),
            None => Counts {
                keys: Vec::new(),
                from: now,
                unseen: 0,
            },
        }
    }

    pub(super) fn refused(&self) -> Vec<Busy> {
        self.counts(Counted::Refused, self.now()).keys
    }

    pub(super) fn key_count(
        &self,
        busy: &Busy,
        now: Now,
        overridden: Option<Overridden>,
    ) -> KeyCount {
        // The wait that the refusal told may have changed: an override has begun or ended.
        let due = now.level.as_ref().and_then(|level| level.admits_at.clone());
        KeyCount {
            key: self.key(&busy.key),
            tier: busy.limit.tier.as_deref().map(str::to_owned),
            count: busy.count,
            count_error: busy.error,
            since: moment(busy.since),
            last: moment(busy.last),
            until: due.or_else(|| busy.until.map(moment)),
            now,
            overridden,
        }
    }
}

pub(super) fn is_near(limit: &Limit, remaining: u64) -> bool {
    near(limit).is_some_and(|few| remaining <= few)
}

fn limit_counts(counts: &Counters, rule: Option<&Rule>, policy: &Policy) -> LimitCounts {
    let limit = &*counts.limit;
    let per = rule
        .map(|rule| rule.scope.names(policy))
        .unwrap_or_default();
    let agreement = Agreement {
        both_allow: counts.agreement.both_allow,
        both_refuse: counts.agreement.both_refuse,
        only_live_refuses: counts.agreement.only_live_refuses,
        only_candidate_refuses: counts.agreement.only_candidate_refuses,
    };
    let candidate = limit.role == Role::Candidate;
    LimitCounts {
        limit: limit.name.to_string(),
        tier: limit.tier.as_deref().map(str::to_owned),
        candidate,
        words: limit.words(),
        per: per.into_iter().map(str::to_owned).collect(),
        store: limit.placement.word().to_owned(),
        mode: limit.mode.word().to_owned(),
        allowed: counts.count.allowed,
        refused: counts.count.refused,
        shadow_refused: counts.count.shadow_refused,
        ungoverned: counts.count.ungoverned,
        key_evictions: counts.table.evictions,
        inherited_refusals: counts.table.inherited_refusals,
        agreement: candidate.then_some(agreement),
    }
}

/// [`Limits::format`] and [`Keys::format`] of this version.
const FORMAT: u32 = 1;

/// The keys of a response, unless the query says otherwise.
const MOST_DEFAULT: usize = 100;

const MOST: usize = 1_000;
