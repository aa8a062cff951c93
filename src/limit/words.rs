//! Spans, rates and limits said in words.

use super::quota::Quota;
use super::time::Micros;

/// A span as a person writes it: "600 ms", "1 minute", "36 s", "1 day".
pub fn span(span: Micros) -> String {
    let micros = span.0;
    for (unit, name) in NAMED {
        if micros == unit {
            return format!("1 {name}");
        }
    }
    for (unit, name) in NAMED {
        if micros >= unit && micros % unit == 0 {
            return format!("{} {name}s", micros / unit);
        }
    }
    let (unit, name) = SHORT.into_iter().find(|(unit, _)| micros >= *unit).unwrap_or((1, "us"));
    if micros % unit == 0 {
        return format!("{} {name}", micros / unit);
    }
    // Three decimals; cut, not rounded, and so marked.
    let thousandths = micros % unit * 1_000 / unit;
    let exact = micros % unit * 1_000 % unit == 0;
    let fraction = format!("{thousandths:03}");
    let number = format!("{}.{}", micros / unit, fraction.trim_end_matches('0'));
    let number = number.trim_end_matches('.');
    if exact { format!("{number} {name}") } else { format!("about {number} {name}") }
}

/// A period after "in any": "minute", "second", "10 s".
pub fn period(period: Micros) -> String {
    NAMED.into_iter().find(|(unit, _)| *unit == period.0).map_or_else(|| span(period), |(_, name)| name.to_owned())
}

/// The pace of a rate: "one every 600 ms", "10 every 1 us".
pub fn pace(quota: &Quota) -> String {
    if quota.n == 1 {
        return format!("one every {}", span(Micros(quota.p)));
    }
    let per_second = u128::from(quota.amount) * 1_000_000;
    if per_second % u128::from(quota.period.0) == 0 {
        return format!("{} a second, evenly", per_second / u128::from(quota.period.0));
    }
    format!("{} every {}, evenly", quota.amount, span(quota.period))
}

const NAMED: [(u64, &str); 5] = [
    (7 * 86_400_000_000, "week"),
    (86_400_000_000, "day"),
    (3_600_000_000, "hour"),
    (60_000_000, "minute"),
    (1_000_000, "second"),
];

const SHORT: [(u64, &str); 6] = [
    (86_400_000_000, "days"),
    (3_600_000_000, "hours"),
    (60_000_000, "minutes"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_a_person_writes_them() {
        for (micros, words) in [
            (1, "1 us"),
            (1_500, "1.5 ms"),
            (600_000, "600 ms"),
            (1_000_000, "1 second"),
            (1_200_000, "1.2 s"),
            (10_000_000, "10 seconds"),
            (60_000_000, "1 minute"),
            (90_000_000, "90 seconds"),
            (86_400_000_000, "1 day"),
            (1_333_333, "about 1.333 s"),
            (1_000_001, "about 1 s"),
        ] {
            assert_eq!(span(Micros(micros)), words, "{micros}");
        }
    }
}
