//! Pictures for a terminal: plain text, nothing of a log in it.

use std::fmt::Write;

use crate::outcome::Outcome;

/// Admitted and refused over time, one column for a stretch of the log.
pub(crate) fn over_time(outcome: &Outcome) -> String {
    let width = WIDTH.min(outcome.series.len());
    let total: u64 = outcome.series.iter().flatten().sum();
    if width < 2 || total == 0 {
        return String::new();
    }
    let mut columns = vec![[0_u64; 2]; width];
    for (place, counts) in outcome.series.iter().enumerate() {
        let column = &mut columns[place * width / outcome.series.len()];
        column[0] += counts[0];
        column[1] += counts[1];
    }
    let tallest = columns
        .iter()
        .map(|[admitted, refused]| admitted + refused)
        .max();
    let most = tallest.unwrap_or(1).max(1);
    let mut text = String::from("\n");
    for row in (0..HEIGHT).rev() {
        for [admitted, refused] in &columns {
            // A column is filled from below: what was admitted, and what was refused on top of it.
            let level = |count: u64| (count * HEIGHT * 2).div_ceil(most);
            let (low, high) = (level(*admitted), level(admitted + refused));
            let at = row * 2;
            text.push(match () {
                () if low > at + 1 => '\u{2588}',
                () if high > at && *refused > 0 && high > low => '\u{2593}',
                () if low > at => '\u{2584}',
                () => ' ',
            });
        }
        end_line(&mut text);
    }
    let column = outcome.step * (outcome.series.len() as u64).div_ceil(width as u64);
    let column = tollgate_limit::words::span(tollgate_limit::Micros(column));
    let _ = writeln!(
        text,
        "{}\n\u{2588} admitted  \u{2593} refused; the tallest column is {most} requests in {column}",
        "\u{2500}".repeat(width)
    );
    text
}

fn end_line(text: &mut String) {
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

const WIDTH: usize = 72;
const HEIGHT: u64 = 6;

/// Rate x burst: how many keys each refuses, today's numbers and the chosen ones marked.
pub(crate) fn map(suggestion: &crate::suggest::Suggestion) -> String {
    let map = &suggestion.map;
    let mut text = String::from("Keys refused, by burst (rows) and rate (columns)\n");
    for (row, burst) in map.bursts.iter().enumerate().rev() {
        let _ = write!(text, "{burst:>9} ");
        for (column, rate) in map.rates.iter().enumerate() {
            let above = map.bursts.get(row + 1).copied().unwrap_or(u64::MAX);
            let here = |name: &str| {
                let choice = suggestion.choice(name);
                choice.is_some_and(|choice| {
                    choice.rate == rate.text && (*burst..above).contains(&choice.burst)
                })
            };
            let refused = map.refused[row][column];
            text.push(match () {
                () if here("today") => 'X',
                () if here("balanced") => 'o',
                () if refused == 0 => ' ',
                () if refused * 1_000 <= suggestion.keys => '\u{2591}',
                () if refused * 100 <= suggestion.keys => '\u{2592}',
                () => '\u{2593}',
            });
            text.push(' ');
        }
        end_line(&mut text);
    }
    if let (Some(first), Some(last)) = (map.rates.first(), map.rates.last()) {
        let _ = writeln!(
            text,
            "          {} to {}; blank no key, \u{2591} up to 0.1 %, \u{2592} up to 1 %, \u{2593} more; X today, o balanced",
            first.text, last.text
        );
    }
    text
}
