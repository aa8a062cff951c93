//! `/api/v1/keys/{identity}/{value}`: how each bucket of one caller stands.
//! `/api/v1/buckets/{limit}/{key}`: how one bucket stands.

use serde::{Deserialize, Serialize};

use super::api::Problem;
use super::limits::KeyCount;
use super::live::{Key, Live, Now};
use super::overrides::{Overridden, numbers};
use tollgate_config::settings::Word as _;
use tollgate_limit::Limit;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallerBuckets {
    pub format: u32,
    pub identity: String,
    #[serde(flatten)]
    pub key: Key,
    pub caller: Option<String>,
    pub tier: Option<String>,
    pub buckets: Vec<Bucket>,
    /// The limits of which the identity decides only a part of the key: how the caller stands there
    /// depends on the other parts.
    pub partly: Vec<Partly>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bucket {
    pub limit: String,
    pub tier: Option<String>,
    /// The limit in words, with the numbers of the override in force.
    pub words: String,
    pub store: String,
    /// How it stands, for a request of one unit; under the numbers of an override that has some.
    pub now: Now,
    #[serde(rename = "override")]
    pub overridden: Option<Overridden>,
}

/// A limit of which the caller decides only a part of the key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Partly {
    pub limit: String,
    pub per: Vec<String>,
    /// Those of its buckets with this caller that were refused of late.
    pub refused: Vec<KeyCount>,
}

impl Live {
    pub(super) async fn caller(
        &self,
        identity: &str,
        values: &[&str],
    ) -> Result<CallerBuckets, Problem> {
        let snapshot = self.current.load_full();
        let policy = &snapshot.policy;
        let (sought, notes) = self.sought(policy, identity, values)?;
        let (mut buckets, mut partly) = (Vec::new(), Vec::new());
        for rule in policy.rules.iter().filter(|rule| !rule.is_off()) {
            if sought.decides(rule) {
                let limit = rule.variant(sought.numbers(rule));
                buckets.push(self.bucket_of(limit, &sought.key, 1).await);
            } else if sought.is_part_of(rule) {
                let mut refused = Vec::new();
                for busy in self.refused() {
                    let has_part = busy.limit.name == rule.name
                        && busy
                            .key
                            .windows(sought.key.len())
                            .any(|part| part == &sought.key[..]);
                    if has_part {
                        let limit = rule.variant(busy.limit.tier.as_ref());
                        let (now, overridden) = self.stands(limit, &busy.key, 1).await;
                        refused.push(self.key_count(&busy, now, overridden));
                    }
                }
                let per = rule.scope.names(policy).into_iter();
                partly.push(Partly {
                    limit: rule.name.to_string(),
                    per: per.map(str::to_owned).collect(),
                    refused,
                });
            }
        }
        let caller = sought.caller.as_deref();
        Ok(CallerBuckets {
            format: FORMAT,
            identity: identity.to_owned(),
            key: self.key(&sought.key),
            caller: caller.map(|caller| caller.name.to_string()),
            tier: caller.and_then(|caller| caller.tier.as_deref().map(str::to_owned)),
            buckets,
            partly,
            notes,
        })
    }

    /// How the bucket of `limit` with these bytes as its key stands, under the numbers of `tier`;
    /// `None`: there is no such limit.
    pub(super) async fn bucket(
        &self,
        limit: &str,
        key: &[u8],
        tier: Option<&str>,
        cost: u64,
    ) -> Option<Bucket> {
        let snapshot = self.current.load_full();
        let mut rules = snapshot.policy.rules.iter();
        let rule = rules.find(|rule| &*rule.name == limit)?;
        let tier = tier.map(std::sync::Arc::from);
        let limit = rule.variant(tier.as_ref());
        Some(self.bucket_of(limit, key, cost).await)
    }

    async fn bucket_of(&self, limit: &Limit, key: &[u8], cost: u64) -> Bucket {
        let (now, overridden) = self.stands(limit, key, cost).await;
        let numbers = numbers(limit, overridden.as_ref());
        Bucket {
            limit: limit.name.to_string(),
            tier: limit.tier.as_deref().map(str::to_owned),
            words: numbers.words(),
            store: limit.placement.word().to_owned(),
            now,
            overridden,
        }
    }
}

const FORMAT: u32 = 1;
