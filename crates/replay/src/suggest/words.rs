//! A suggestion as text, as JSON, and as the comments of a limit.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Choice, Corner, Suggestion};
use crate::floods;
use crate::log::Survey;
use crate::report::{counted, grouped, head, moment, read_words};
use tollgate_limit::printable::printable;

impl Choice {
    /// What it admits in any minute at most; `-`: that is not known.
    pub(crate) fn most_in_a_minute(&self) -> String {
        self.per_minute.map_or_else(|| "-".to_owned(), grouped)
    }
}

impl Suggestion {
    /// What the numbers rest on, in words: a line each.
    pub fn evidence(&self, survey: &Survey) -> Vec<String> {
        let mut lines = vec![format!(
            "From {} of {}, {} to {} ({} days); stamps are exact to {}.",
            counted(self.requests, "request"),
            counted(self.keys, "key"),
            moment(survey.from),
            moment(survey.to),
            self.days(),
            tollgate_limit::words::span(tollgate_limit::Micros(self.blur.max(1)))
        )];
        for (name, choice) in &self.choices {
            lines.push(format!(
                "{name}: {} with burst {} refuses {} and {}",
                choice.rate,
                choice.burst,
                counted(choice.keys_refused, "key"),
                counted(choice.requests_refused, "request")
            ));
        }
        for (key, why) in self.floods.iter().take(3) {
            lines.push(format!("flood, not counted in: {}: {why}", printable(key)));
        }
        lines
    }

    fn days(&self) -> String {
        let tenths = self.span * 10 / (86_400 * 1_000_000);
        format!("{}.{}", tenths / 10, tenths % 10)
    }

    pub fn document(&self, survey: &Survey, toml: &str) -> Value {
        let corners = |corners: &[Corner]| -> Value {
            let corner = |corner: &Corner| json!({ "rate": corner.rate.text, "burst": corner.burst, "bar": corner.bar });
            corners.iter().map(corner).collect()
        };
        let mut document = head(survey, &survey.warnings);
        document["per"] = self.per.as_str().into();
        document["keys"] = self.keys.into();
        document["equal_costs"] = self.equal_costs.into();
        document["frontier"] = corners(&self.frontier);
        document["frontier_without_floods"] = corners(&self.frontier_without_floods);
        if !self.frontier_admitted.is_empty() {
            document["frontier_admitted"] = corners(&self.frontier_admitted);
        }
        let floods = self.floods.iter();
        let floods = floods.map(|(key, why)| json!({ "key": key, "why": why }));
        document["floods"] = floods.collect();
        document["flood_rule"] = floods::RULE.into();
        document["choices"] = json!({});
        for (name, choice) in &self.choices {
            document["choices"][*name] = json!({
                "rate": choice.rate,
                "burst": choice.burst,
                "keys_refused": choice.keys_refused,
                "requests_refused": choice.requests_refused,
                "most_per_minute": choice.per_minute,
                "evidence": {
                    "days": self.days().parse::<f64>().unwrap_or_default(),
                    "resolution_ms": self.blur.div_ceil(1_000),
                    "bar": choice.bar,
                },
            });
        }
        document["toml"] = toml.into();
        document
    }

    pub fn text(&self, survey: &Survey, toml: &str) -> String {
        let mut text = read_words(survey);
        let _ = writeln!(
            text,
            "\n{} keys ({}), {} requests",
            grouped(self.keys),
            self.per,
            grouped(self.requests)
        );
        let _ = writeln!(
            text,
            "\nThe least burst that refuses no key\n{:>14} {:>12} {:>14} {:>8}{}",
            "rate",
            "burst",
            "without floods",
            "bar",
            if self.frontier_admitted.is_empty() {
                ""
            } else {
                "  of what was admitted then"
            }
        );
        for (all, without, admitted) in self.corners() {
            let _ = write!(
                text,
                "{:>14} {:>12} {:>14} {:>8}",
                all.rate.text,
                grouped(all.burst),
                grouped(without.burst),
                format!("±{}", grouped(all.bar))
            );
            if let Some(admitted) = admitted {
                let _ = write!(text, " {:>26}", grouped(admitted.burst));
            }
            text.push('\n');
        }
        for (key, why) in &self.floods {
            let _ = writeln!(text, "\nflood {}: {why}", printable(key));
        }
        let _ = writeln!(
            text,
            "\n{:>9} {:>14} {:>8} {:>13} {:>17} {:>15}",
            "", "rate", "burst", "keys refused", "requests refused", "most in a minute"
        );
        for (name, choice) in &self.choices {
            let _ = writeln!(
                text,
                "{name:>9} {:>14} {:>8} {:>13} {:>17} {:>15}",
                choice.rate,
                grouped(choice.burst),
                grouped(choice.keys_refused),
                grouped(choice.requests_refused),
                choice.most_in_a_minute()
            );
        }
        if !self.equal_costs {
            text.push_str("\nRequests cost unlike amounts: with them the number refused need not fall as a burst grows; each line above was simulated.\n");
        }
        let _ = write!(text, "\n{toml}");
        text
    }
}
