use std::ops::RangeInclusive;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::context::Context;
use super::defs::Defs;
use super::problem::{listed, nearest};
use super::reader::{Node, Read, mismatch};
use super::slips;
use super::text::Text;

impl Read for bool {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        if let DeValue::Boolean(value) = node.value {
            return Some(*value);
        }
        from_variable(node, context, "`true` or `false`")
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "type": "boolean" })
    }
}

/// Whole numbers, zero or more. A number that is too large for its type becomes the largest: every
/// key of such a type has a range below that.
macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Read for $type {
            type Value = Self;

            fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
                whole(node, context).map(|number| Self::try_from(number).unwrap_or(Self::MAX))
            }

            fn schema(_: &mut Defs) -> Value {
                json!({ "type": "integer", "minimum": 0 })
            }

            fn outside(value: &Self, range: &RangeInclusive<u64>) -> Option<String> {
                outside(u64::try_from(*value).unwrap_or(u64::MAX), range, |bound| bound.to_string())
            }
        }
    )*};
}

numbers!(u64 usize u32 u16 u8);

fn whole(node: Node<'_>, context: &mut Context<'_>) -> Option<u64> {
    let DeValue::Integer(number) = node.value else {
        return from_variable(node, context, "a whole number");
    };
    let read = u64::from_str_radix(number.as_str(), number.radix()).ok();
    if read.is_none() {
        let label = if number.as_str().starts_with('-') {
            "negative"
        } else {
            "more than 18446744073709551615"
        };
        let title = format!("`{}` must be a whole number, zero or more", context.name());
        context.error(title, node.place, label);
    }
    read
}

/// Why `value` lies outside `range`, its bounds in words.
pub(crate) fn outside(
    value: u64,
    range: &RangeInclusive<u64>,
    words: impl Fn(u64) -> String,
) -> Option<String> {
    if value < *range.start() {
        Some(format!("the least is {}", words(*range.start())))
    } else if value > *range.end() {
        Some(format!("the most is {}", words(*range.end())))
    } else {
        None
    }
}

/// A number or boolean from the environment, which is written as a string with a variable.
pub(crate) fn from_variable<T: std::str::FromStr>(
    node: Node<'_>,
    context: &mut Context<'_>,
    wanted: &str,
) -> Option<T> {
    match node.value {
        DeValue::String(written) if written.contains("${") => {}
        other => {
            mismatch(node, wanted, other, context);
            return None;
        }
    }
    let text = Text::read_as(node, context, wanted)?;
    let read = text.value.value.trim().parse().ok();
    if read.is_none() {
        // The value is not shown: it may be a secret that was meant for another variable.
        let title = format!("`{}` must be {wanted}", context.name());
        context.error(title, node.place, "the environment says something else");
    }
    read
}

/// The index of the chosen word; reports a text that is none of `words`.
pub(crate) fn choose(words: &[&str], node: Node<'_>, context: &mut Context<'_>) -> Option<usize> {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let wanted = match quoted.as_slice() {
        [one, other] => format!("{one} or {other}"),
        all => format!("one of {}", all.join(", ")),
    };
    let text = Text::read_as(node, context, &wanted)?;
    let word = text.as_str();
    let chosen = words.iter().position(|known| *known == word);
    if chosen.is_none() {
        let label = nearest(word, words.iter().copied()).map_or_else(
            || "no such choice".to_owned(),
            |near| format!("did you mean \"{near}\"?"),
        );
        let help = slips::of_word(&context.keys, word);
        let title = format!("`{}` cannot be \"{word}\"", context.name());
        context
            .error(title, node.place, label)
            .maybe_help(help)
            .note(format!("the choices are {}", listed(words.iter().copied())));
    }
    chosen
}

/// A choice between words, as the file writes it.
pub trait Word: PartialEq + Sized + 'static {
    const WORDS: &'static [(Self, &'static str)];

    fn word(&self) -> &'static str {
        let known = Self::WORDS.iter().find(|(choice, _)| choice == self);
        known.map_or("", |(_, word)| word)
    }
}
