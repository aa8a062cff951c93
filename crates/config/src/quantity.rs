//! Durations, sizes, shares and counts: numbers with mandatory units.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::context::Context;
use super::problem::nearest;
use super::reader::{Node, Read};
use super::scalar::{Text, outside};
use super::schema::Defs;
use tollgate_limit::Micros;

/// A mistake in a part of a string, with its reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) title: String,
    pub(crate) label: String,
    pub(crate) help: Option<String>,
}

impl Flaw {
    /// A flaw at bytes `start..end`.
    pub(crate) fn new(
        start: usize,
        end: usize,
        title: impl Into<String>,
        label: impl Into<String>,
    ) -> Self {
        Self {
            start,
            end,
            title: title.into(),
            label: label.into(),
            help: None,
        }
    }

    /// Adds what to do.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same flaw in a string that starts `by` bytes earlier.
    pub(crate) fn shifted(mut self, by: usize) -> Self {
        self.start += by;
        self.end += by;
        self
    }
}

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
    match parse(text.as_str()) {
        Ok(value) => Some(value),
        Err(flaw) => {
            context.flaw(flaw, &text);
            None
        }
    }
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
            Some("zero is not \"off\": nothing would ever be in time".to_owned())
        } else {
            (value.0 > *range.end()).then(|| "more than a year".to_owned())
        }
    }
}

/// The range of a timeout: above zero, at most a year.
pub(crate) const TIMEOUT: RangeInclusive<u64> = 1..=366 * 86_400_000_000;
/// The range of a span that may be zero.
pub(crate) const SPAN: RangeInclusive<u64> = 0..=366 * 86_400_000_000;

/// Parses a duration: numbers with units, the largest first, none twice.
pub(crate) fn duration(text: &str) -> Result<Micros, Flaw> {
    let mut total: u64 = 0;
    let mut smallest = u64::MAX;
    let mut at = 0;
    if text.is_empty() {
        return Err(
            Flaw::new(0, 0, "an empty duration", "write a number and a unit")
                .help("\"10s\", \"500ms\" and \"1h30m\" are durations"),
        );
    }
    while at < text.len() {
        let digits = text[at..].bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            let what = if text[at..].starts_with(['.', ',']) {
                "fractions are not known: use a smaller unit"
            } else {
                "a number was expected here"
            };
            return Err(
                Flaw::new(at, text.len(), format!("`{text}` is not a duration"), what)
                    .help("\"10s\", \"500ms\" and \"1h30m\" are durations"),
            );
        }
        let number = at..at + digits;
        let letters = text[number.end..]
            .bytes()
            .take_while(u8::is_ascii_alphabetic)
            .count();
        let word = &text[number.end..number.end + letters];
        let end = number.end + letters;
        if letters == 0 && text[number.end..].starts_with(['.', ',']) {
            let label = "fractions are not known: use a smaller unit";
            return Err(Flaw::new(
                at,
                text.len(),
                format!("`{text}` is not a duration"),
                label,
            ));
        }
        if letters == 0 {
            return Err(Flaw::new(
                at,
                number.end.max(at + 1),
                format!("`{text}` has no unit"),
                "a number without a unit",
            )
            .help(format!(
                "the units are us, ms, s, m, h, d and w: \"{}s\" is seconds",
                &text[number]
            )));
        }
        let Some(unit) = unit(word) else {
            let near = nearest(word, ["us", "ms", "s", "m", "h", "d", "w"]);
            let help = near.map_or_else(
                || "the units are us, ms, s, m, h, d and w".to_owned(),
                |near| format!("did you mean `{near}`? the units are us, ms, s, m, h, d and w"),
            );
            return Err(Flaw::new(
                number.end,
                end,
                format!("`{word}` is not a unit of time"),
                "no such unit",
            )
            .help(help));
        };
        if unit >= smallest {
            return Err(Flaw::new(
                at,
                end,
                format!("`{text}` is not a duration"),
                "units go from large to small, each once",
            ));
        }
        smallest = unit;
        let part = text[number.clone()]
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(unit));
        let Some(sum) = part.and_then(|part| total.checked_add(part)) else {
            return Err(Flaw::new(
                number.start,
                end,
                format!("`{text}` is too long a time"),
                "more than 500,000 years",
            ));
        };
        total = sum;
        at = end;
    }
    Ok(Micros(total))
}

/// Microseconds of a unit, short or long.
pub(crate) fn unit(word: &str) -> Option<u64> {
    Some(match word {
        "us" => 1,
        "ms" => 1_000,
        "s" | "sec" | "second" | "seconds" => 1_000_000,
        "m" | "min" | "minute" | "minutes" => 60_000_000,
        "h" | "hour" | "hours" => 3_600_000_000,
        "d" | "day" | "days" => 86_400_000_000,
        "w" | "week" | "weeks" => 604_800_000_000,
        _ => return None,
    })
}

/// A size in bytes: `"64KiB"`, or `"unlimited"` (`None`).
pub(crate) struct Size;

impl Read for Size {
    type Value = Option<u64>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Option<u64>> {
        let wanted = "a size like \"64KiB\" or \"unlimited\"";
        parsed(node, context, wanted, size)
    }

    fn schema(_: &mut Defs) -> Value {
        json!({
            "type": "string",
            "pattern": "^([0-9]+ *(B|kB|KB|KiB|MB|MiB|GB|GiB)|unlimited)$",
            "examples": ["64KiB", "10MB", "unlimited"],
        })
    }
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
            context.error(title, node.place, "whatever a caller can fill is bounded");
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

/// Bytes in the largest unit that divides them.
pub(crate) fn bytes_words(bytes: u64) -> String {
    [(30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(
            || format!("{bytes} bytes"),
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

/// Parses a size.
pub(crate) fn size(text: &str) -> Result<Option<u64>, Flaw> {
    if text == "unlimited" {
        return Ok(None);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, word) = text.split_at(digits);
    let help = "\"64KiB\", \"10MB\" and \"unlimited\" are sizes; the units are B, kB, KiB, MB, MiB, GB and GiB";
    if number.is_empty() {
        return Err(Flaw::new(
            0,
            text.len(),
            format!("`{text}` is not a size"),
            "a number was expected here",
        )
        .help(help));
    }
    let factor = match word.trim_start() {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        "" => {
            return Err(Flaw::new(
                0,
                text.len(),
                format!("`{text}` has no unit"),
                "a number without a unit",
            )
            .help(help));
        }
        other => {
            return Err(Flaw::new(
                digits,
                text.len(),
                format!("`{other}` is not a unit of size"),
                "no such unit",
            )
            .help(help));
        }
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(factor))
        .map(Some)
        .ok_or_else(|| {
            Flaw::new(
                0,
                text.len(),
                format!("`{text}` is too large a size"),
                "more than 2^64 bytes",
            )
        })
}

/// A share of keys: `"25% of keys"`, in hundredths of a percent.
pub(crate) struct ShareOfKeys;

impl Read for ShareOfKeys {
    type Value = u16;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<u16> {
        let wanted = "a share like \"25% of keys\"";
        parsed(node, context, wanted, |text| share(text, "of keys"))
    }

    fn schema(_: &mut Defs) -> Value {
        json!({
            "type": "string",
            "pattern": r"^ *[0-9]+(\.[0-9]{1,2})? *% *of keys *$",
            "examples": ["25% of keys"],
        })
    }
}

/// A share of requests: `"1% of requests"`, in hundredths of a percent.
pub(crate) struct ShareOfRequests;

impl Read for ShareOfRequests {
    type Value = u16;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<u16> {
        let text = Text::read_as(node, context, "a string")?;
        share(text.as_str(), "of requests")
            .map_err(|flaw| context.flaw(flaw, &text))
            .ok()
    }

    fn schema(defs: &mut Defs) -> Value {
        Text::schema(defs)
    }
}

/// Parses a share of something: a percentage with at most two decimals.
pub(crate) fn share(text: &str, of: &str) -> Result<u16, Flaw> {
    let help = format!("\"25% {of}\" and \"0.5% {of}\" are shares");
    let flaw = |start: usize, end: usize, label: &str| {
        Flaw::new(start, end, format!("`{text}` is not a share"), label).help(help.clone())
    };
    let Some(percent) = text.find('%') else {
        return Err(flaw(0, text.len(), "a percentage was expected"));
    };
    if text[percent + 1..].trim() != of {
        return Err(flaw(
            percent + 1,
            text.len().max(percent + 2),
            &format!("`{of}` was expected here"),
        ));
    }
    let number = text[..percent].trim();
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > 2 || !digits(whole) || !digits(decimals) {
        return Err(flaw(
            0,
            percent,
            "a number with at most two decimals was expected",
        ));
    }
    let hundredths = format!("{whole}{decimals:0<2}")
        .parse::<u16>()
        .unwrap_or(u16::MAX);
    if hundredths > 10_000 {
        Err(flaw(0, percent + 1, "more than all of them"))
    } else {
        Ok(hundredths)
    }
}

/// A number of one or more, or `"auto"` (`None`): the gateway finds it.
pub(crate) struct Auto<T>(PhantomData<T>);

impl<T: Read<Value = T> + TryFrom<u64>> Read for Auto<T> {
    type Value = Option<T>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Option<T>> {
        if matches!(node.value, DeValue::Integer(_)) {
            if u64::read(node, context)? > 0 {
                return T::read(node, context).map(Some);
            }
            let title = format!("`{}` must be at least 1", context.name());
            context
                .error(title, node.place, "zero is not \"auto\"")
                .help("write \"auto\", and the gateway finds the number");
            return None;
        }
        let text = Text::read_as(node, context, "\"auto\" or a number")?;
        if text.as_str() == "auto" {
            return Some(None);
        }
        // A number from the environment is a string here.
        let number = text.as_str().parse::<u64>().ok().filter(|count| *count > 0);
        let number = number.and_then(|number| T::try_from(number).ok());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        assert_eq!(duration("10s"), Ok(Micros(10_000_000)));
        assert_eq!(duration("1h30m"), Ok(Micros(5_400_000_000)));
        assert_eq!(duration("0s"), Ok(Micros(0)));
        assert_eq!(duration("1m500ms"), Ok(Micros(60_500_000)));
    }

    #[test]
    fn what_is_no_duration_is_pointed_at() {
        for (text, start, end) in [
            ("10", 0, 2),
            ("10x", 2, 3),
            ("1.5s", 0, 4),
            ("1m1h", 2, 4),
            ("s", 0, 1),
            ("", 0, 0),
            ("10s!", 3, 4),
            ("99999999999999999999w", 0, 21),
        ] {
            let flaw = duration(text).expect_err(text);
            assert_eq!((flaw.start, flaw.end), (start, end), "{text}: {flaw:?}");
        }
    }

    #[test]
    fn sizes_need_units() {
        assert_eq!(size("64KiB"), Ok(Some(65_536)));
        assert_eq!(size("10 MB"), Ok(Some(10_000_000)));
        assert_eq!(size("unlimited"), Ok(None));
        assert!(
            size("64").is_err()
                && size("64K").is_err()
                && size("KiB").is_err()
                && size("99999999999GiB").is_err()
        );
    }

    #[test]
    fn shares_are_hundredths_of_a_percent() {
        assert_eq!(share("25% of keys", "of keys"), Ok(2_500));
        assert_eq!(share("0.5% of keys", "of keys"), Ok(50));
        assert_eq!(share("100% of keys", "of keys"), Ok(10_000));
        for bad in [
            "25%",
            "101% of keys",
            "25 of keys",
            "1.234% of keys",
            "% of keys",
            "-1% of keys",
        ] {
            assert!(share(bad, "of keys").is_err(), "{bad}");
        }
    }
}
