//! Grants: more units for the window that runs, added to what the document has when it is written.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Entry, Setting};
use tollgate_limit::{Limit, words};
use tollgate_limiter::Effect;

/// Units to add to the number of a limit.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) limit: Arc<Limit>,
    pub(crate) units: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    /// In words.
    pub(crate) units: String,
    pub(crate) reason: String,
}

impl Grant {
    pub(crate) fn granted(&self, reason: &str) -> Granted {
        Granted {
            units: words::units(self.units, self.limit.currency.as_deref()),
            reason: reason.to_owned(),
        }
    }

    /// Whether it can be made instead of the override `before`.
    pub(super) fn allows(&self, before: Option<&Entry>, reason: &str) -> Result<(), String> {
        if before.is_some_and(|before| before.setting.granted.is_none()) {
            return Err("another override is in force".to_owned());
        }
        let granted = self.granted(reason);
        if before.is_some_and(|before| before.grants.contains(&granted)) {
            return Err(format!("{} were granted for this reason", granted.units));
        }
        self.setting(before.map(|before| &before.setting)).map(drop)
    }

    /// The setting that adds the units to the number that is in force under `before`.
    pub(crate) fn setting(&self, before: Option<&Setting>) -> Result<Setting, String> {
        let effect = before.and_then(|before| before.effect().ok());
        let in_force = match effect {
            Some(Effect::Numbers { rate, burst }) => self.limit.with_numbers(rate, burst).ok(),
            _ => None,
        };
        let quota = in_force.as_ref().unwrap_or(&self.limit).algorithm.quota();
        let quota = quota.ok_or("the limit has no rate")?;
        let too_large = "`units` is too large";
        let sum = quota.amount.checked_add(self.units).ok_or(too_large)?;
        let period = match quota.period.0 {
            60_000_000 => "minute".to_owned(),
            3_600_000_000 => "hour".to_owned(),
            86_400_000_000 => "day".to_owned(),
            604_800_000_000 => "week".to_owned(),
            2_592_000_000_000 => "month".to_owned(),
            micros => format!("{micros}us"),
        };
        let currency = self.limit.currency.as_deref();
        Ok(Setting {
            rate: Some(format!("{}/{period}", words::amount(sum, currency))),
            granted: Some(words::units(self.units, currency)),
            ..Setting::default()
        })
    }

    pub(super) fn with_last(&self, before: Option<&Entry>, reason: &str) -> Vec<Granted> {
        let mut grants = before.map_or_else(Vec::new, |before| before.grants.clone());
        if grants.len() >= REMEMBERED {
            grants.remove(0);
        }
        grants.push(self.granted(reason));
        grants
    }
}

/// So many grants of a window are remembered, because a document has up to a thousand overrides.
const REMEMBERED: usize = 8;
