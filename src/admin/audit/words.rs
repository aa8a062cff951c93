//! An entry of the audit in words.

use serde::Deserialize;
use serde_json::Value;

use super::Outcome;
use crate::admin::live::{Key, Now};
use crate::overrides::Setting;
use tollgate_policy::keys;

/// What an entry says was done: "ann blocked caller globex under api until 2030-01-31T18:00:00.000Z".
pub fn words(entry: &Value) -> String {
    let operator = text(entry, "operator").unwrap_or("?");
    let action = text(entry, "action").unwrap_or("?");
    let done = match action {
        "override" => set(entry, operator),
        "lift" => format!("{operator} lifted {}{}", subject(entry), replaced(entry)),
        "end" => format!(
            "the override of {} by {operator} ended{}",
            subject(entry),
            replaced(entry)
        ),
        "reset" => format!("{operator} filled {}{}", subject(entry), levels(entry)),
        "penalty" => match entry.get("more") {
            Some(more) => format!("penalties blocked {more} more keys"),
            None => format!("a penalty blocked {}{}", subject(entry), until(entry)),
        },
        "log_level" => log_level(entry, operator),
        other => format!("{operator}: {other}"),
    };
    match outcome(entry) {
        Outcome::Made => done,
        Outcome::Unconfirmed => {
            format!("{done}; not confirmed by the store: it may or may not have been made")
        }
    }
}

fn text<'e>(entry: &'e Value, member: &str) -> Option<&'e str> {
    entry.get(member).and_then(Value::as_str)
}

/// Entries without an outcome are of gateways that recorded none.
fn outcome(entry: &Value) -> Outcome {
    let stated = entry.get("outcome").map(Outcome::deserialize);
    stated.and_then(Result::ok).unwrap_or_default()
}

fn setting(entry: &Value, member: &str) -> Option<Setting> {
    Setting::deserialize(entry.get(member)?).ok()
}

fn subject(entry: &Value) -> String {
    let key = match Key::deserialize(entry) {
        // Only its name distinguishes a key that is not shown.
        Ok(key) if keys::hides(&key.key) => key.words(),
        Ok(key) => key.key,
        Err(_) => "?".to_owned(),
    };
    let tier = text(entry, "tier").map_or_else(String::new, |tier| format!(" (tier {tier})"));
    format!("{key} under {}{tier}", text(entry, "limit").unwrap_or("?"))
}

fn until(entry: &Value) -> String {
    text(entry, "until").map_or_else(String::new, |until| format!(" until {until}"))
}

fn replaced(entry: &Value) -> String {
    let before = setting(entry, "override_before");
    before.map_or_else(String::new, |before| {
        format!(" (before: {})", before.words())
    })
}

fn set(entry: &Value, operator: &str) -> String {
    let (subject, end, before) = (subject(entry), until(entry), replaced(entry));
    match setting(entry, "override_after") {
        Some(Setting { block: true, .. }) => format!("{operator} blocked {subject}{end}{before}"),
        Some(new) => format!("{operator} set {subject} to {}{end}{before}", new.words()),
        None => format!("{operator} overrode {subject}{end}{before}"),
    }
}

/// How the bucket stood before and after.
fn levels(entry: &Value) -> String {
    let level = |member: &str| {
        let now = Now::deserialize(entry.get(member)?).ok()?;
        let level = now.level.map(|level| level.left());
        Some(level.unwrap_or_else(|| "not known".to_owned()))
    };
    match (level("before"), level("after")) {
        (Some(before), Some(after)) => format!(" (before: {before}, after: {after})"),
        _ => String::new(),
    }
}

fn log_level(entry: &Value, operator: &str) -> String {
    let level = |moment: &str| text(entry.get(moment)?, "level");
    let end = entry.get("after").map_or_else(String::new, until);
    let before = level("before").map_or_else(String::new, |level| format!(" (before: {level})"));
    let after = level("after").unwrap_or("?");
    format!("{operator} set the log level to {after}{end}{before}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::words;

    /// An entry of a key, with `more`.
    fn entry(action: &str, more: &Value) -> Value {
        let mut entry = json!({
            "operator": "ann", "action": action, "limit": "api", "tier": null,
            "key": "caller globex", "name": "89fd2c6da0b2c964",
        });
        let all = entry.as_object_mut().expect("an object");
        all.extend(more.as_object().expect("an object").clone());
        entry
    }

    #[test]
    fn audit_words_of_each_change_say_what_was_changed() {
        let until = "2030-01-31T18:00:00.000Z";
        let block = json!({ "override_after": { "block": true }, "until": until });
        let raised = json!({ "override_before": { "block": true }, "until": until,
            "override_after": { "rate": "80/minute", "burst": 9 } });
        let free =
            json!({ "override_after": { "unlimited": true }, "until": until, "tier": "gold" });
        let level = |units: u64| {
            json!({ "level": { "remaining": units, "admits": true, "admits_in_ms": null,
                "admits_at": null, "full_in_ms": 0 }, "why_not": null })
        };
        let filled = json!({ "before": level(0), "after": level(10) });
        let loud =
            json!({ "before": { "level": "info" }, "after": { "level": "debug", "until": until } });
        let lost = json!({ "override_after": { "block": true }, "until": until, "outcome": "unconfirmed" });
        let subject = "caller globex under api";
        for (entry, stated) in [
            (
                entry("override", &block),
                format!("ann blocked {subject} until {until}"),
            ),
            (
                entry("override", &raised),
                format!(
                    "ann set {subject} to rate 80/minute, burst 9 until {until} (before: blocked)"
                ),
            ),
            (
                entry("override", &free),
                format!("ann set {subject} (tier gold) to unlimited until {until}"),
            ),
            (
                entry("lift", &json!({ "override_before": { "block": true } })),
                format!("ann lifted {subject} (before: blocked)"),
            ),
            (
                entry("end", &json!({ "override_before": { "block": true } })),
                format!("the override of {subject} by ann ended (before: blocked)"),
            ),
            (
                entry("reset", &filled),
                format!("ann filled {subject} (before: 0 units, after: 10 units)"),
            ),
            (
                entry("penalty", &block),
                format!("a penalty blocked {subject} until {until}"),
            ),
            (
                entry("penalty", &json!({ "more": 7 })),
                "penalties blocked 7 more keys".to_owned(),
            ),
            (
                entry("log_level", &loud),
                format!("ann set the log level to debug until {until} (before: info)"),
            ),
            (
                entry("override", &lost),
                format!(
                    "ann blocked {subject} until {until}; not confirmed by the store: it may or may not have been made"
                ),
            ),
            (
                json!({ "operator": "ann", "action": "of another version" }),
                "ann: of another version".to_owned(),
            ),
        ] {
            assert_eq!(words(&entry), stated);
        }
        let hidden = entry(
            "override",
            &json!({ "key": "a key", "override_after": { "block": true } }),
        );
        assert_eq!(
            words(&hidden),
            "ann blocked 89fd2c6da0b2c964 (a key) under api"
        );
    }
}
