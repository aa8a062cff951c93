//! `tollgate key raise`, `block` and `lift`: other numbers, no limit or a block for one caller, until a
//! moment.

use std::fmt::Write;

use serde_json::Value;

use super::args::{Caller, ChangedKey, KeyBlock, KeyChange, KeyGrant, KeyRaise, Lasts};
use super::key::{ChangeRequest, Member, change_body, notes};
use super::{Ended, why};
use crate::admin::overrides::Changed;

pub(super) fn raise(args: &KeyRaise) -> Ended {
    let numbers = [
        ("rate", args.rate.as_deref().map(Value::from)),
        ("burst", args.burst.map(Value::from)),
        ("in_flight", args.in_flight.map(Value::from)),
        ("unlimited", args.unlimited.then(|| Value::from(true))),
    ];
    let body = change_body(
        &args.change,
        numbers.into_iter().chain(lasting(&args.lasts)),
    );
    change("key raise", "PUT", &args.key, body).ask_each(&args.change.by, words)
}

pub(super) fn grant(args: &KeyGrant) -> Ended {
    let (units, caller) = args.words.split_last().expect("two words at least");
    let (identity, values) = caller.split_first().expect("two words at least");
    let caller = Caller {
        identity: identity.clone(),
        values: values.to_vec(),
    };
    let change = ChangeRequest {
        verb: "key grant",
        method: "POST",
        action: "grant",
        member: "changed",
        caller: &caller,
        limit: Some(&args.limit),
        body: serde_json::json!({ "reason": args.reason, "dry_run": args.by.dry_run, "units": units }),
    };
    change.ask_each(&args.by, words)
}

pub(super) fn block(args: &KeyBlock) -> Ended {
    let block = [("block", Some(Value::from(true)))];
    let body = change_body(&args.change, block.into_iter().chain(lasting(&args.lasts)));
    change("key block", "PUT", &args.key, body).ask_each(&args.change.by, words)
}

pub(super) fn lift(args: &KeyChange) -> Ended {
    let body = change_body(&args.change, []);
    change("key lift", "DELETE", &args.key, body).ask_each(&args.change.by, words)
}

fn lasting(lasts: &Lasts) -> [Member; 2] {
    [
        ("for", lasts.lasts.as_deref().map(Value::from)),
        ("until", lasts.until.as_deref().map(Value::from)),
    ]
}

fn change<'c>(
    verb: &'static str,
    method: &'static str,
    key: &'c ChangedKey,
    body: Value,
) -> ChangeRequest<'c> {
    ChangeRequest {
        verb,
        method,
        action: "override",
        member: "changed",
        caller: &key.caller,
        limit: key.limit.as_deref(),
        body,
    }
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
