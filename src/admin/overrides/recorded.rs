//! The lines of the audit about overrides.

use super::documents::{ChangedLimit, Overridden, Wanted};
use crate::admin::api::Problem;
use crate::admin::audit::{Audit, Entry, Line, Outcome, Prepared};
use crate::admin::changes::{By, unrecorded};
use crate::admin::live::{Key, Live, Now};
use crate::moments::moment;
use crate::overrides::InForce;
use tollgate_config::settings::Word as _;

/// Writes the line of the audit about an override that has ended by itself. It may not be written, and
/// the override has ended all the same.
pub fn record_end(audit: &Audit, one: &InForce) {
    let prepared = audit.prepare(&one.operator);
    let recorded = prepared.and_then(|mut audit| audit.record(&own_line(one, false)));
    if let Err(error) = recorded {
        tracing::error!(%error, limit = one.limit, "the audit cannot be written: an override has ended");
    }
}

/// The line about a block that this gateway has set by a penalty (`begins`), or an override that it
/// saw end.
pub(in crate::admin) fn own_line(one: &InForce, begins: bool) -> Line<'_, Entry> {
    let unknown = || Now::unknown("no bucket was looked at");
    let setting = Some(one.setting.clone());
    let (action, at, (before, after)) = match begins {
        true => ("penalty", one.since, (None, setting)),
        false => ("end", one.until, (setting, None)),
    };
    Line {
        at: moment(at),
        operator: &one.operator,
        from: "this gateway",
        action,
        details: Entry {
            reason: one.reason.clone(),
            limit: one.limit.clone(),
            key: Key::of(one),
            store: one.placement.word().to_owned(),
            before: unknown(),
            after: unknown(),
            override_before: before,
            override_after: after,
            until: Some(moment(one.until)),
            ..Entry::default()
        },
    }
}

/// What the audit says of the bucket that was changed.
pub(super) struct Recorded<'c> {
    pub(super) key: Key,
    pub(super) before: Now,
    pub(super) one: &'c ChangedLimit,
}

impl Live {
    pub(super) fn record(
        &self,
        audit: &mut Prepared<'_>,
        by: &By<'_>,
        wanted: &Wanted<'_>,
        outcome: Outcome,
        change: Recorded<'_>,
    ) -> Result<(), Problem> {
        let Recorded { key, before, one } = change;
        let setting = |overridden: &Option<Overridden>| {
            let overridden = overridden.as_ref();
            overridden.map(|overridden| overridden.setting.clone())
        };
        let action = match one.after {
            Some(_) => "override",
            None => "lift",
        };
        let entry = Entry {
            outcome,
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
        };
        let recorded = audit.record(&by.line(self.now(), action, entry));
        recorded.map_err(|error| unrecorded("override", &error))
    }
}
