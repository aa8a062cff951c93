//! `POST /api/v1/keys/{identity}/{value}/grant`: more units for the window that runs.
//!
//! A window counts what was used against its number, so a grant is an override with a larger number
//! that ends with the window.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;

use super::FORMAT;
use super::documents::{Changed, Set, Wanted, changed_limit};
use crate::admin::api::Problem;
use crate::admin::changes::{By, chosen, left_to_others, reason};
use crate::admin::live::{Live, in_force};
use crate::admin::waits::TOO_SLOW;
use crate::overrides::{End, Grant};
use tollgate_limit::{Algorithm, Align, Claim, Kind, Limit, Micros, Mode, Placement, Timestamp};
use tollgate_policy::Rule;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct GrantAsked {
    reason: String,
    limit: String,
    /// How many units; of a limit that counts money, in its currency.
    units: String,
    #[serde(default)]
    dry_run: bool,
    in_store: Option<bool>,
}

impl Live {
    /// Adds units to the running window of a caller.
    pub(in crate::admin) async fn grant(
        &self,
        identity: &str,
        values: &[&str],
        asked: &GrantAsked,
        by: &By<'_>,
    ) -> Result<Changed, Problem> {
        let policy = &self.current.load_full().policy;
        let (sought, mut notes) = self.sought(policy, identity, values)?;
        let wanted = Wanted {
            reason: reason(&asked.reason)?,
            limit: Some(&asked.limit),
            dry_run: asked.dry_run,
            in_store: asked.in_store,
        };
        let decides = |rule: &Rule| sought.decides(rule);
        let mut rules = chosen(&policy.rules, wanted.limit, decides, has_no_windows)?;
        notes.extend(left_to_others(&mut rules, &wanted));
        let Some(rule) = rules.first() else {
            return Ok(self.granted(wanted.dry_run, &sought.key, Vec::new(), notes));
        };
        let limit = rule.variant(sought.numbers(rule));
        let units = units(limit, &asked.units).map_err(Problem::bad_request)?;
        let end = self.window_end(limit, &sought.key).await?;
        let before = self.overridden(limit, &sought.key);
        if let Some(one) = before.as_ref().filter(|one| one.setting.granted.is_none()) {
            let detail = format!(
                "limit `{}`: an override is in force ({}): lift it, or raise it instead",
                limit.name,
                one.words()
            );
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        let grant = Grant {
            limit: Arc::clone(limit),
            units,
        };
        let granted = grant.granted(wanted.reason);
        let is_made = || {
            let found = self.overrides.find(limit, &sought.key);
            found.is_some_and(|found| found.grants.contains(&granted))
        };
        if !is_made() {
            let setting = grant.setting(before.as_ref().map(|before| &before.setting));
            let setting = setting.map_err(Problem::bad_request)?;
            let effect = setting.effect().map_err(Problem::bad_request)?;
            let set = Set {
                setting,
                effect,
                end: End::At(end),
                grant: Some(grant),
            };
            let made = self
                .change_override(identity, values, &wanted, &set, by)
                .await;
            // Another gateway may have made it a moment before.
            if !matches!(&made, Err(problem) if problem.code == StatusCode::CONFLICT && is_made()) {
                return made;
            }
        }
        notes.push(format!(
            "{} were granted for this reason in this window: nothing is added; another reason adds them again",
            granted.units
        ));
        let (now, in_force) = self.stands(limit, &sought.key, 1).await;
        let same = changed_limit(limit, in_force.clone(), in_force, now);
        Ok(self.granted(wanted.dry_run, &sought.key, vec![same], notes))
    }

    fn granted(
        &self,
        dry_run: bool,
        key: &[u8],
        limits: Vec<super::ChangedLimit>,
        notes: Vec<String>,
    ) -> Changed {
        Changed {
            format: FORMAT,
            dry_run,
            key: self.key(key),
            limits,
            notes,
        }
    }

    /// The end of a grant for the running window, by the clock of the place that keeps it.
    ///
    /// A request looks its override up when it arrives, and a store counts it later, maybe in the next
    /// window: so it ends before the window, by the longest that a request's work on the store lasts,
    /// and as much again for how exactly the store's clock is known here.
    async fn window_end(&self, limit: &Limit, key: &[u8]) -> Result<Timestamp, Problem> {
        let unavailable = |why: String| {
            let detail = format!("limit `{}`: {why}", limit.name);
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        };
        let limiter = self.current.load().limiter.clone();
        let limit_now = in_force(&limiter, limit)
            .ok_or_else(|| unavailable("it is no longer in force".to_owned()))?;
        let peeked = self
            .in_time(limiter.peek(Claim::new(limit_now, key, 0)))
            .await;
        let standing = peeked
            .ok_or_else(|| unavailable(TOO_SLOW.to_owned()))?
            .map_err(|error| unavailable(error.to_string()))?
            .standing;
        let begins_when_used = matches!(&limit.algorithm, Algorithm::FixedWindow(window) if *window.align() == Align::FirstHit);
        if begins_when_used && standing.reset == Micros::ZERO {
            let detail = format!(
                "limit `{}`: no window runs, as nothing was used: there is nothing to add to",
                limit.name
            );
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        let remote = match limit.placement {
            Placement::Shared => limiter.shared().remote(),
            Placement::Local => None,
        };
        let margin = remote.map_or(0, |store| store.answer_within().0.saturating_mul(2));
        let end = standing.window_end.as_micros().saturating_sub(margin);
        let end = Timestamp::from_micros(end);
        if self.overrides.end(limit.placement, End::At(end)) <= self.now() {
            let detail = format!(
                "limit `{}`: the window ends in a moment: there is nothing to add to",
                limit.name
            );
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        Ok(end)
    }
}

/// Why a limit takes no grant.
fn has_no_windows(rule: &Rule) -> Option<&'static str> {
    match rule.live.algorithm.kind() {
        _ if rule.is_off() => Some("is off: it has nothing to grant"),
        Kind::FixedWindow if rule.live.mode != Mode::Off => None,
        _ => Some(
            "has no window that ends: `key reset` fills its buckets, `key raise` gives other numbers",
        ),
    }
}

/// The units that `text` says.
fn units(limit: &Limit, text: &str) -> Result<u64, String> {
    let text = text.trim();
    let currency = limit.currency.as_deref();
    let wrong = || {
        let example = currency.map_or_else(|| "20".to_owned(), |code| format!("20 or 20 {code}"));
        format!(
            "`units` is what to add, like {example}: `{}` is not",
            text.escape_default()
        )
    };
    let number = currency
        .and_then(|code| text.strip_suffix(code))
        .unwrap_or(text);
    let money = currency.map_or_else(String::new, |code| format!(" {code}"));
    let rate = tollgate_config::rate_in(&format!("{}{money}/day", number.trim_end()), currency);
    rate.map(|rate| rate.amount).map_err(|_| wrong())
}
