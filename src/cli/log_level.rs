//! `tollgate log-level`: how much the operations log of running gateways says.

use std::process::ExitCode;

use super::args::{Format, LogLevel};
use super::fleet::{self, Told};
use super::{BAD, GOOD, key, print_out, wrong_use};
use crate::admin::log_level::Level;

pub(super) fn log_level(args: &LogLevel) -> ExitCode {
    let gateways = match fleet::asked("log-level", &args.gateways) {
        Ok(gateways) => gateways,
        Err(code) => return code,
    };
    let token = match key::token(args.token_file.as_deref()) {
        Ok(token) => token,
        Err(error) => {
            tell!("tollgate log-level: {error}");
            return wrong_use();
        }
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
    let (mut code, mut text, mut documents) = (GOOD, String::new(), Vec::new());
    for gateway in &gateways {
        let told = match &change {
            None => gateway.get::<Level>(PATH),
            Some(body) => gateway.change("PUT", PATH, token.as_deref(), body),
        };
        match told {
            Told::Document(level) => {
                text.push_str(&words(&gateway.name, &level, args.dry_run));
                documents.push(serde_json::json!({ "gateway": gateway.name, "log_level": level }));
            }
            Told::Refused(why) | Told::Silent(why) => {
                tell!("tollgate log-level: {}: {why}", gateway.name);
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
