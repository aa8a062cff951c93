//! `tollgate key raise`, `block` and `lift`, and `tollgate overrides`: other numbers, no limit or a
//! block for one caller, until a moment.

use std::fmt::Write;
use std::process::ExitCode;

use super::args::{ChangedKey, Format, KeyBlock, KeyLift, KeyRaise, Lasts, ListOverrides};
use super::fleet::{self, Told};
use super::key::{Asked, change_body, path};
use super::{BAD, GOOD, print_out, why};
use crate::admin::overrides::{Changed, List};

pub(super) fn raise(args: &KeyRaise) -> ExitCode {
    let mut body = change_body(&args.change);
    if let Some(rate) = &args.rate {
        body["rate"] = rate.as_str().into();
    }
    if let Some(burst) = args.burst {
        body["burst"] = burst.into();
    }
    if args.unlimited {
        body["unlimited"] = true.into();
    }
    lasting(&mut body, &args.lasts);
    asked("key raise", "PUT", &args.key, body).of_each(
        &args.gateways,
        &args.change,
        args.format,
        words,
    )
}

pub(super) fn block(args: &KeyBlock) -> ExitCode {
    let mut body = change_body(&args.change);
    body["block"] = true.into();
    lasting(&mut body, &args.lasts);
    asked("key block", "PUT", &args.key, body).of_each(
        &args.gateways,
        &args.change,
        args.format,
        words,
    )
}

pub(super) fn lift(args: &KeyLift) -> ExitCode {
    let body = change_body(&args.change);
    asked("key lift", "DELETE", &args.key, body).of_each(
        &args.gateways,
        &args.change,
        args.format,
        words,
    )
}

fn lasting(body: &mut serde_json::Value, lasts: &Lasts) {
    if let Some(lasts) = &lasts.lasts {
        body["for"] = lasts.as_str().into();
    }
    if let Some(until) = &lasts.until {
        body["until"] = until.as_str().into();
    }
}

fn asked(
    verb: &'static str,
    method: &'static str,
    key: &ChangedKey,
    mut body: serde_json::Value,
) -> Asked {
    if let Some(limit) = &key.limit {
        body["limit"] = limit.as_str().into();
    }
    Asked {
        verb,
        method,
        path: path(&key.identity, &key.values) + "/override",
        body,
        member: "changed",
    }
}

fn words(to: &mut String, gateway: &str, done: &Changed) -> std::fmt::Result {
    writeln!(to, "gateway    {gateway}")?;
    writeln!(
        to,
        "key        {} ({} in logs)",
        done.key.key, done.key.name
    )?;
    for limit in &done.limits {
        let would = if done.dry_run { " would be" } else { "" };
        writeln!(to, "limit      {} ({})", limit.limit, limit.store)?;
        if let Some(before) = &limit.before {
            writeln!(to, "           before: {}", before.words())?;
        }
        match &limit.after {
            Some(after) => writeln!(to, "           now{would}: {}", after.words())?,
            None => writeln!(to, "           now{would}: no override")?,
        }
        writeln!(to, "           bucket: {}", why::now(&limit.now))?;
    }
    Ok(())
}

pub(super) fn list(args: &ListOverrides) -> ExitCode {
    let gateways = match fleet::asked("overrides", &args.gateways) {
        Ok(gateways) => gateways,
        Err(code) => return code,
    };
    let (mut code, mut text, mut documents) = (GOOD, String::new(), Vec::new());
    for gateway in &gateways {
        match gateway.get::<List>("/api/v1/overrides") {
            Told::Document(list) => {
                list_words(&mut text, &gateway.name, &list)
                    .expect("writing into a String cannot fail");
                documents.push(serde_json::json!({ "gateway": gateway.name, "list": list }));
            }
            Told::Refused(why) | Told::Silent(why) => {
                tell!("tollgate overrides: {}: {why}", gateway.name);
                code = BAD;
            }
        }
    }
    let text = match args.format {
        Format::Human => text,
        Format::Json => {
            serde_json::to_string_pretty(&documents).expect("text, numbers and lists are JSON")
        }
    };
    if !text.is_empty() {
        print_out(&text);
    }
    code
}

fn list_words(to: &mut String, gateway: &str, list: &List) -> std::fmt::Result {
    writeln!(to, "gateway    {gateway}")?;
    for one in &list.overrides {
        writeln!(
            to,
            "override   {} ({}): {} ({} in logs)",
            one.limit, one.store, one.key.key, one.key.name
        )?;
        writeln!(to, "           {}", one.overridden.words())?;
        if let Some(why) = &one.why_not {
            writeln!(to, "           changes nothing: {why}")?;
        }
    }
    if list.overrides.is_empty() {
        writeln!(to, "override   none")?;
    }
    Ok(())
}
