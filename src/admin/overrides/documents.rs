//! What operators ask of overrides, and what they are told, as JSON.

use serde::{Deserialize, Serialize};

use super::super::api::Problem;
use super::super::changes::reason;
use super::super::events::{Events, Kind};
use super::super::live::{Key, Now};
use super::super::resets;
use super::checks::{end, numbers};
use crate::moments::moment;
use crate::overrides::{End, Event, Grant, InForce, NewOverride, Setting};
use tollgate_config::settings::Word as _;
use tollgate_limit::{Limit, Placement, Timestamp};
use tollgate_limiter::Effect;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct OverrideRequest {
    pub(super) reason: String,
    /// The limit; `None`: every limit that the identity alone decides.
    pub(super) limit: Option<String>,
    pub(super) rate: Option<String>,
    pub(super) burst: Option<u64>,
    pub(super) in_flight: Option<u64>,
    #[serde(default)]
    pub(super) unlimited: bool,
    #[serde(default)]
    pub(super) block: bool,
    #[serde(rename = "for")]
    pub(super) lasts: Option<String>,
    /// Until when, in RFC 3339 form.
    pub(super) until: Option<String>,
    #[serde(default)]
    pub(super) dry_run: bool,
    /// Whether the change is made in the shared store, too; given if several gateways are asked.
    pub(super) in_store: Option<bool>,
}

impl OverrideRequest {
    /// What is set of which limits, at the moment `now` of this gateway's clock.
    pub(in crate::admin) fn wanted(&self, now: Timestamp) -> Result<(Wanted<'_>, Set), Problem> {
        let setting = Setting {
            rate: self.rate.clone(),
            burst: self.burst,
            in_flight: self.in_flight,
            unlimited: self.unlimited,
            block: self.block,
            granted: None,
        };
        let effect = setting.effect().map_err(Problem::bad_request)?;
        let end = end(self.lasts.as_deref(), self.until.as_deref(), now);
        let set = Set {
            setting,
            effect,
            end: end.map_err(Problem::bad_request)?,
            grant: None,
        };
        let wanted = Wanted {
            reason: reason(&self.reason)?,
            limit: self.limit.as_deref(),
            dry_run: self.dry_run,
            in_store: self.in_store,
        };
        Ok((wanted, set))
    }
}

pub(in crate::admin) struct Wanted<'w> {
    pub(in crate::admin) reason: &'w str,
    pub(in crate::admin) limit: Option<&'w str>,
    pub(in crate::admin) dry_run: bool,
    /// `Some`: several gateways are asked, and this one for the limits of the shared store too, or not.
    pub(in crate::admin) in_store: Option<bool>,
}

/// An override to be set.
pub(in crate::admin) struct Set {
    pub(super) setting: Setting,
    pub(super) effect: Effect,
    pub(super) end: End,
    /// What is added to the number in force, if the override is a grant.
    pub(super) grant: Option<Grant>,
}

impl<'w> Wanted<'w> {
    /// Whether this gateway is asked for the change of a limit there.
    pub(in crate::admin) fn is_for(&self, placement: Placement) -> bool {
        placement == Placement::Local || self.in_store != Some(false)
    }

    /// The change of a request that sets nothing: overrides are lifted, or buckets are filled.
    pub(in crate::admin) fn of(asked: &'w resets::ResetRequest) -> Result<Self, Problem> {
        Ok(Self {
            reason: reason(&asked.reason)?,
            limit: asked.limit.as_deref(),
            dry_run: asked.dry_run,
            in_store: asked.in_store,
        })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Changed {
    pub format: u32,
    pub dry_run: bool,
    #[serde(flatten)]
    pub key: Key,
    pub limits: Vec<ChangedLimit>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangedLimit {
    pub limit: String,
    /// The tier whose numbers apply without an override.
    pub tier: Option<String>,
    pub store: String,
    /// The override that was in force before; `null`: none.
    pub before: Option<Overridden>,
    /// The one that is in force now, or would be.
    pub after: Option<Overridden>,
    /// The limit in words, with the numbers that are in force now, or would be.
    pub words: String,
    pub now: Now,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overridden {
    #[serde(flatten)]
    pub setting: Setting,
    pub since: String,
    pub until: String,
    pub operator: String,
    pub reason: String,
    /// Why it changes nothing at present; `null`: it is obeyed.
    pub why_not: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct List {
    pub format: u32,
    /// The most that a store, or the process, keeps.
    pub most: usize,
    pub overrides: Vec<Listed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    pub limit: String,
    pub store: String,
    #[serde(flatten)]
    pub key: Key,
    #[serde(flatten)]
    pub overridden: Overridden,
}

impl From<&InForce> for Overridden {
    fn from(one: &InForce) -> Self {
        Self {
            setting: one.setting.clone(),
            since: moment(one.since),
            until: moment(one.until),
            operator: one.operator.clone(),
            reason: one.reason.clone(),
            why_not: None,
        }
    }
}

impl Overridden {
    /// One that would be set now, until then.
    pub(super) fn of_new(new: &NewOverride, now: Timestamp, until: Timestamp) -> Self {
        Self {
            setting: new.setting.clone(),
            since: moment(now),
            until: moment(until),
            operator: new.operator.clone(),
            reason: new.reason.clone(),
            why_not: None,
        }
    }

    /// The override in words: "blocked until …, by ann: ticket 4711".
    pub fn words(&self) -> String {
        format!(
            "{} until {}, by {}: {}",
            self.setting.words(),
            self.until,
            self.operator,
            self.reason
        )
    }
}

pub(super) fn changed_limit(
    limit: &Limit,
    before: Option<Overridden>,
    after: Option<Overridden>,
    now: Now,
) -> ChangedLimit {
    ChangedLimit {
        limit: limit.name.to_string(),
        tier: limit.tier.as_deref().map(str::to_owned),
        store: limit.placement.word().to_owned(),
        words: numbers(limit, after.as_ref()).words(),
        before,
        after,
        now,
    }
}

/// The event of a change of the overrides in force, on whichever gateway it was made.
#[derive(Serialize)]
struct OverrideEvent<'e> {
    limit: &'e str,
    #[serde(flatten)]
    key: Key,
    #[serde(flatten)]
    overridden: Overridden,
    /// Whether it was lifted before its end.
    lifted: bool,
}

pub fn emit(events: &Events, event: &Event) {
    let kind = if event.set {
        Kind::OverrideSet
    } else {
        Kind::OverrideEnded
    };
    let emitted = OverrideEvent {
        limit: &event.one.limit,
        key: Key::of(&event.one),
        overridden: Overridden::from(&event.one),
        lifted: event.lifted,
    };
    events.emit(kind, &emitted);
}
