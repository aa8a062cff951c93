//! `tollgate audit`: the changes that operators and penalties have made on running gateways.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use super::args::GatewaysAndFormat;
use super::listeners::{self, Gateway};
use super::stop::Ended;
use crate::admin::audit::Entries;
use crate::admin::live::Key;

pub(super) fn audit(asked: &GatewaysAndFormat) -> Ended {
    let ask = |gateway: &Gateway| gateway.get::<Entries>("/api/v1/audit");
    listeners::ask_each("audit", "audit", asked, ask, words)
}

fn words(to: &mut String, gateway: &str, reported: &Entries) -> std::fmt::Result {
    writeln!(to, "gateway    {gateway}")?;
    for one in &reported.entries {
        entry(to, one)?;
    }
    if reported.entries.is_empty() {
        writeln!(to, "change     none since its start")?;
    }
    Ok(())
}

fn entry(to: &mut String, entry: &Value) -> std::fmt::Result {
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
