//! Parses durations, sizes and shares: numbers with mandatory units.

use crate::reading::{Flaw, nearest};
use tollgate_limit::Micros;

/// Parses a duration: numbers with units, the largest first, none twice.
pub(crate) fn duration(text: &str) -> Result<Micros, Flaw> {
    const HELP: &str = "\"10s\", \"500ms\" and \"1h30m\" are durations";
    const UNITS: [&str; 7] = ["us", "ms", "s", "m", "h", "d", "w"];
    const FRACTION: &str = "fractions are not known: use a smaller unit";
    if text.is_empty() {
        let flaw = Flaw::new(0, 0, "an empty duration", "write a number and a unit");
        return Err(flaw.help(HELP));
    }
    let wrong = || format!("`{text}` is not a duration");
    let (mut total, mut smallest, mut at) = (0_u64, u64::MAX, 0);
    while at < text.len() {
        let rest = &text[at..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let word = &after[..letters];
        let end = at + digits + letters;
        if digits == 0 || letters == 0 {
            if after.starts_with(['.', ',']) {
                let flaw = Flaw::new(at, text.len(), wrong(), FRACTION);
                return Err(if digits == 0 { flaw.help(HELP) } else { flaw });
            }
            if digits == 0 {
                let flaw = Flaw::new(at, text.len(), wrong(), "a number was expected here");
                return Err(flaw.help(HELP));
            }
            let title = format!("`{text}` has no unit");
            let help = format!("the units are us, ms, s, m, h, d and w: \"{number}s\" is seconds");
            return Err(Flaw::new(at, end, title, "a number without a unit").help(help));
        }
        let Some(unit) = unit(word) else {
            let near = nearest(word, UNITS);
            let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
            let title = format!("`{word}` is not a unit of time");
            let help = format!("{near}the units are us, ms, s, m, h, d and w");
            return Err(Flaw::new(at + digits, end, title, "no such unit").help(help));
        };
        if unit >= smallest {
            let label = "units go from large to small, each once";
            return Err(Flaw::new(at, end, wrong(), label));
        }
        smallest = unit;
        let part = number.parse::<u64>().ok();
        let part = part.and_then(|count| count.checked_mul(unit));
        total = part
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| {
                let title = format!("`{text}` is too long a time");
                Flaw::new(at, end, title, "more than 500,000 years")
            })?;
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

/// Parses a size; `None`: unlimited.
pub(crate) fn size(text: &str) -> Result<Option<u64>, Flaw> {
    if text == "unlimited" {
        return Ok(None);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, word) = text.split_at(digits);
    let flaw = |start, title, label| {
        Flaw::new(start, text.len(), title, label).help("\"64KiB\", \"10MB\" and \"unlimited\" are sizes; the units are B, kB, KiB, MB, MiB, GB and GiB")
    };
    if number.is_empty() {
        let title = format!("`{text}` is not a size");
        return Err(flaw(0, title, "a number was expected here"));
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
            return Err(flaw(
                0,
                format!("`{text}` has no unit"),
                "a number without a unit",
            ));
        }
        other => {
            let title = format!("`{other}` is not a unit of size");
            return Err(flaw(digits, title, "no such unit"));
        }
    };
    let bytes = number.parse::<u64>().ok();
    let bytes = bytes.and_then(|count| count.checked_mul(factor));
    bytes.map(Some).ok_or_else(|| {
        let title = format!("`{text}` is too large a size");
        Flaw::new(0, text.len(), title, "more than 2^64 bytes")
    })
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

pub(crate) fn refusals(text: &str) -> Result<(u32, Micros), Flaw> {
    let flaw = |start, end, label: &str| {
        let title = format!("`{text}` is not a number of refusals in a span");
        Flaw::new(start, end, title, label).help("\"20 refusals in 1m\" is a number of refusals")
    };
    let parts = [" refusals in ", " refusal in "].map(|words| text.split_once(words));
    let Some((number, span)) = parts.into_iter().flatten().next() else {
        let label = "a number, `refusals in` and a duration were expected";
        return Err(flaw(0, text.len(), label));
    };
    let digits = number.trim_end();
    // `parse` takes a sign, too.
    let is_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    let count = digits.parse::<u32>().ok().filter(|_| is_digits);
    let Some(count) = count.filter(|count| (1..=REFUSALS_MAX).contains(count)) else {
        let label = format!("a number from 1 to {REFUSALS_MAX} was expected here");
        return Err(flaw(0, number.len(), &label));
    };
    let start = text.len() - span.len();
    let span = duration(span).map_err(|flaw| flaw.shifted(start))?;
    if !(1_000_000..=SPAN_MAX).contains(&span.0) {
        let label = "the span is a second at least and a day at most";
        return Err(flaw(start, text.len(), label));
    }
    Ok((count, span))
}

const REFUSALS_MAX: u32 = 1_000_000;

/// The longest span in which a penalty counts, in microseconds.
const SPAN_MAX: u64 = 86_400_000_000;

/// Parses a share of something: a percentage with at most two decimals.
pub(crate) fn share(text: &str, of: &str) -> Result<u16, Flaw> {
    let help = format!("\"25% {of}\" and \"0.5% {of}\" are shares");
    let flaw = |start: usize, end: usize, label: &str| {
        Flaw::new(start, end, format!("`{text}` is not a share"), label).help(help.clone())
    };
    let Some((number, rest)) = text.split_once('%') else {
        return Err(flaw(0, text.len(), "a percentage was expected"));
    };
    let percent = number.len();
    if rest.trim() != of {
        let label = format!("`{of}` was expected here");
        return Err(flaw(percent + 1, text.len().max(percent + 2), &label));
    }
    let millionths = micro_units(number.trim()).filter(|micros| micros % 10_000 == 0);
    let Some(millionths) = millionths else {
        let label = "a number with at most two decimals was expected";
        return Err(flaw(0, percent, label));
    };
    let hundredths = u16::try_from(millionths / 10_000).ok();
    let hundredths = hundredths.filter(|hundredths| *hundredths <= 10_000);
    hundredths.ok_or_else(|| flaw(0, percent + 1, "more than all of them"))
}

/// Millionths of a decimal number: `2.50` is 2500000. `None`: it is none, has more than six digits
/// after the point, or is too large.
pub(crate) fn micro_units(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(1_000_000)?;
    let fraction = format!("{fraction:0<6}").parse::<u64>().ok()?;
    whole.checked_add(fraction)
}

#[cfg(test)]
mod tests;
