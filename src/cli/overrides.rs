//! `tollgate key raise`, `block` and `lift`: other numbers, no limit or a block for one caller, until a moment.

use std::fmt::Write;

use http::Method;
use serde_json::{Value, json};

use super::args::{Caller, Change, ChangedKey, KeyBlock, KeyChange, KeyGrant, KeyRaise};
use super::key::{ChangeRequest, notes};
use super::{Ended, why};
use crate::admin::overrides::Changed;

pub(super) fn raise(args: &KeyRaise) -> Ended {
    let body = json!({
        "rate": args.rate,
        "burst": args.burst,
        "in_flight": args.in_flight,
        "unlimited": args.unlimited,
        "for": args.lasts.lasts,
        "until": args.lasts.until,
    });
    changed("key raise", Method::PUT, &args.key, &args.change, body)
}

pub(super) fn block(args: &KeyBlock) -> Ended {
    let body = json!({ "block": true, "for": args.lasts.lasts, "until": args.lasts.until });
    changed("key block", Method::PUT, &args.key, &args.change, body)
}

pub(super) fn lift(args: &KeyChange) -> Ended {
    let body = json!({});
    changed("key lift", Method::DELETE, &args.key, &args.change, body)
}

/// Asks each gateway to change the override of a caller.
fn changed(
    verb: &'static str,
    method: Method,
    key: &ChangedKey,
    change: &Change,
    body: Value,
) -> Ended {
    let request = ChangeRequest {
        verb,
        method,
        action: "override",
        member: "changed",
        caller: &key.caller,
        limit: key.limit.as_deref(),
        reason: &change.reason,
        body,
    };
    request.ask_each(&change.by, words)
}

pub(super) fn grant(args: &KeyGrant) -> Ended {
    let (units, caller) = args.words.split_last().expect("two words at least");
    let (identity, values) = caller.split_first().expect("two words at least");
    let caller = Caller {
        identity: identity.clone(),
        values: values.to_vec(),
    };
    let request = ChangeRequest {
        verb: "key grant",
        method: Method::POST,
        action: "grant",
        member: "changed",
        caller: &caller,
        limit: Some(&args.limit),
        reason: &args.reason,
        body: json!({ "units": units }),
    };
    request.ask_each(&args.by, words)
}

fn words(to: &mut String, gateway: &str, done: &Changed) -> std::fmt::Result {
    writeln!(to, "gateway    {gateway}")?;
    writeln!(to, "key        {}", done.key.words())?;
    for limit in &done.limits {
        let would = if done.dry_run { " would be" } else { "" };
        writeln!(to, "limit      {} ({})", limit.limit, limit.store)?;
        if let Some(before) = &limit.before {
            writeln!(to, "           before: {}", before.words())?;
        }
        match &limit.after {
            Some(after) => writeln!(to, "           override{would}: {}", after.words())?,
            None => writeln!(to, "           override{would}: none")?,
        }
        writeln!(to, "           {}", limit.words)?;
        let in_force = match done.dry_run {
            true => &limit.before,
            false => &limit.after,
        };
        let now = why::words_now(&limit.now, in_force.as_ref());
        writeln!(to, "           now: {now}")?;
    }
    notes(to, &done.notes)
}
