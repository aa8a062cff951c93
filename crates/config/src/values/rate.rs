//! Rates: `"100/minute"`, `"10/10s"`, `"50 USD/month"`, `"unlimited"`; and prices.

use serde_json::{Value, json};

use super::forms::parsed;
use super::quantity::{duration, micro_units, unit};
use crate::reading::{At, Context, Defs, Flaw, Node, Read, Text, forms, near_or, slips};
use tollgate_limit::Micros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    /// This many units in every period.
    Per {
        /// The units, and the length of the period. A month counts as 30 days here; calendar
        /// windows use its real length.
        rate: tollgate_limit::Rate,
        /// The calendar unit, when the period is one of them.
        unit: Unit,
        /// The unit of money, of which the units are millionths.
        currency: Option<Currency>,
    },
    Unlimited,
}

impl Rate {
    /// Whether both count in the same period, or one of them counts nothing.
    pub(crate) fn has_period_of(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Per { rate, unit, .. },
                Self::Per {
                    rate: its,
                    unit: its_unit,
                    ..
                },
            ) => rate.period == its.period && (*unit == Unit::Month) == (*its_unit == Unit::Month),
            _ => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Currency([u8; 3]);

impl Currency {
    /// The code at the end of a number, and the number before it.
    fn after(number: &str) -> Option<(&str, Self)> {
        let (amount, code) = number.split_at_checked(number.len().checked_sub(3)?)?;
        let code = is_currency(code).then_some(code)?;
        Some((amount.trim_end(), Self(code.as_bytes().try_into().ok()?)))
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Why a rate in the unit `written` is not for a limit that counts money in the unit `counted`
/// (`None`: units of its own): a title, and what is wrong with the rate.
pub(crate) fn money_flaw(
    written: Option<&str>,
    counted: Option<&str>,
) -> Option<(&'static str, String)> {
    match (written, counted) {
        (None, None) => None,
        (Some(written), Some(counted)) if written == counted => None,
        (None, Some(_)) => Some((
            "the rate of a limit with `prices` is money",
            "the unit of money is missing".to_owned(),
        )),
        (Some(_), None) => Some((
            "a rate in money is for a limit with `prices`",
            "`prices` is missing".to_owned(),
        )),
        (Some(_), Some(counted)) => Some((
            "a limit counts the money of `[prices]`",
            format!("`[prices]` is in {counted}"),
        )),
    }
}

/// Parses a rate that is not `unlimited`, in whatever unit.
pub(crate) fn finite(text: &str) -> Result<(tollgate_limit::Rate, Option<Currency>), String> {
    match rate(text) {
        Ok(Rate::Per { rate, currency, .. }) => Ok((rate, currency)),
        Ok(Rate::Unlimited) => Err("`unlimited` is no rate to compare".to_owned()),
        Err(Flaw {
            title, label, help, ..
        }) => Err(format!("{title}: {}", help.unwrap_or(label))),
    }
}

/// Parses the rate of a limit that counts money in the unit `counted`, or units of its own.
pub fn rate_in(text: &str, counted: Option<&str>) -> Result<tollgate_limit::Rate, String> {
    let (rate, currency) = finite(text)?;
    let written = currency.as_ref().map(Currency::as_str);
    let Some((title, label)) = money_flaw(written, counted) else {
        return Ok(rate);
    };
    let meant = match (written, counted, text.split_once('/')) {
        (None, Some(counted), Some((number, period))) => {
            format!(": write `{} {counted}/{period}`", number.trim_end())
        }
        _ => String::new(),
    };
    Err(format!("{title}, and in `{text}` {label}{meant}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Day,
    Week,
    /// A month: only in calendar windows.
    Month,
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

pub(crate) fn rate(text: &str) -> Result<Rate, Flaw> {
    read(text).map_err(|flaw| {
        // A rate in another product's syntax gets a suggestion in our syntax, if the suggestion is valid.
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
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        return Err(match is_number {
            true => flaw.help(format!(
                "write it as \"{text}/minute\", or with another period"
            )),
            false => flaw.help(HELP),
        });
    };
    let number = text[..slash].trim_end();
    if let Some((money, currency)) = Currency::after(number) {
        let Some(amount) = micro_units(money).filter(|amount| *amount > 0) else {
            let label = "an amount of money like `50 USD` or `0.25 USD` was expected";
            return Err(Flaw::new(0, slash, no_rate(), label).help(HELP));
        };
        return per(text, slash, amount, Some(currency));
    }
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
    per(text, slash, amount, None)
}

/// A rate of this amount, with the period after the slash.
fn per(text: &str, slash: usize, amount: u64, currency: Option<Currency>) -> Result<Rate, Flaw> {
    let start = slash + 1;
    let (period, unit) = period(&text[start..]).map_err(|flaw| flaw.shifted(start))?;
    if period == Micros::ZERO {
        let title = format!("`{text}` has no period");
        return Err(Flaw::new(start, text.len(), title, "a period of zero"));
    }
    let rate = tollgate_limit::Rate::new(amount, period);
    Ok(Rate::Per {
        rate,
        unit,
        currency,
    })
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
                let units = ["second", "minute", "hour", "day", "week", "month"];
                let label = near_or(word, units, "no such period");
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

forms! {
    /// A rate that a request may ask for.
    OverrideText -> tollgate_limit::Rate = override_rate;
    /// An amount of money, as micro-units: `"2.50"`.
    Money -> u64 = money;
}

fn override_rate(text: &At<Text>, context: &mut Context<'_>) -> Option<tollgate_limit::Rate> {
    let read = rate(text.as_str()).map_err(|flaw| context.flaw(flaw, text));
    let Rate::Per { rate, .. } = read.ok()? else {
        let title = "an override is a rate";
        context.error(title, text.place, "Envoy cannot ask for this");
        return None;
    };
    Some(rate)
}

/// The highest price of a million tokens: a thousand million.
const DEAREST: u64 = 1_000_000_000_000_000;

fn money(text: &At<Text>, context: &mut Context<'_>) -> Option<u64> {
    let price = micro_units(text.as_str()).filter(|price| *price <= DEAREST);
    let expected = "a number like \"2.50\" was expected, with at most six digits after the point";
    context.value_of(text, price, "is not a price", expected)
}

/// Whether `text` is the code of a unit of money.
pub(crate) fn is_currency(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Rates in the schema: a number above zero, and a unit or a duration with units.
const PATTERN: &str = "^(([0-9_]*[1-9][0-9_]*|[0-9]+(\\.[0-9]{1,6})? *[A-Z]{3}) */ *((s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?|months?|us|ms)|([0-9]+[a-z]+)+)|unlimited)$";

#[cfg(test)]
mod tests;
