//! Forms of values in the file: durations, moments, sizes, shares, numbers that may be `auto`, and where the access log goes.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::quantity::{bytes_words, duration, refusals, share, size};
use crate::reading::{At, Context, Defs, Flaw, Node, Read, Text, forms, outside};
use tollgate_limit::{Micros, Timestamp};

/// Reads a string and parses it; a mistake is reported at its own place.
pub(crate) fn parsed<T>(
    node: Node<'_>,
    context: &mut Context<'_>,
    wanted: &str,
    parse: impl FnOnce(&str) -> Result<T, Flaw>,
) -> Option<T> {
    if let DeValue::Integer(number) = node.value {
        // For a rate, a bare number most often means requests per second.
        let example = if context.keys.last().is_some_and(|key| key == "rate") {
            format!(": rate = \"{number}/second\", or rate = \"{number}/minute\"")
        } else {
            String::new()
        };
        let title = format!("`{}` must be {wanted}", context.name());
        context
            .error(title, node.place, "a number without a unit")
            .help(format!(
                "units are mandatory: write {wanted}, not {number}{example}"
            ));
        return None;
    }
    let text = Text::read_as(node, context, wanted)?;
    parse(text.as_str())
        .map_err(|flaw| context.flaw(flaw, &text))
        .ok()
}

/// A duration: `"10s"`, `"1h30m"`, `"500ms"`.
impl Read for Micros {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        let wanted = "a duration like \"10s\" or \"1h30m\"";
        parsed(node, context, wanted, duration)
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "type": "string", "pattern": TIME, "examples": ["10s", "1h30m", "500ms"] })
    }

    fn outside(value: &Self, range: &RangeInclusive<u64>) -> Option<String> {
        if value.0 < *range.start() {
            Some(if *range == BLOCK {
                "the shortest is one second".to_owned()
            } else {
                "zero is not \"off\": nothing would ever be in time".to_owned()
            })
        } else {
            let most = if *range == BLOCK { "30 days" } else { "a year" };
            (value.0 > *range.end()).then(|| format!("more than {most}"))
        }
    }
}

/// The range of a timeout: above zero, at most a year.
pub(crate) const TIMEOUT: RangeInclusive<u64> = 1..=366 * 86_400_000_000;
/// The range of a span that may be zero.
pub(crate) const SPAN: RangeInclusive<u64> = 0..=366 * 86_400_000_000;

/// Declares forms that are parsed from a text: what is made of it, the parser, what the key accepts in words, and the pattern and
/// an example of the schema.
macro_rules! parsed_forms {
    ($($(#[doc = $doc:literal])* $name:ident -> $value:ty = $parse:expr, $wanted:literal, $pattern:literal, $examples:tt;)*) => {$(
        $(#[doc = $doc])*
        pub(crate) enum $name {}

        impl Read for $name {
            type Value = $value;

            fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<$value> {
                parsed(node, context, $wanted, $parse)
            }

            fn schema(_: &mut Defs) -> Value {
                json!({ "type": "string", "pattern": $pattern, "examples": $examples })
            }
        }
    )*};
}

parsed_forms! {
    /// A size in bytes: `"64KiB"`, or `"unlimited"` (`None`).
    Size -> Option<u64> = size,
        "a size like \"64KiB\" or \"unlimited\"",
        "^([0-9]+ *(B|kB|KB|KiB|MB|MiB|GB|GiB)|unlimited)$",
        ["64KiB", "10MB", "unlimited"];
    /// A share of keys: `"25% of keys"`, in hundredths of a percent.
    ShareOfKeys -> u16 = |text| share(text, "of keys"),
        "a share like \"25% of keys\"",
        r"^ *[0-9]+(\.[0-9]{1,2})? *% *of keys *$",
        ["25% of keys"];
    /// A share of requests: `"1% of requests"`, in hundredths of a percent.
    ShareOfRequests -> u16 = |text| share(text, "of requests"),
        "a share like \"1% of requests\"",
        r"^ *[0-9]+(\.[0-9]{1,2})? *% *of requests *$",
        ["1% of requests"];
    /// Refusals within a span: `"20 refusals in 1m"`.
    Refusals -> (u32, Micros) = refusals,
        "a number of refusals like \"20 refusals in 1m\"",
        "^[0-9]+ +refusals? +in +[0-9a-z]+$",
        ["20 refusals in 1m"];
}

/// A size in bytes that must have a bound.
pub(crate) struct Bytes<T = u64>(PhantomData<T>);

impl<T: TryFrom<u64> + TryInto<u64> + Copy> Read for Bytes<T> {
    type Value = T;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<T> {
        let size = Size::read(node, context)?.and_then(|bytes| T::try_from(bytes).ok());
        if size.is_none() {
            let key = context.keys.last().map_or("", String::as_str);
            let title = format!("`{key}` must have a bound");
            context.error(
                title,
                node.place,
                "this memory grows with what callers send, so it needs a bound",
            );
        }
        size
    }

    fn schema(defs: &mut Defs) -> Value {
        Size::schema(defs)
    }

    fn outside(value: &T, range: &RangeInclusive<u64>) -> Option<String> {
        outside((*value).try_into().unwrap_or(u64::MAX), range, bytes_words)
    }
}

/// The range of a block: a second to 30 days.
pub(crate) const BLOCK: RangeInclusive<u64> = 1_000_000..=30 * 86_400_000_000;

forms! {
    /// A percentage of a whole, from `"1%"` to `"100%"`.
    Percent -> u8 = |text, context| {
        let digits = text.as_str().strip_suffix('%').filter(|digits| !digits.starts_with(['0', '+']));
        let percent = digits.and_then(|digits| digits.parse().ok()).filter(|percent| *percent <= 100);
        let expected = "a whole number from \"1%\" to \"100%\" was expected";
        context.value_of(text, percent, "is not a percentage", expected)
    };
}

/// A number of one or more, or `"auto"` (`None`): the gateway finds it.
pub(crate) struct Auto<T>(PhantomData<T>);

impl<T: Read<Value = T> + FromStr> Read for Auto<T> {
    type Value = Option<T>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Option<T>> {
        if matches!(node.value, DeValue::Integer(_)) {
            return T::read(node, context).map(Some);
        }
        let text = Text::read_as(node, context, "\"auto\" or a number")?;
        if text.as_str() == "auto" {
            return Some(None);
        }
        // A number from the environment is a string here.
        let number = text.as_str().parse().ok();
        if number.is_none() {
            let title = format!("`{}` must be \"auto\" or a number", context.name());
            context.error(title, node.place, "neither");
        }
        number.map(Some)
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "anyOf": [{ "type": "string", "enum": ["auto"] }, { "type": "integer", "minimum": 1 }] })
    }

    fn outside(value: &Option<T>, range: &RangeInclusive<u64>) -> Option<String> {
        T::outside(value.as_ref()?, range)
    }
}

/// Durations in the schema: numbers with units, the largest unit first.
const TIME: &str = "^(?=[0-9])([0-9]+(w|weeks?))?([0-9]+(d|days?))?([0-9]+(h|hours?))?([0-9]+(m|min|minutes?))?([0-9]+(s|sec|seconds?))?([0-9]+ms)?([0-9]+us)?$";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    Stdout,
    Stderr,
    Off,
    File(PathBuf),
}

forms! {
    AccessLogTarget -> AccessLog = access_log;
    Start -> Timestamp = start;
}

fn access_log(text: &At<Text>, context: &mut Context<'_>) -> Option<AccessLog> {
    Some(match text.as_str() {
        "stdout" => AccessLog::Stdout,
        "stderr" => AccessLog::Stderr,
        "off" => AccessLog::Off,
        path if path.contains(['/', '.']) => AccessLog::File(context.path(text)),
        other => {
            let label = "\"stdout\", \"stderr\", \"off\" or a path was expected";
            context
                .error(format!("`access` cannot be \"{other}\""), text.place, label)
                .help(format!("a path has a `/` or a `.` in it: \"./{other}\""));
            return None;
        }
    })
}

fn start(text: &At<Text>, context: &mut Context<'_>) -> Option<Timestamp> {
    let read = text.as_str().parse::<jiff::Timestamp>().ok();
    let micros = read.and_then(|moment| u64::try_from(moment.as_microsecond()).ok());
    let moment = micros.map(Timestamp::from_micros);
    let expected = "a date and a time with its zone, like `2026-03-01T00:00:00Z`";
    let moment = context.value_of(text, moment, "is no moment", expected)?;
    if !(EARLIEST..=LATEST).contains(&moment) {
        let title = "a test begins between the years 2025 and 2050";
        let label = "outside the years for which calendar windows are computed";
        context.error(title, text.place, label);
        return None;
    }
    Some(moment)
}

/// 2025-01-01T00:00:00Z.
const EARLIEST: Timestamp = Timestamp::from_micros(1_735_689_600_000_000);
/// 2051-01-01T00:00:00Z.
const LATEST: Timestamp = Timestamp::from_micros(2_556_144_000_000_000);
