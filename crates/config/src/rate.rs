//! The rate grammar: `"100/minute"`, `"10/10s"`, `"unlimited"`.

use serde_json::{Value, json};

use super::context::Context;
use super::flaw::Flaw;
use super::forms::parsed;
use super::problem::nearest;
use super::quantity::{duration, unit};
use super::reader::{Node, Read};
use super::schema::Defs;
use super::slips;
use tollgate_limit::Micros;

/// A rate as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    /// This many units in every period.
    Per {
        /// The units, and the length of the period. A month counts as 30 days here; calendar
        /// windows use its real length.
        rate: tollgate_limit::Rate,
        /// The calendar unit, when the period is one of them.
        unit: Unit,
    },
    /// No limit, stated explicitly.
    Unlimited,
}

/// The name of a rate's period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A day.
    Day,
    /// A week.
    Week,
    /// A month: only in calendar windows.
    Month,
    /// Anything else.
    Span,
}

impl Read for Rate {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        parsed(node, context, "a rate like \"100/minute\"", rate)
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "type": "string", "pattern": PATTERN, "examples": ["100/minute", "10/10s", "5000/day"] })
    }
}

/// Parses a rate.
pub(crate) fn rate(text: &str) -> Result<Rate, Flaw> {
    read(text).map_err(|flaw| {
        // A rate in another product's syntax gets a suggestion in our syntax, if the suggestion is
        // valid.
        match slips::of_rate(text).filter(|ours| read(ours).is_ok()) {
            Some(ours) => Flaw {
                help: Some(format!("write \"{ours}\"")),
                ..flaw
            },
            None => flaw,
        }
    })
}

fn read(text: &str) -> Result<Rate, Flaw> {
    const HELP: &str =
        "a rate is a number, `/` and a period: \"100/minute\", \"10/10s\", \"5000/day\"";
    if text == "unlimited" {
        return Ok(Rate::Unlimited);
    }
    let no_rate = || format!("`{text}` is not a rate");
    let Some(slash) = text.find('/') else {
        let flaw = Flaw::new(0, text.len(), no_rate(), "the period is missing");
        return Err(flaw.help(HELP));
    };
    let number = text[..slash].trim_end();
    let digits: String = number.chars().filter(|c| *c != '_').collect();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let label = if number.contains('.') {
            "fractions are not known: use a longer period"
        } else {
            "a whole number was expected here"
        };
        return Err(Flaw::new(0, slash.max(1), no_rate(), label).help(HELP));
    }
    let amount = digits.parse::<u64>().map_err(|_| {
        let title = format!("`{text}` is too high a rate");
        Flaw::new(0, slash, title, "more than 2^64")
    })?;
    if amount == 0 {
        let title = "a rate of zero admits nothing, ever";
        return Err(Flaw::new(0, slash, title, "zero is never \"off\"").help(
            "to switch the limit off write mode = \"off\"; for no limit write rate = \"unlimited\"",
        ));
    }
    let start = slash + 1;
    let (period, unit) = period(&text[start..]).map_err(|flaw| flaw.shifted(start))?;
    if period == Micros::ZERO {
        let title = format!("`{text}` has no period");
        return Err(Flaw::new(start, text.len(), title, "a period of zero"));
    }
    let rate = tollgate_limit::Rate::new(amount, period);
    Ok(Rate::Per { rate, unit })
}

fn period(text: &str) -> Result<(Micros, Unit), Flaw> {
    const HELP: &str =
        "second, minute, hour, day, week, month, or a duration like \"10s\" are periods";
    let word = text.trim_start();
    let indent = text.len() - word.len();
    if word.is_empty() {
        let flaw = Flaw::new(
            0,
            1,
            "a rate without a period",
            "a period was expected here",
        );
        return Err(flaw.help(HELP));
    }
    if word.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return match (word, unit(word)) {
            ("month" | "months", _) => Ok((Micros(30 * 86_400_000_000), Unit::Month)),
            ("day" | "d", Some(span)) => Ok((Micros(span), Unit::Day)),
            ("week" | "w", Some(span)) => Ok((Micros(span), Unit::Week)),
            (_, Some(span)) => Ok((Micros(span), Unit::Span)),
            (_, None) => {
                let near = nearest(word, ["second", "minute", "hour", "day", "week", "month"]);
                let label = near.map_or_else(
                    || "no such period".to_owned(),
                    |near| format!("did you mean `{near}`?"),
                );
                let title = format!("`{word}` is not a period");
                Err(Flaw::new(indent, text.len(), title, label).help(HELP))
            }
        };
    }
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        let title = format!("the period `{word}` has no unit");
        let help = format!("units are mandatory: \"{word}s\" is {word} seconds");
        let flaw = Flaw::new(indent, text.len(), title, "a number without a unit");
        return Err(flaw.help(help));
    }
    duration(word)
        .map(|span| (span, Unit::Span))
        .map_err(|flaw| flaw.shifted(indent))
}

/// Rates in the schema: a number above zero, and a unit or a duration with units.
const PATTERN: &str = "^([0-9_]*[1-9][0-9_]* */ *((s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?|months?|us|ms)|([0-9]+[a-z]+)+)|unlimited)$";

#[cfg(test)]
mod tests {
    use super::*;

    fn per(amount: u64, seconds: u64, unit: Unit) -> Result<Rate, Flaw> {
        let rate = tollgate_limit::Rate::new(amount, Micros::from_secs(seconds));
        Ok(Rate::Per { rate, unit })
    }

    #[test]
    fn rates_read_as_people_write_them() {
        assert_eq!(rate("100/minute"), per(100, 60, Unit::Span));
        assert_eq!(rate("10/10s"), per(10, 10, Unit::Span));
        assert_eq!(rate("1_000 / hour"), per(1_000, 3_600, Unit::Span));
        assert_eq!(rate("5000/day"), per(5_000, 86_400, Unit::Day));
        assert_eq!(rate("1/1h30m"), per(1, 5_400, Unit::Span));
        assert_eq!(rate("unlimited"), Ok(Rate::Unlimited));
    }

    #[test]
    fn rate_invalid_is_pointed_at() {
        for (text, start, end) in [
            ("100", 0, 3),
            ("100/", 4, 5),
            ("100/minite", 4, 10),
            ("100/60", 4, 6),
            ("x/s", 0, 1),
            ("1.5/s", 0, 3),
            ("0/s", 0, 1),
            ("1/0s", 2, 4),
            ("1/1y", 3, 4),
            ("-5/s", 0, 2),
        ] {
            let flaw = rate(text).expect_err(text);
            assert_eq!((flaw.start, flaw.end), (start, end), "{text}: {flaw:?}");
        }
    }
}
