//! `PUT` and `DELETE /api/v1/keys/{identity}/{value}/override`, and `GET /api/v1/overrides`: other
//! numbers, no limit, or a block for one caller, until a moment.

mod named;

use std::borrow::Cow;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::api::Problem;
use super::audit::{Audit, Entry, Prepared};
use super::callers::Hint;
use super::events::{Events, Kind};
use super::limits::store;
use super::live::{Key, Live, Now, moment};
use super::notes::Renumbering;
use super::once::{change_name, made_before};
use super::resets::{By, chosen, prepared, reason, unrecorded};
use crate::overrides::{ChangeError, Event, InForce, NewOverride, OVERRIDES_MAX, Setting};
use tollgate_gateway::gateway::Snapshot;
use tollgate_limit::{Limit, Micros, Mode, Placement, QuotaError, Timestamp};
use tollgate_limiter::{Effect, Limiter};
use tollgate_policy::{Policy, Rule, Sought, keys};

/// What an operator asks for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Why, for the audit.
    reason: String,
    /// The limit; `None`: every limit that the identity alone decides.
    limit: Option<String>,
    rate: Option<String>,
    burst: Option<u64>,
    in_flight: Option<u64>,
    #[serde(default)]
    unlimited: bool,
    #[serde(default)]
    block: bool,
    /// How long, as a duration.
    #[serde(rename = "for")]
    lasts: Option<String>,
    /// Until when, in RFC 3339 form.
    until: Option<String>,
    /// Only tells what would be changed.
    #[serde(default)]
    dry_run: bool,
    /// The name of the change, if several gateways are asked for it.
    change: Option<String>,
}

/// What an operator lifts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lifted {
    reason: String,
    limit: Option<String>,
    #[serde(default)]
    dry_run: bool,
    change: Option<String>,
}

/// What was changed, or would be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Changed {
    /// The version of this document.
    pub format: u32,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The caller's part of a bucket's key.
    #[serde(flatten)]
    pub key: Key,
    /// The limits.
    pub limits: Vec<ChangedLimit>,
    /// What the operator may not expect.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The change for one limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangedLimit {
    /// The limit.
    pub limit: String,
    /// The tier whose numbers apply without an override.
    pub tier: Option<String>,
    /// `local` or `shared`.
    pub store: String,
    /// The override that was in force before; `null`: none.
    pub before: Option<Overridden>,
    /// The one that is in force now, or would be.
    pub after: Option<Overridden>,
    /// The limit in words, with the numbers that are in force now, or would be.
    #[serde(default)]
    pub words: String,
    /// How the bucket stands.
    pub now: Now,
}

/// An override in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overridden {
    /// What it does.
    #[serde(flatten)]
    pub setting: Setting,
    /// When it was set.
    pub since: String,
    /// Its end.
    pub until: String,
    /// The operator who set it.
    pub operator: String,
    /// Why.
    pub reason: String,
    /// Why it changes nothing at present; `null`: it is obeyed.
    #[serde(default)]
    pub why_not: Option<String>,
}

/// Every override in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct List {
    /// The version of this document.
    pub format: u32,
    /// The most that a store, or the process, keeps.
    pub most: usize,
    /// The overrides, in the order in which they were set.
    pub overrides: Vec<Listed>,
}

/// One override.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// The limit.
    pub limit: String,
    /// `local` or `shared`.
    pub store: String,
    /// The key.
    #[serde(flatten)]
    pub key: Key,
    /// The override.
    #[serde(flatten)]
    pub overridden: Overridden,
}

impl Live {
    /// The overrides in force.
    pub(super) fn overrides(&self) -> List {
        let snapshot = self.current.load();
        let listed = |one: InForce| Listed {
            limit: one.entry.limit.clone(),
            store: match one.placement {
                tollgate_limit::Placement::Local => "local".to_owned(),
                tollgate_limit::Placement::Shared => "shared".to_owned(),
            },
            key: Key {
                key: one.entry.key.clone(),
                name: one.entry.name.clone(),
            },
            overridden: told(&one, &snapshot),
        };
        List {
            format: FORMAT,
            most: OVERRIDES_MAX,
            overrides: self.overrides.list().into_iter().map(listed).collect(),
        }
    }

    /// Sets an override.
    ///
    /// # Errors
    /// Why nothing, or not everything, was changed.
    pub(super) async fn put_override(
        &self,
        identity: &str,
        values: &[&str],
        asked: &Asked,
        by: &By<'_>,
        audit: &Audit,
    ) -> Result<Changed, Problem> {
        let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
        let setting = Setting {
            rate: asked.rate.clone(),
            burst: asked.burst,
            in_flight: asked.in_flight,
            unlimited: asked.unlimited,
            block: asked.block,
        };
        let effect = setting.effect().map_err(bad)?;
        let until = self
            .end(asked.lasts.as_deref(), asked.until.as_deref())
            .map_err(bad)?;
        let wanted = Wanted {
            reason: reason(&asked.reason)?,
            limit: asked.limit.as_deref(),
            dry_run: asked.dry_run,
            change: change_name(asked.change.as_deref())?,
            set: Some((setting, effect, until)),
        };
        self.change_override(identity, values, &wanted, by, audit)
            .await
    }

    /// Lifts overrides.
    ///
    /// # Errors
    /// Why nothing, or not everything, was changed.
    pub(super) async fn lift_override(
        &self,
        identity: &str,
        values: &[&str],
        lifted: &Lifted,
        by: &By<'_>,
        audit: &Audit,
    ) -> Result<Changed, Problem> {
        let wanted = Wanted {
            reason: reason(&lifted.reason)?,
            limit: lifted.limit.as_deref(),
            dry_run: lifted.dry_run,
            change: change_name(lifted.change.as_deref())?,
            set: None,
        };
        self.change_override(identity, values, &wanted, by, audit)
            .await
    }

    async fn change_override(
        &self,
        identity: &str,
        values: &[&str],
        wanted: &Wanted<'_>,
        by: &By<'_>,
        audit: &Audit,
    ) -> Result<Changed, Problem> {
        let snapshot = self.current.load_full();
        let policy = &snapshot.policy;
        let found = self.sought(policy, identity, values, Hint::Given);
        // A caller that was removed from the list keeps its override, which can be lifted.
        let removed = match &wanted.set {
            None => self.removed(policy, identity, values),
            Some(_) => None,
        };
        let (sought, mut notes) = match removed {
            Some(removed) => {
                let note = format!(
                    "`{}` is not in the list of callers of `{identity}` any more",
                    values.join(" ")
                );
                (removed, vec![note])
            }
            None => match found {
                // The key of an override that is in force may be forgotten.
                Err(unknown) if wanted.set.is_none() && values.is_empty() => {
                    return self.lift_named(identity, wanted, by, audit, unknown).await;
                }
                found => found?,
            },
        };
        let effect = wanted.set.as_ref().map(|(_, effect, _)| *effect);
        let rules = chosen(
            &policy.rules,
            wanted.limit,
            |rule| sought.decides(rule),
            |rule| refuses(rule, effect),
        )?;
        let limits = rules
            .iter()
            .map(|rule| &**rule.variant(sought.numbers(rule)));
        let mut limits: Vec<&Limit> = limits.collect();
        if wanted.set.is_none() {
            let mut in_force = Vec::new();
            for &limit in &limits {
                // One that is not known may be in force.
                let (found, unknown) = self.overridden(limit, &sought.key).await;
                if found.is_some() || unknown.is_some() {
                    in_force.push(limit);
                }
            }
            let asked = std::mem::replace(&mut limits, in_force);
            let made = match limits.is_empty() {
                true => self.made_elsewhere(&asked, wanted.change).await,
                false => Vec::new(),
            };
            if limits.is_empty() && made.is_empty() {
                let detail = "no override and no penalty of this caller is in force";
                return Err(Problem::new(StatusCode::NOT_FOUND, detail));
            }
            notes.extend(made);
        }
        checked(&limits, effect)?;
        if let Some((setting, ..)) = &wanted.set {
            rules.iter().try_for_each(|rule| in_unit(rule, setting))?;
        }
        let mut prepared = prepared(audit)?;
        let mut changed = Vec::new();
        for limit in limits {
            let (level, before) = self.stands(limit, &sought.key, 1).await;
            let new = wanted.set.as_ref().map(|(setting, _, until)| NewOverride {
                key: (keys::words(&sought.key, true), self.names.text(&sought.key)),
                setting: setting.clone(),
                until: *until,
                operator: by.operator.name.clone(),
                reason: wanted.reason.to_owned(),
            });
            if wanted.dry_run {
                let after = new.as_ref().map(|new| Overridden::of_new(new, self.now()));
                notes.extend(self.notes(limit, wanted, &level, None));
                changed.push(changed_limit(limit, before, after, level));
                continue;
            }
            let made = self
                .set_or_lift(limit, &sought.key, new.as_ref(), wanted.change, audit)
                .await;
            // What another gateway has changed since it was looked is known to the document alone.
            let before = match &made {
                Ok(Some(replaced)) => Some(told(replaced, &snapshot)),
                Ok(None) => before.filter(Overridden::is_penalty),
                Err(_) => before,
            };
            let (after, unsure) = match made {
                Ok(_) => {
                    // Another gateway may have changed it once more.
                    let shown = self.overridden(limit, &sought.key).await.0;
                    let own = |new: &NewOverride| {
                        let shown = shown.filter(|shown| shown.setting == new.setting);
                        shown.unwrap_or_else(|| Overridden::of_new(new, self.now()))
                    };
                    (new.as_ref().map(own), None)
                }
                // It may be in force, so the audit has what was asked for.
                Err(error @ ChangeError::Unsure(_)) => {
                    let asked = new.as_ref().map(|new| Overridden::of_new(new, self.now()));
                    (asked, Some(problem(limit, &error)))
                }
                Err(ChangeError::MadeBefore) => {
                    notes.push(made_before(limit));
                    let (level, after) = self.stands(limit, &sought.key, 1).await;
                    changed.push(changed_limit(limit, before, after, level));
                    continue;
                }
                Err(error) => return Err(problem(limit, &error)),
            };
            let level_after = self.level(limit, &sought.key, 1).await;
            notes.extend(self.notes(limit, wanted, &level, Some(&level_after)));
            let one = changed_limit(limit, before, after, level_after);
            self.record(
                &mut prepared,
                by,
                wanted,
                (level, &one),
                self.key(&sought.key),
            )?;
            if let Some(problem) = unsure {
                return Err(problem);
            }
            changed.push(one);
        }
        Ok(Changed {
            format: FORMAT,
            dry_run: wanted.dry_run,
            key: self.key(&sought.key),
            limits: changed,
            notes,
        })
    }

    /// Writes the line of the audit about a change of a bucket that stood at `before`.
    fn record(
        &self,
        audit: &mut Prepared<'_>,
        by: &By<'_>,
        wanted: &Wanted<'_>,
        (before, one): (Now, &ChangedLimit),
        key: Key,
    ) -> Result<(), Problem> {
        let setting = |overridden: &Option<Overridden>| {
            let overridden = overridden.as_ref();
            overridden.map(|overridden| overridden.setting.clone())
        };
        let action = match wanted.set {
            Some(_) => "override",
            None => "lift",
        };
        let recorded = audit.record(&Entry {
            at: moment(self.now()),
            operator: by.operator.name.clone(),
            from: by.peer.from.clone(),
            action: action.to_owned(),
            reason: wanted.reason.to_owned(),
            limit: one.limit.clone(),
            tier: one.tier.clone(),
            key,
            store: one.store.clone(),
            before,
            after: one.now.clone(),
            override_before: setting(&one.before),
            override_after: setting(&one.after),
            until: one.after.as_ref().map(|after| after.until.clone()),
        });
        recorded.map_err(|error| unrecorded("override", &error))
    }

    /// The caller of this name, which is not listed any more, if an override of its buckets is in
    /// force.
    fn removed(&self, policy: &Policy, identity: &str, values: &[&str]) -> Option<Sought> {
        let removed = policy.look_up_removed(identity, values)?;
        let rules = policy.rules.iter();
        let mut limits = rules
            .filter(|rule| removed.decides(rule))
            .map(|rule| &rule.live);
        let has_one = limits.any(|limit| self.overrides.find(limit, &removed.key).is_some());
        has_one.then_some(removed)
    }

    /// What the operator may not expect of the change of `limit` for a caller whose bucket stood at
    /// `was`.
    fn notes(
        &self,
        limit: &Limit,
        wanted: &Wanted<'_>,
        was: &Now,
        is: Option<&Now>,
    ) -> Vec<String> {
        let Some((setting, effect @ Effect::Numbers { .. }, _)) = &wanted.set else {
            return Vec::new();
        };
        let Some(Ok(under)) = under(limit, *effect) else {
            return Vec::new();
        };
        let change = Renumbering {
            limit,
            under: &under,
            only_rate: setting.rate.is_some() && setting.burst.is_none(),
            was,
            is,
            at: self.now(),
        };
        let notes = change.notes().into_iter();
        notes
            .map(|note| format!("limit `{}`: {note}", limit.name))
            .collect()
    }

    /// Sets an override, or lifts one with the penalty of the key; returns the override that was
    /// replaced.
    async fn set_or_lift(
        &self,
        limit: &Limit,
        key: &[u8],
        new: Option<&NewOverride>,
        change: Option<&str>,
        audit: &Audit,
    ) -> Result<Option<InForce>, ChangeError> {
        let has_override = self.overrides.find(limit, key).is_some();
        let mut replaced = None;
        if new.is_some() || has_override {
            replaced = self.overrides.change(limit, key, new, change).await?;
        } else if let Some(change) = change
            && let Err(error @ ChangeError::MadeBefore) =
                self.overrides.take_on(limit, change).await
        {
            return Err(error);
        }
        if new.is_none() && limit.penalty.is_some() {
            let lifted = self.lift_penalty(limit, key, audit).await;
            lifted.map_err(|why| {
                ChangeError::Unsure(format!("{why}; the penalty may be lifted later"))
            })?;
        }
        Ok(replaced)
    }

    /// The end that is asked for, by this gateway's clock.
    fn end(&self, lasts: Option<&str>, until: Option<&str>) -> Result<Timestamp, String> {
        let now = self.now();
        let end = match (lasts, until) {
            (Some(lasts), None) => {
                let span = tollgate_config::duration(lasts)
                    .map_err(|why| format!("`for` is a duration like \"1h\": {why}"))?;
                now.after(span)
            }
            (None, Some(until)) => {
                let wrong = |why: &dyn std::fmt::Display| {
                    format!("`until` is a time like \"2030-01-31T18:00:00Z\": {why}")
                };
                let until: jiff::Timestamp = until.parse().map_err(|error| wrong(&error))?;
                u64::try_from(until.as_microsecond())
                    .map(Timestamp::from_micros)
                    .map_err(|_| wrong(&"it is before 1970"))?
            }
            _ => {
                return Err("an override has an end: exactly one of `for` and `until`".to_owned());
            }
        };
        if end <= now {
            return Err("an override ends in the future".to_owned());
        }
        if end.since(now) > LONGEST {
            let days = LONGEST.0 / DAY;
            return Err(format!(
                "an override lasts {days} days at most: change the numbers in the file for longer"
            ));
        }
        Ok(end)
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

/// Emits the event of a change.
pub fn emit(events: &Events, event: &Event) {
    let kind = if event.set {
        Kind::OverrideSet
    } else {
        Kind::OverrideEnded
    };
    let told = OverrideEvent {
        limit: &event.limit,
        key: Key {
            key: event.key.clone(),
            name: event.name.clone(),
        },
        overridden: Overridden {
            setting: event.setting.clone(),
            since: moment(event.since),
            until: moment(event.until),
            operator: event.operator.clone(),
            reason: event.reason.clone(),
            why_not: None,
        },
        lifted: event.lifted,
    };
    events.emit(kind, &told);
}

/// A change that is wanted.
struct Wanted<'w> {
    reason: &'w str,
    limit: Option<&'w str>,
    dry_run: bool,
    change: Option<&'w str>,
    /// `None`: an override is lifted.
    set: Option<(Setting, Effect, Timestamp)>,
}

/// Why a limit takes no override like that.
fn refuses(rule: &Rule, effect: Option<Effect>) -> Option<&'static str> {
    match effect {
        _ if rule.is_off() => Some("is off: it has nothing to override"),
        Some(Effect::Numbers { .. }) if rule.live.algorithm.depth().is_none() => {
            Some("has places, not a rate: override `in_flight`")
        }
        Some(Effect::Places(_)) if rule.live.algorithm.quota().is_some() => {
            Some("has a rate, not places: override `rate` or `burst`")
        }
        Some(Effect::Block) if rule.live.mode != Mode::Enforce => {
            Some("only counts (mode = \"shadow\"): it refuses nothing, and blocks nothing")
        }
        _ => None,
    }
}

/// Checks other numbers against the limits that are to have them.
fn checked(limits: &[&Limit], effect: Option<Effect>) -> Result<(), Problem> {
    if !matches!(effect, Some(Effect::Numbers { .. } | Effect::Places(_))) {
        return Ok(());
    }
    if let [first, second, ..] = limits {
        let detail = format!(
            "numbers are for one limit: name it with `limit`; this caller has `{}`, `{}`{}",
            first.name,
            second.name,
            if limits.len() > 2 { " and others" } else { "" }
        );
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    for limit in limits {
        if let Some(Err(errors)) = effect.and_then(|effect| under(limit, effect)) {
            let errors: Vec<String> = errors
                .into_iter()
                .map(|error| format!("`{}`: {}", error.field, error.message))
                .collect();
            let detail = format!("limit `{}`: {}", limit.name, errors.join("; "));
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
    }
    Ok(())
}

/// Checks that a rate is in the unit that the limit counts, as in the file.
fn in_unit(rule: &Rule, setting: &Setting) -> Result<(), Problem> {
    let Some(rate) = &setting.rate else {
        return Ok(());
    };
    let money = rule.prices.as_ref().map(|prices| &*prices.prices.currency);
    let checked = tollgate_config::rate_in(rate, money);
    checked.map(|_| ()).map_err(|error| {
        let detail = format!("limit `{}`: {error}", rule.name);
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

/// The limit with the numbers of an override in force.
pub(super) fn numbers<'l>(limit: &'l Limit, overridden: Option<&Overridden>) -> Cow<'l, Limit> {
    let obeyed = overridden.filter(|one| one.why_not.is_none());
    let effect = obeyed.and_then(|one| one.setting.effect().ok());
    let numbers = effect.and_then(|effect| under(limit, effect)?.ok());
    numbers.map_or(Cow::Borrowed(limit), Cow::Owned)
}

/// The limit with the numbers of an override; `None`: it has none.
fn under(limit: &Limit, effect: Effect) -> Option<Result<Limit, Vec<QuotaError>>> {
    match effect {
        Effect::Numbers { rate, burst } => Some(limit.with_numbers(rate, burst)),
        Effect::Places(places) => Some(limit.with_places(places)),
        Effect::Unlimited | Effect::Block => None,
    }
}

fn changed_limit(
    limit: &Limit,
    before: Option<Overridden>,
    after: Option<Overridden>,
    now: Now,
) -> ChangedLimit {
    ChangedLimit {
        limit: limit.name.to_string(),
        tier: limit.tier.as_deref().map(str::to_owned),
        store: store(limit).to_owned(),
        words: numbers(limit, after.as_ref()).words(),
        before,
        after,
        now,
    }
}

/// The override `one` as it stands under `snapshot`.
pub(super) fn told(one: &InForce, snapshot: &Snapshot) -> Overridden {
    Overridden {
        why_not: why_not(one, &snapshot.policy.rules).or_else(|| no_room(one, &snapshot.limiter)),
        ..Overridden::from(one)
    }
}

/// Why an override changes nothing under the policy in force.
fn why_not(one: &InForce, rules: &[Rule]) -> Option<String> {
    let Some(rule) = rules.iter().find(|rule| *rule.name == *one.entry.limit) else {
        return Some("no limit has this name any more".to_owned());
    };
    if rule.live.placement != one.placement {
        return Some("the limit has its buckets elsewhere now".to_owned());
    }
    let effect = one.entry.setting.effect();
    if let Err(why) = effect {
        return Some(format!("this version cannot read it: {why}"));
    }
    if let Some(why) = refuses(rule, effect.ok()) {
        return Some(format!("the limit {why}"));
    }
    let taken = under(&rule.live, one.entry.setting.effect().ok()?)?;
    taken
        .err()
        .map(|_| "the limit cannot have these numbers any more".to_owned())
}

/// Why other numbers of a local limit may change nothing: buckets with other numbers than their
/// table's are kept beside it, and there are few such places.
fn no_room(one: &InForce, limiter: &Limiter) -> Option<String> {
    let numbers = matches!(one.entry.setting.effect(), Ok(Effect::Numbers { .. }));
    let is_full = one.placement == Placement::Local && !limiter.local().has_room_aside();
    (numbers && is_full).then(|| {
        "there may be no room for it: too many keys have had other numbers of late, and their buckets are not full again"
            .to_owned()
    })
}

fn problem(limit: &Limit, error: &ChangeError) -> Problem {
    let code = match error {
        ChangeError::TooMany(_) | ChangeError::MadeBefore => StatusCode::CONFLICT,
        ChangeError::Unavailable(_) | ChangeError::Unsure(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(code, format!("limit `{}`: {error}", limit.name))
}

impl From<&InForce> for Overridden {
    fn from(one: &InForce) -> Self {
        Self {
            setting: one.entry.setting.clone(),
            since: moment(one.set),
            until: moment(one.until),
            operator: one.entry.operator.clone(),
            reason: one.entry.reason.clone(),
            why_not: None,
        }
    }
}

impl Overridden {
    /// One that would be set now.
    fn of_new(new: &NewOverride, now: Timestamp) -> Self {
        Self {
            setting: new.setting.clone(),
            since: moment(now),
            until: moment(new.until),
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

/// [`Changed::format`] and [`List::format`] of this version.
const FORMAT: u32 = 1;

/// Microseconds of a day.
const DAY: u64 = 86_400_000_000;

/// The longest that an override lasts.
const LONGEST: Micros = Micros(30 * DAY);
