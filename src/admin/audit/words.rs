//! A line of the audit in words.

use serde::Serialize;

use super::{Entry, Line, Outcome};
use crate::admin::live::Now;
use crate::overrides::Setting;
use tollgate_policy::identity::keys;

/// What can be recorded: as JSON, and in words.
pub(in crate::admin) trait AuditLine: Serialize {
    /// What was done: "ann blocked caller globex under api until 2030-01-31T18:00:00.000Z".
    fn words(&self) -> String;
}

impl AuditLine for Line<'_, Entry> {
    fn words(&self) -> String {
        let (operator, entry) = (self.operator, &self.details);
        let subject = entry.subject();
        let end = entry.until.as_ref();
        let end = end.map_or_else(String::new, |until| format!(" until {until}"));
        let before = entry.override_before.as_ref();
        let before = before.map_or_else(String::new, |before| {
            format!(" (before: {})", before.words())
        });
        let done = match (self.action, &entry.override_after) {
            ("lift", _) => format!("{operator} lifted {subject}{before}"),
            ("end", _) => format!("the override of {subject} by {operator} ended{before}"),
            ("reset", _) => format!(
                "{operator} filled {subject} (before: {}, after: {})",
                left(&entry.before),
                left(&entry.after)
            ),
            ("penalty", _) => format!("a penalty blocked {subject}{end}"),
            (_, Some(Setting { block: true, .. })) => {
                format!("{operator} blocked {subject}{end}{before}")
            }
            (_, Some(new)) => format!("{operator} set {subject} to {}{end}{before}", new.words()),
            (_, None) => format!("{operator} overrode {subject}{end}{before}"),
        };
        match entry.outcome {
            Outcome::Made => done,
            Outcome::Unconfirmed => {
                format!("{done}; not confirmed by the store: it may or may not have been made")
            }
        }
    }
}

impl Entry {
    fn subject(&self) -> String {
        let key = match keys::hides(&self.key.key) {
            // Only its name distinguishes a key that is not shown.
            true => self.key.words(),
            false => self.key.key.clone(),
        };
        let tier = self.tier.as_ref();
        let tier = tier.map_or_else(String::new, |tier| format!(" (tier {tier})"));
        format!("{key} under {}{tier}", self.limit)
    }
}

fn left(now: &Now) -> String {
    let level = now.level.as_ref();
    level.map_or_else(|| "not known".to_owned(), |level| level.left())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::live::{Key, Level};

    #[test]
    fn audit_words_of_each_change_say_what_was_changed() {
        let key = |key: &str| Key {
            key: key.to_owned(),
            name: "89fd2c6da0b2c964".to_owned(),
        };
        let entry = || Entry {
            limit: "api".to_owned(),
            key: key("caller globex"),
            ..Entry::default()
        };
        let block = || {
            Some(Setting {
                block: true,
                ..Setting::default()
            })
        };
        let until = "2030-01-31T18:00:00.000Z";
        let blocked = || Entry {
            override_after: block(),
            until: Some(until.to_owned()),
            ..entry()
        };
        let raised = Entry {
            override_before: block(),
            override_after: Some(Setting {
                rate: Some("80/minute".to_owned()),
                burst: Some(9),
                ..Setting::default()
            }),
            ..blocked()
        };
        let free = Entry {
            override_after: Some(Setting {
                unlimited: true,
                ..Setting::default()
            }),
            tier: Some("gold".to_owned()),
            ..blocked()
        };
        let lifted = || Entry {
            override_before: block(),
            ..entry()
        };
        let level = |remaining| Now {
            level: Some(Level {
                remaining,
                owed: 0,
                capacity: 10,
                currency: None,
                admits: true,
                admits_in_ms: None,
                admits_at: None,
                full_in_ms: 0,
            }),
            ..Now::default()
        };
        let filled = Entry {
            before: level(0),
            after: level(10),
            ..entry()
        };
        let unsure = Entry {
            outcome: Outcome::Unconfirmed,
            ..blocked()
        };
        let hidden = Entry {
            override_after: block(),
            key: key("a key"),
            ..entry()
        };
        let subject = "caller globex under api";
        for (action, details, stated) in [
            (
                "override",
                blocked(),
                format!("ann blocked {subject} until {until}"),
            ),
            (
                "override",
                raised,
                format!(
                    "ann set {subject} to rate 80/minute, burst 9 until {until} (before: blocked)"
                ),
            ),
            (
                "override",
                free,
                format!("ann set {subject} (tier gold) to unlimited until {until}"),
            ),
            (
                "lift",
                lifted(),
                format!("ann lifted {subject} (before: blocked)"),
            ),
            (
                "end",
                lifted(),
                format!("the override of {subject} by ann ended (before: blocked)"),
            ),
            (
                "reset",
                filled,
                format!("ann filled {subject} (before: 0 units, after: 10 units)"),
            ),
            (
                "penalty",
                blocked(),
                format!("a penalty blocked {subject} until {until}"),
            ),
            (
                "override",
                unsure,
                format!(
                    "ann blocked {subject} until {until}; not confirmed by the store: it may or may not have been made"
                ),
            ),
            (
                "override",
                hidden,
                "ann blocked 89fd2c6da0b2c964 (a key) under api".to_owned(),
            ),
        ] {
            let line = Line {
                at: String::new(),
                operator: "ann",
                from: "",
                action,
                details,
            };
            assert_eq!(line.words(), stated);
        }
    }
}
