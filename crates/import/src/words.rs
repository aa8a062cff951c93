//! Numbers and texts as files and reports have them.

use std::net::IpAddr;

use ipnet::IpNet;

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

pub(crate) fn number(text: &str) -> Option<u64> {
    let number = text.parse().ok();
    number.filter(|number| *number <= 1_000_000_000)
}

pub(crate) fn network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

pub(crate) fn is_of_limiting(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace(['-', '_'], "");
    LIMITING.iter().any(|word| text.contains(word))
}

/// Whether it says where the address of a client comes from.
pub(crate) fn is_of_address(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace(['-', '_'], "");
    ADDRESS.iter().any(|word| text.contains(word))
}

const LIMITING: [&str; 12] = [
    "limit",
    "middleware",
    "plugins",
    "throttl",
    "quota",
    "burst",
    "inflight",
    "concurren",
    "maxconn",
    "ratepersecond",
    "requestsper",
    "spikearrest",
];
const ADDRESS: [&str; 5] = [
    "forwarded",
    "realip",
    "proxyprotocol",
    "trustedip",
    "ipstrategy",
];

/// A rate as `gateway.toml` writes it.
pub(crate) fn rate(amount: u64, period: u64) -> String {
    let unit = match period {
        SECOND => "second".to_owned(),
        MINUTE => "minute".to_owned(),
        HOUR => "hour".to_owned(),
        DAY => "day".to_owned(),
        _ => duration(period),
    };
    format!("{amount}/{unit}")
}

/// A duration as `gateway.toml` writes it, in its largest whole unit.
pub(crate) fn duration(micros: u64) -> String {
    let is_whole = |(_, size): &(&str, u64)| micros > 0 && micros.is_multiple_of(*size);
    let (unit, size) = UNITS.into_iter().find(is_whole).unwrap_or(("us", 1));
    format!("{}{unit}", micros / size)
}

/// Units of time with their microseconds, the largest first.
const UNITS: [(&str, u64); 6] = [
    ("d", DAY),
    ("h", HOUR),
    ("m", MINUTE),
    ("s", SECOND),
    ("ms", 1_000),
    ("us", 1),
];

/// A duration as Go writes it: `1m30s`, `250ms`, `1.5s`. Below a microsecond it is cut off.
pub(crate) fn go_duration(text: &str) -> Option<u64> {
    let text = text.trim();
    if text == "0" {
        return Some(0);
    }
    let duration: jiff::SignedDuration = text.parse().ok()?;
    let micros = u64::try_from(duration.as_micros()).ok()?;
    duration.is_positive().then_some(micros)
}

/// A text of a stranger for one line: control and direction characters become spaces, and what is too long is cut.
pub(crate) fn plain(text: &str, most: usize) -> String {
    let is_odd = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut line = String::new();
    for (count, letter) in text.trim().chars().enumerate() {
        if count == most {
            line.push('…');
            break;
        }
        line.push(if is_odd(letter) { ' ' } else { letter });
    }
    line.truncate(line.trim_end().len());
    line
}

/// `part` of `whole` in percent, with one decimal, two below 1.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let whole = u128::from(whole.max(1));
    let hundredths = (u128::from(part) * 10_000 + whole / 2) / whole;
    match hundredths {
        0 => "less than 0.01 %".to_owned(),
        1..100 => format!("0.{:02} %", hundredths),
        _ => format!("{}.{} %", hundredths / 100, hundredths % 100 / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_writes_them() {
        assert_eq!(go_duration("1m30s"), Some(90 * SECOND));
        assert_eq!(go_duration("1.5s"), Some(1_500_000));
        assert_eq!(go_duration("250ms"), Some(250_000));
        for bad in [
            "",
            "5",
            "1d",
            "s",
            "1x",
            "-1s",
            "1..5s",
            "99999999999999999h",
        ] {
            assert_eq!(go_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_and_rates_write_as_the_file_has_them() {
        assert_eq!(rate(100, MINUTE), "100/minute");
        assert_eq!(rate(5, 10 * SECOND), "5/10s");
        assert_eq!(duration(1_500_000), "1500ms");
        assert_eq!(duration(333_334), "333334us");
        assert_eq!(percent(4, 1_000), "0.40 %");
        assert_eq!(percent(417, 10_000), "4.1 %");
    }

    #[test]
    fn texts_of_strangers_hold_one_line() {
        assert_eq!(plain("a\nb\u{202e}c\u{7}", 80), "a b c");
        assert_eq!(plain(&"x".repeat(90), 10), format!("{}…", "x".repeat(10)));
    }
}
