//! `tollgate audit`: the changes that operators and penalties have made on running gateways.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use super::args::GatewaysAndFormat;
use super::fleet::{self, Gateway};
use super::stop::Ended;
use crate::admin::audit::Entries;
use crate::admin::live::Key;
use crate::overrides::Setting;

pub(super) fn audit(asked: &GatewaysAndFormat) -> Ended {
    let ask = |gateway: &Gateway| gateway.get::<Entries>("/api/v1/audit");
    fleet::ask_each("audit", "audit", asked, ask, words)
}

fn words(to: &mut String, gateway: &str, told: &Entries) -> std::fmt::Result {
    writeln!(to, "gateway    {gateway}")?;
    for one in &told.entries {
        entry(to, one)?;
    }
    if told.entries.is_empty() {
        writeln!(to, "change     none since its start")?;
    }
    Ok(())
}

fn entry(to: &mut String, entry: &Value) -> std::fmt::Result {
    let text = |member: &str| entry.get(member).and_then(Value::as_str);
    let said = |member: &str| text(member).unwrap_or("?");
    let reason = text("reason").map_or_else(String::new, |reason| format!(": {reason}"));
    writeln!(
        to,
        "change     {} {} by {}{reason}",
        said("at"),
        said("action"),
        said("operator")
    )?;
    if let (Some(limit), Ok(key)) = (text("limit"), Key::deserialize(entry)) {
        writeln!(
            to,
            "           limit {limit} ({}), {}",
            said("store"),
            key.words()
        )?;
    }
    let setting = |member: &str| Setting::deserialize(entry.get(member)?).ok();
    if let (Some(setting), Some(until)) = (setting("override_after"), text("until")) {
        writeln!(to, "           {} until {until}", setting.words())?;
    }
    if let Some(more) = entry.get("more") {
        writeln!(to, "           and {more} more")?;
    }
    Ok(())
}
