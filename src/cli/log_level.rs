//! `tollgate log-level`: the level of the operations log of running gateways.

use std::fmt::Write;

use super::args::LogLevel;
use super::listeners::{self, Gateway};
use super::stop::{Ended, Stop};
use super::token::Token;
use crate::admin::log_level::Level;

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
        None => gateway.get::<Level>(PATH),
        Some(body) => gateway.change("PUT", PATH, token.as_ref(), body),
    };
    let words = |to: &mut String, gateway: &str, level: &Level| {
        to.write_str(&words(gateway, level, args.dry_run))
    };
    listeners::ask_each("log-level", "log_level", &args.asked, ask, words)
}

fn words(gateway: &str, level: &Level, dry_run: bool) -> String {
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

const PATH: &str = "/api/v1/log-level";
