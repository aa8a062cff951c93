//! What an upstream's answer says of its own quota: `RateLimit` and `RateLimit-Policy`
//! (draft-ietf-httpapi-ratelimit-headers, revisions 3 to 11), or `X-RateLimit-Remaining` and `X-RateLimit-Reset`.

use http::header::DATE;
use http::{HeaderMap, HeaderValue};

use tollgate_limit::{Micros, Timestamp};

/// So many units are left for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Requests.
    pub(super) units: u64,
    /// Until the quota is next reset, never zero.
    pub(super) span: Micros,
}

/// What is left by the quota that leaves the least for its time; `None`: the answer says nothing that can be understood.
pub(super) fn left(headers: &HeaderMap, now: Timestamp) -> Option<Left> {
    let lines = headers.get_all("ratelimit").iter().filter_map(text);
    let by_field = lines.flat_map(|line| members(line, ',')).collect::<Vec<_>>();
    if !by_field.is_empty() {
        return revision_7(&by_field).or_else(|| by_name(&by_field, headers));
    }
    LEGACY.iter().find_map(|(remaining, reset)| {
        let units = whole(text(headers.get(*remaining)?)?)?;
        let span = until_reset(text(headers.get(*reset)?)?, headers, now)?;
        Some(Left { units, span })
    })
}

/// `limit=100, remaining=50, reset=30`
fn revision_7(members: &[&str]) -> Option<Left> {
    let value = |name: &str| {
        members.iter().find_map(|member| {
            let (key, value) = member.split(';').next()?.split_once('=')?;
            key.trim().eq_ignore_ascii_case(name).then(|| whole(value))?
        })
    };
    some_time(value("remaining")?, seconds(value("reset")?))
}

/// `"burst";r=5;t=1, "daily";r=900;t=3600`; where `t` is missing the policy of that name says how long its window is.
fn by_name(members: &[&str], headers: &HeaderMap) -> Option<Left> {
    let policies: Vec<&str> =
        headers.get_all("ratelimit-policy").iter().filter_map(text).flat_map(|line| self::members(line, ',')).collect();
    let policy = |name: &str| policies.iter().copied().find(|policy| self::members(policy, ';').first() == Some(&name));
    let mut least: Option<Left> = None;
    for member in members {
        let name = self::members(member, ';').first().copied().unwrap_or_default();
        let policy = policy(name);
        // Bytes, or requests at once, are not what is counted here.
        let other_unit = policy.and_then(|policy| parameter(policy, "qu")).is_some_and(|unit| unit != "\"requests\"");
        let Some(units) = parameter(member, "r").and_then(whole) else { continue };
        let span = parameter(member, "t").or_else(|| policy.and_then(|policy| parameter(policy, "w"))).and_then(whole);
        let told = span.and_then(|span| some_time(units, seconds(span)));
        if let (Some(told), false) = (told, other_unit) {
            least = Some(least.map_or(told, |least| least.scarcer(told)));
        }
    }
    least
}

impl Left {
    /// Whichever leaves less for its time; of two that leave nothing, what lasts longer.
    fn scarcer(self, other: Self) -> Self {
        let one = u128::from(self.units) * u128::from(other.span.0);
        let two = u128::from(other.units) * u128::from(self.span.0);
        match one.cmp(&two) {
            std::cmp::Ordering::Less => self,
            std::cmp::Ordering::Greater => other,
            std::cmp::Ordering::Equal if self.span > other.span => self,
            std::cmp::Ordering::Equal => other,
        }
    }
}

/// How long until a legacy reset, which is seconds, a moment in seconds, or one in milliseconds. A moment is read by the
/// upstream's own clock where the answer tells it.
fn until_reset(written: &str, headers: &HeaderMap, now: Timestamp) -> Option<Micros> {
    let number = whole(written)?;
    let moment = match number {
        0..EPOCH_SECONDS => {
            let fraction =
                u64::from(written.trim().split_once('.').is_some_and(|(_, rest)| rest.contains(|c: char| c > '0')));
            return Some(seconds(number + fraction)).filter(|span| span.0 > 0);
        }
        EPOCH_SECONDS..EPOCH_MILLIS => number.checked_mul(1_000_000)?,
        _ => number.checked_mul(1_000)?,
    };
    let theirs = headers.get(DATE).and_then(text).and_then(|date| httpdate::parse_http_date(date).ok());
    let theirs = theirs.and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
    let now = theirs.map_or(now, |date| Timestamp::from_micros(0).after(Micros::from_secs(date.as_secs())));
    Some(Timestamp::from_micros(moment).since(now)).filter(|span| span.0 > 0)
}

fn some_time(units: u64, span: Micros) -> Option<Left> {
    (span.0 > 0).then_some(Left { units, span })
}

/// The value of a parameter as it is written.
fn parameter<'m>(member: &'m str, name: &str) -> Option<&'m str> {
    members(member, ';').into_iter().skip(1).find_map(|part| {
        let (key, value) = part.split_once('=')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The parts of a list, without those separators that stand within quotes.
fn members(text: &str, separator: char) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = text.split(|character: char| {
        let splits = character == separator && !quoted;
        match character {
            '\\' if quoted && !escaped => escaped = true,
            '"' if !escaped => quoted = !quoted,
            _ => escaped = false,
        }
        splits
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// A number from zero on; what follows a point is left out.
fn whole(text: &str) -> Option<u64> {
    text.trim().split('.').next()?.parse().ok()
}

fn seconds(count: u64) -> Micros {
    Micros(count.saturating_mul(1_000_000))
}

/// What says how much is left, and until when.
const LEGACY: [(&str, &str); 4] = [
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset-after"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
];

/// From here on a reset is no span (30 years) but a moment, in seconds since 1970.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// And from here on in milliseconds.
const EPOCH_MILLIS: u64 = 100_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn told(fields: &[(&'static str, &str)]) -> Option<(u64, u64)> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).expect("a field value"));
        }
        left(&headers, NOW).map(|left| (left.units, left.span.0 / 1_000_000))
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read_or_left(
            field in "[-\"a-z0-9=;, .rtqw\\\\]{0,40}", policy in "[\"a-z0-9=;, ]{0,40}", number in "[0-9.]{0,24}",
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in [("ratelimit", &field), ("ratelimit-policy", &policy)] {
                headers.append(name, HeaderValue::from_str(value).expect("a field value"));
            }
            let by_field = left(&headers, NOW);
            for name in ["x-ratelimit-remaining", "x-ratelimit-reset"] {
                headers.append(name, HeaderValue::from_str(&number).expect("a field value"));
            }
            headers.remove("ratelimit");
            for told in [by_field, left(&headers, NOW)].into_iter().flatten() {
                proptest::prop_assert!(told.span.0 > 0);
            }
        }
    }

    #[test]
    fn every_dialect_is_understood() {
        for (fields, expected) in [
            (&[("ratelimit", "\"default\";r=50;t=30")][..], Some((50, 30))),
            (&[("ratelimit", "\"a,b;c\";r=5;t=1, \"daily\";r=900;t=3600")], Some((900, 3600))),
            (&[("ratelimit", "\"burst\";r=0;t=1"), ("ratelimit", "\"daily\";r=0;t=3600")], Some((0, 3600))),
            (&[("ratelimit", "default;r=7"), ("ratelimit-policy", "default;q=10;w=60")], Some((7, 60))),
            (&[("ratelimit", "\"b\";r=7"), ("ratelimit-policy", "\"a\";q=10;w=60")], None),
            (
                &[
                    ("ratelimit", "\"bytes\";r=1;t=60, \"d\";r=9;t=60"),
                    ("ratelimit-policy", "\"bytes\";q=10;qu=\"content-bytes\";w=60"),
                ],
                Some((9, 60)),
            ),
            (&[("ratelimit", "limit=100, remaining=50, reset=30")], Some((50, 30))),
            (&[("ratelimit-remaining", "3"), ("ratelimit-reset", "9")], Some((3, 9))),
            (&[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "9")], Some((3, 9))),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "1.25")], Some((0, 2))),
            (&[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1800000060")], Some((3, 60))),
            (&[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1800000060000")], Some((3, 60))),
            (
                &[
                    ("x-ratelimit-remaining", "3"),
                    ("x-ratelimit-reset", "1800000060"),
                    ("date", "Fri, 15 Jan 2027 08:00:50 GMT"),
                ],
                Some((3, 10)),
            ),
            (&[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1700000000")], None),
            (&[("x-ratelimit-remaining", "3")], None),
            (&[("ratelimit", "\"d\";r=-1;t=5")], None),
            (&[("ratelimit", "\"d\";r=1;t=0")], None),
            (&[("ratelimit", "\";r=;t=,,;=")], None),
            (&[("ratelimit", "remaining=99999999999999999999999, reset=1")], None),
            (&[], None),
        ] {
            assert_eq!(told(fields), expected, "{fields:?}");
        }
    }
}
