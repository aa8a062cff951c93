//! A replay's outcome as text, JSON, CSV and Markdown.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::log::Survey;
use crate::outcome::{LimitOutcome, Outcome};
use tollgate_limit::printable::printable;

/// How a report is written. The comments are the help of `tollgate replay --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Format {
    /// For people
    Text,
    /// One JSON document
    Json,
    /// A row for each limit
    Csv,
    /// A table
    Markdown,
}

pub fn replay(survey: &Survey, outcome: &Outcome, format: Format) -> String {
    match format {
        Format::Text => text(survey, outcome),
        Format::Json => format!("{:#}\n", document(survey, outcome)),
        Format::Csv => csv(outcome),
        Format::Markdown => markdown(survey, outcome),
    }
}

/// A moment in RFC 3339, UTC.
pub fn moment(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or_default();
    let moment = jiff::Timestamp::from_microsecond(micros).unwrap_or_default();
    moment.to_string()
}

/// The head of every document: what was read.
pub(crate) fn head(survey: &Survey, warnings: &[String]) -> Value {
    let given = |micros| (survey.requests > 0).then(|| moment(micros));
    json!({
        "lines": survey.lines,
        "unreadable": survey.unreadable,
        "unreadable_samples": survey.samples,
        "requests": survey.requests,
        "from": given(survey.from),
        "to": given(survey.to),
        "formats": survey.kinds.iter().map(|(kind, count)| (kind.name(), *count)).collect::<std::collections::BTreeMap<_, _>>(),
        "warnings": warnings,
    })
}

pub fn document(survey: &Survey, outcome: &Outcome) -> Value {
    let mut document = head(survey, &outcome.warnings);
    document["admitted"] = outcome.admitted.into();
    document["refused"] = outcome.refused.into();
    let recorded = outcome.recorded;
    if recorded.admitted + recorded.refused > 0 {
        document["recorded"] = json!(recorded);
    } else if survey.recorded_refused > 0 {
        document["recorded"] = json!({
            "admitted": survey.requests - survey.recorded_refused,
            "refused": survey.recorded_refused,
        });
    }
    document["limits"] = outcome.limits.iter().map(limit).collect();
    if let Some(against) = &outcome.against {
        document["newly_refused"] = json!(against.newly_refused);
        document["newly_admitted"] = json!(against.newly_admitted);
    }
    document
}

fn limit(limit: &LimitOutcome) -> Value {
    match &limit.not_judged {
        Some(why) => {
            let LimitOutcome {
                name, mode, words, ..
            } = limit;
            json!({ "name": name, "mode": mode, "words": words, "not_judged": why })
        }
        None => json!(limit),
    }
}

pub(crate) fn read_words(survey: &Survey) -> String {
    let mut text = format!(
        "{} lines, {} requests",
        grouped(survey.lines),
        grouped(survey.requests)
    );
    if survey.unreadable > 0 {
        let _ = write!(text, ", {} unreadable", grouped(survey.unreadable));
    }
    text.push('\n');
    if survey.requests > 0 {
        let formats: Vec<&str> = survey.kinds.keys().map(|kind| kind.name()).collect();
        let _ = writeln!(
            text,
            "{} to {} ({})",
            moment(survey.from),
            moment(survey.to),
            formats.join(", ")
        );
    }
    for sample in &survey.samples {
        let _ = writeln!(
            text,
            "  unreadable {}:{}: {}",
            sample.file, sample.line, sample.text
        );
    }
    text
}

fn text(survey: &Survey, outcome: &Outcome) -> String {
    let mut text = read_words(survey);
    let _ = writeln!(
        text,
        "admitted {}, refused {}",
        grouped(outcome.admitted),
        grouped(outcome.refused)
    );
    let recorded = outcome.recorded;
    if recorded.admitted + recorded.refused > 0 {
        let _ = writeln!(
            text,
            "recorded: admitted {}, refused {}; judged otherwise now: {}",
            grouped(recorded.admitted),
            grouped(recorded.refused),
            grouped(recorded.differ)
        );
    }
    text.push_str(&over_time(outcome));
    for limit in &outcome.limits {
        let _ = writeln!(
            text,
            "\nlimit {} ({}): {}",
            limit.name, limit.mode, limit.words
        );
        if let Some(why) = &limit.not_judged {
            let _ = writeln!(text, "  not judged: {why}");
            continue;
        }
        let counts = &limit.counts;
        let _ = writeln!(
            text,
            "  would have admitted {} of {} requests; {} of {} keys lost some",
            grouped(counts.admitted),
            grouped(counts.admitted + counts.refused),
            grouped(counts.keys_refused),
            grouped(counts.keys)
        );
        let _ = writeln!(
            text,
            "  the busiest key asked for {} in a second and {} in a minute",
            grouped(limit.peak.per_second),
            grouped(limit.peak.per_minute)
        );
        if let Some(candidate) = &limit.candidate {
            let _ = writeln!(
                text,
                "  its candidate could not pay {}, of {} keys",
                grouped(candidate.refused),
                grouped(candidate.keys_refused)
            );
        }
        for key in &limit.top {
            let _ = writeln!(
                text,
                "  {} lost {} of {}",
                printable(&key.key),
                grouped(key.refused),
                grouped(key.requests)
            );
        }
    }
    text.push_str(&against(outcome));
    text
}

/// What two policies judge otherwise, for people.
pub fn against(outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(against) = &outcome.against {
        for (what, change) in [
            ("newly refused", &against.newly_refused),
            ("newly admitted", &against.newly_admitted),
        ] {
            let of = change.words();
            let _ = writeln!(text, "\n{what}: {of}");
            for example in &change.examples {
                let (key, requests) = (printable(&example.key), grouped(example.requests));
                let _ = writeln!(text, "  {}: {key} {requests}", example.limit);
            }
        }
    }
    text
}

fn csv(outcome: &Outcome) -> String {
    let mut text = String::from(
        "limit,judged,admitted,refused,keys,keys_refused,peak_per_second,peak_per_minute\n",
    );
    for limit in &outcome.limits {
        let (name, is_judged) = (quoted(&limit.name), limit.not_judged.is_none());
        let figures = limit.figures().map(|figure| figure.to_string()).join(",");
        let _ = writeln!(text, "{name},{is_judged},{figures}");
    }
    text
}

fn markdown(survey: &Survey, outcome: &Outcome) -> String {
    let mut text = format!(
        "{} requests, {} to {}\n\n| limit | admitted | refused | keys | keys refused | peak/second | peak/minute |\n|---|---:|---:|---:|---:|---:|---:|\n",
        survey.requests,
        moment(survey.from),
        moment(survey.to)
    );
    for limit in &outcome.limits {
        let name = cell(&limit.name);
        let figures = match &limit.not_judged {
            Some(why) => format!("not judged: {} | | | | |", cell(why)),
            None => limit.figures().map(|figure| figure.to_string()).join(" | "),
        };
        let _ = writeln!(text, "| {name} | {figures} |");
    }
    if let Some(against) = &outcome.against {
        let _ = writeln!(
            text,
            "\nNewly refused: {}. Newly admitted: {}.",
            against.newly_refused.words(),
            against.newly_admitted.words()
        );
    }
    for warning in &outcome.warnings {
        let _ = writeln!(text, "\n> {}", cell(warning));
    }
    text
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A cell of a table: nothing in it is markup.
fn cell(text: &str) -> String {
    let mut escaped = String::new();
    for c in printable(text).chars() {
        if matches!(
            c,
            '|' | '<' | '>' | '*' | '_' | '`' | '[' | ']' | '\\' | '&'
        ) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// So many of something that has this name: `1 key`, `50,694 keys`.
pub(crate) fn counted(number: u64, one: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {one}{ending}", grouped(number))
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Admitted and refused over time, one column for a stretch of the log.
fn over_time(outcome: &Outcome) -> String {
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
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
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

const WIDTH: usize = 72;
const HEIGHT: u64 = 6;

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn report_numbers_have_their_thousands_apart() {
        assert_eq!(
            [grouped(7), grouped(1_234), grouped(1_234_567)],
            ["7", "1,234", "1,234,567"]
        );
    }
}
