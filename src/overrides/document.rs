//! The document of overrides, as a store or a file keeps it: which are set, by whom, until when.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::InForce;
use super::grant::Granted;
use tollgate_limit::{Placement, Timestamp};
use tollgate_limiter::{Effect, Override};

/// All overrides of a store, or of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Document {
    format: u32,
    /// Raised by each reset of a bucket, so that gateways forget what they know of exhausted ones.
    #[serde(default)]
    pub(crate) resets: u64,
    /// The overrides, in the order in which they were set.
    pub(crate) overrides: Vec<Entry>,
}

/// One override. Its key is a keyed hash: nothing tells what a caller sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) limit: String,
    /// The bucket: 32 hexadecimal digits.
    pub(crate) bucket: String,
    /// The key in words, without what may be a secret.
    pub(crate) key: String,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) setting: Setting,
    /// When it was set, in microseconds of the store's clock.
    pub(crate) set: u64,
    pub(crate) until: u64,
    pub(crate) operator: String,
    pub(crate) reason: String,
    /// The last grants that the setting is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) grants: Vec<Granted>,
}

/// What an override does: other numbers, or no limit, or a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The rate; `null`: the limit's own.
    pub rate: Option<String>,
    /// The burst; `null`: the limit's own.
    pub burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    #[serde(default)]
    pub unlimited: bool,
    #[serde(default)]
    pub block: bool,
    /// The units by which the last grant has raised the number for the running window, in words; `rate`
    /// has the sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<String>,
}

impl Setting {
    pub(crate) fn effect(&self) -> Result<Effect, String> {
        let numbers = self.rate.is_some() || self.burst.is_some();
        match (numbers, self.in_flight, self.unlimited, self.block) {
            (false, None, true, false) => Ok(Effect::Unlimited),
            (false, None, false, true) => Ok(Effect::Block),
            (false, Some(places), false, false) => Ok(Effect::Places(places)),
            (true, None, false, false) => Ok(Effect::Numbers {
                rate: self
                    .rate
                    .as_deref()
                    .map(tollgate_config::rate)
                    .transpose()?,
                burst: self.burst,
            }),
            (false, None, false, false) => Err(
                "nothing is to be changed: an override has exactly one of: `rate` or `burst` (or both), `in_flight`, `unlimited`, `block`"
                    .to_owned(),
            ),
            _ => Err(
                "an override has exactly one of: `rate` or `burst` (or both), `in_flight`, `unlimited`, `block`"
                    .to_owned(),
            ),
        }
    }

    pub(crate) fn words(&self) -> String {
        match self {
            Self { block: true, .. } => "blocked".to_owned(),
            Self {
                unlimited: true, ..
            } => "unlimited".to_owned(),
            Self {
                in_flight: Some(places),
                ..
            } => format!("in_flight {places}"),
            Self {
                rate,
                burst,
                granted,
                ..
            } => {
                let granted = granted.as_ref().map(|units| format!("{units} more"));
                let rate = rate.as_ref().map(|rate| format!("rate {rate}"));
                let burst = burst.map(|burst| format!("burst {burst}"));
                let parts = granted.into_iter().chain(rate).chain(burst);
                parts.collect::<Vec<String>>().join(", ")
            }
        }
    }
}

impl Entry {
    fn is_of(&self, limit: &str, bucket: &str) -> bool {
        self.bucket == bucket && self.limit == limit
    }

    /// Its bucket; `None`: another version's, which this one cannot read.
    pub(crate) fn bucket(&self) -> Option<u128> {
        u128::from_str_radix(&self.bucket, 16).ok()
    }

    pub(crate) fn until(&self) -> Timestamp {
        Timestamp::from_micros(self.until)
    }

    /// The override with the moments by our clock, which the store's is `ahead` of.
    pub(super) fn by_our_clock(&self, placement: Placement, ahead: i64) -> InForce {
        InForce {
            limit: self.limit.clone(),
            placement,
            bucket: self.bucket(),
            key: self.key.clone(),
            name: self.name.clone(),
            setting: self.setting.clone(),
            since: ours(Timestamp::from_micros(self.set), ahead),
            until: ours(self.until(), ahead),
            operator: self.operator.clone(),
            reason: self.reason.clone(),
            grants: self.grants.clone(),
        }
    }

    /// The override for a limiter; `ahead`: by how much the store's clock is ahead of ours. `None`:
    /// another version's, which this one cannot read.
    pub(super) fn compiled(&self, placement: Placement, ahead: i64) -> Option<Override> {
        Some(Override {
            limit: Arc::from(self.limit.as_str()),
            placement,
            bucket: self.bucket()?,
            effect: self.setting.effect().ok()?,
            since: ours(Timestamp::from_micros(self.set), ahead),
            until: ours(self.until(), ahead),
        })
    }
}

impl Default for Document {
    fn default() -> Self {
        Self {
            format: FORMAT,
            resets: 0,
            overrides: Vec::new(),
        }
    }
}

impl Document {
    /// Reads a document; an empty text has no overrides.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let document: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if document.format == FORMAT {
            Ok(document)
        } else {
            Err(format!("it is of another version: {}", document.format))
        }
    }

    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("text and numbers are JSON")
    }

    /// Removes the overrides that have ended at `now`, by the store's clock.
    pub(crate) fn remove_ended(&mut self, now: Timestamp) {
        self.overrides.retain(|entry| entry.until() > now);
    }

    pub(crate) fn find(&self, limit: &str, bucket: u128) -> Option<&Entry> {
        let bucket = hexadecimal(bucket);
        self.overrides
            .iter()
            .find(|entry| entry.is_of(limit, &bucket))
    }

    pub(crate) fn remove(&mut self, limit: &str, bucket: u128) {
        let bucket = hexadecimal(bucket);
        self.overrides.retain(|entry| !entry.is_of(limit, &bucket));
    }

    /// Whether an override of this bucket has room at `now`, by the store's clock.
    pub(crate) fn has_room(&self, limit: &str, bucket: u128, now: Timestamp) -> Result<(), String> {
        let bucket = hexadecimal(bucket);
        let makes_room = |entry: &Entry| entry.until() <= now || entry.is_of(limit, &bucket);
        if self.overrides.len() < OVERRIDES_MAX || self.overrides.iter().any(makes_room) {
            return Ok(());
        }
        Err(format!(
            "{OVERRIDES_MAX} overrides are in force already; lift some, or change the limit's numbers in the file"
        ))
    }

    /// Sets an override instead of the one that its bucket has.
    pub(crate) fn set(&mut self, new: Entry) {
        self.overrides
            .retain(|entry| (&entry.limit, &entry.bucket) != (&new.limit, &new.bucket));
        self.overrides.push(new);
    }

    pub(crate) fn compiled(
        &self,
        placement: Placement,
        ahead: i64,
    ) -> impl Iterator<Item = Override> {
        self.overrides
            .iter()
            .filter_map(move |entry| entry.compiled(placement, ahead))
    }
}

/// A moment of the store's clock by ours, which the store's is `ahead` of.
pub(crate) fn ours(at: Timestamp, ahead: i64) -> Timestamp {
    Timestamp::from_micros(at.as_micros().saturating_add_signed(ahead.saturating_neg()))
}

/// A moment of our clock by the store's.
pub(crate) fn theirs(at: Timestamp, ahead: i64) -> Timestamp {
    Timestamp::from_micros(at.as_micros().saturating_add_signed(ahead))
}

/// The name of a bucket as documents have it.
pub(crate) fn hexadecimal(bucket: u128) -> String {
    format!("{bucket:032x}")
}

const FORMAT: u32 = 1;

/// The most overrides of a store, and of the process.
pub(crate) const OVERRIDES_MAX: usize = 1_000;
