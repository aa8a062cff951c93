//! Durations, sizes, shares and counts: numbers with mandatory units.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::problem::{Problem, nearest};
use super::reader::{Node, Read, Reader};
use super::scalar::{Text, schema_of};
use super::source::At;
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

    /// Converts the flaw to a problem in the string `text`.
    pub(crate) fn problem(self, text: &At<Text>) -> Problem {
        Problem::error(self.title)
            .at(text.part(self.start, self.end), self.label)
            .maybe_help(self.help)
    }
}

/// Reads a string and parses it; a mistake is reported at its own place.
pub(crate) fn parsed<T>(
    node: Node<'_>,
    reader: &mut Reader<'_>,
    wanted: &str,
    parse: impl FnOnce(&str) -> Result<T, Flaw>,
) -> Option<T> {
    if let DeValue::Integer(number) = node.value {
        let name = reader.name();
        let problem = Problem::error(format!("`{name}` must be {wanted}"))
            .at(node.place, "a number without a unit")
            .help(format!(
                "units are mandatory: write {wanted}, not {number}{}",
                {
                    // For a rate, a bare number most often means requests per second.
                    if reader.path.last().is_some_and(|key| key == "rate") {
                        format!(": rate = \"{number}/second\", or rate = \"{number}/minute\"")
                    } else {
                        String::new()
                    }
                }
            ));
        reader.problems.push(problem);
        return None;
    }
    let text = At {
        value: Text::read_as(node, reader, wanted)?,
        place: node.place,
    };
    match parse(text.as_str()) {
        Ok(value) => Some(value),
        Err(flaw) => {
            reader.problems.push(flaw.problem(&text));
            None
        }
    }
}

/// A duration: `"10s"`, `"1h30m"`, `"500ms"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Micros);

impl Read for Time {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        parsed(
            node,
            reader,
            "a duration like \"10s\" or \"1h30m\"",
            duration,
        )
        .map(Self)
    }
}

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

/// A size in bytes: `"64KiB"`, or `"unlimited"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// This many bytes.
    Bytes(u64),
    /// No bound.
    Unlimited,
}

impl Read for Size {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        parsed(node, reader, "a size like \"64KiB\" or \"unlimited\"", size)
    }
}

/// Parses a size.
pub(crate) fn size(text: &str) -> Result<Size, Flaw> {
    if text == "unlimited" {
        return Ok(Size::Unlimited);
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
        .map(Size::Bytes)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) u16);

impl Read for Share {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        parsed(node, reader, "a share like \"25% of keys\"", |text| {
            share(text, "of keys")
        })
        .map(Self)
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

/// `"auto"`, or a number of one or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Computed by the gateway.
    Auto,
    /// Exactly this many.
    Exactly(u64),
}

impl Read for Count {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        if matches!(node.value, DeValue::Integer(_)) {
            let count = u64::read(node, reader)?;
            if count == 0 {
                let problem = Problem::error(format!("`{}` must be at least 1", reader.name()))
                    .at(node.place, "zero is not \"auto\"")
                    .help("write \"auto\" to have it worked out");
                reader.problems.push(problem);
                return None;
            }
            return Some(Self::Exactly(count));
        }
        let text = Text::read_as(node, reader, "\"auto\" or a number")?;
        if text.value == "auto" {
            return Some(Self::Auto);
        }
        // A number from the environment is a string here.
        let read = text.value.parse().ok().filter(|count| *count > 0);
        if read.is_none() {
            let problem =
                Problem::error(format!("`{}` must be \"auto\" or a number", reader.name()))
                    .at(node.place, "neither");
            reader.problems.push(problem);
        }
        read.map(Self::Exactly)
    }
}

schema_of!(Time, "Time", _generator => json_schema!({ "type": "string", "pattern": TIME, "examples": ["10s", "1h30m", "500ms"] }));
schema_of!(Size, "Size", _generator => json_schema!({ "type": "string", "pattern": "^([0-9]+ *(B|kB|KB|KiB|MB|MiB|GB|GiB)|unlimited)$", "examples": ["64KiB", "10MB", "unlimited"] }));
schema_of!(Share, "Share", _generator => json_schema!({ "type": "string", "pattern": r"^ *[0-9]+(\.[0-9]{1,2})? *% *of keys *$", "examples": ["25% of keys"] }));
schema_of!(Count, "Count", _generator => json_schema!({ "anyOf": [{ "type": "string", "enum": ["auto"] }, { "type": "integer", "minimum": 1 }] }));

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
        assert_eq!(size("64KiB"), Ok(Size::Bytes(65_536)));
        assert_eq!(size("10 MB"), Ok(Size::Bytes(10_000_000)));
        assert_eq!(size("unlimited"), Ok(Size::Unlimited));
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
