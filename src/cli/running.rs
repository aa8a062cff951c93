//! The verbs that ask running gateways for what they list and how they are: `log-level`, `audit`,
//! `overrides`, `health`.

use std::fmt::Write;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::args::{GatewaysAndFormat, Health, LogLevel};
use super::gateway::Gateway;
use super::listeners;
use super::token::Token;
use super::{BAD, Ended, GOOD, Stop, print_out};
use crate::admin::audit::Entries;
use crate::admin::live::Key;
use crate::admin::log_level::Level;
use crate::admin::overrides::List;

pub(super) fn log_level(args: &LogLevel) -> Ended {
    // A read needs no token.
    let token = match args.level {
        Some(_) => Token::find(args.token_file.as_deref()).map_err(Stop::Misuse)?,
        None => None,
    };
    let change = args.level.as_ref().map(|level| {
        let mut body = serde_json::json!({
            "level": level,
            "reason": args.reason,
            "dry_run": args.dry_run,
        });
        if let Some(lasts) = &args.lasts {
            body["for"] = lasts.as_str().into();
        }
        body.to_string()
    });
    let ask = |gateway: &Gateway| match &change {
        None => gateway.get::<Level>(LOG_LEVEL),
        Some(body) => gateway.change(Method::PUT, LOG_LEVEL, token.as_ref(), body),
    };
    let words = |to: &mut String, gateway: &str, level: &Level| {
        to.write_str(&level_words(gateway, level, args.dry_run))
    };
    listeners::ask_each("log-level", "log_level", &args.asked, ask, words)
}

fn level_words(gateway: &str, level: &Level, dry_run: bool) -> String {
    let would = if dry_run { " (would be)" } else { "" };
    let then = match &level.until {
        Some(until) => format!(" until {until}, then {}", level.written),
        None if level.level != level.written => format!(", in the file {}", level.written),
        None => String::new(),
    };
    format!(
        "gateway    {gateway}\nlog level  {}{would}{then}\n",
        level.level
    )
}

const LOG_LEVEL: &str = "/api/v1/log-level";

pub(super) fn audit(asked: &GatewaysAndFormat) -> Ended {
    let ask = |gateway: &Gateway| gateway.get::<Entries>("/api/v1/audit");
    listeners::ask_each("audit", "audit", asked, ask, audit_words)
}

fn audit_words(to: &mut String, gateway: &str, reported: &Entries) -> std::fmt::Result {
    writeln!(to, "gateway    {gateway}")?;
    if let Some(store) = &reported.store {
        writeln!(to, "store      {store}")?;
    }
    for one in &reported.entries {
        audit_entry(to, one)?;
    }
    if reported.entries.is_empty() {
        writeln!(to, "change     none since its start")?;
    }
    Ok(())
}

fn audit_entry(to: &mut String, entry: &Value) -> std::fmt::Result {
    let text = |member: &str| entry.get(member).and_then(Value::as_str);
    let done = text("words").unwrap_or("?");
    writeln!(to, "change     {} {done}", text("at").unwrap_or("?"))?;
    if let Some(reason) = text("reason") {
        writeln!(to, "           reason: {reason}")?;
    }
    if let (Some(limit), Ok(key)) = (text("limit"), Key::deserialize(entry)) {
        let store = text("store").unwrap_or("?");
        writeln!(to, "           limit {limit} ({store}), {}", key.words())?;
    }
    Ok(())
}

pub(super) fn health(args: &Health) -> Ended {
    let gateways = listeners::asked(&args.listeners.admin, args.timeout, &args.config)?;
    let path = if args.live {
        "/livez"
    } else {
        "/readyz?verbose"
    };
    let mut all = GOOD;
    for gateway in &gateways {
        if gateways.len() > 1 {
            print_out(&format!("gateway    {}", gateway.name));
        }
        match gateway.text(path) {
            Ok((status, body)) => {
                print_out(&body);
                if status != StatusCode::OK {
                    all = BAD;
                }
            }
            Err(why) => {
                tell!("tollgate health: {}: {why}", gateway.name);
                all = BAD;
            }
        }
    }
    Ok(all)
}

pub(super) fn overrides(asked: &GatewaysAndFormat) -> Ended {
    let ask = |gateway: &Gateway| gateway.get::<List>("/api/v1/overrides");
    listeners::ask_each("overrides", "list", asked, ask, overrides_words)
}

fn overrides_words(to: &mut String, gateway: &str, list: &List) -> std::fmt::Result {
    writeln!(to, "gateway    {gateway}")?;
    for one in &list.overrides {
        writeln!(
            to,
            "override   {} ({}): {}",
            one.limit,
            one.store,
            one.key.words()
        )?;
        writeln!(to, "           {}", one.overridden.words())?;
        if let Some(why) = &one.overridden.why_not {
            writeln!(to, "           changes nothing: {why}")?;
        }
    }
    if list.overrides.is_empty() {
        writeln!(to, "override   none")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::args::HEALTH_WITHIN_MS;

    #[test]
    fn health_time_limit_is_below_that_of_the_images_health_check() {
        let dockerfile = include_str!("../../Dockerfile");
        let (_, check) = dockerfile.split_once("\nHEALTHCHECK ").expect("a check");
        let (_, limit) = check.split_once("--timeout=").expect("its limit");
        let (seconds, _) = limit.split_once('s').expect("in seconds");
        let seconds: u64 = seconds.parse().expect("a number");
        assert!(HEALTH_WITHIN_MS + 500 <= seconds * 1_000, "{seconds} s");
    }
}
