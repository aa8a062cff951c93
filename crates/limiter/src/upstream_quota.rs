//! Reads an upstream's remaining quota from its response: `RateLimit` and `RateLimit-Policy`
//! (draft-ietf-httpapi-ratelimit-headers, revisions 3 to 11), or `X-RateLimit-Remaining` and
//! `X-RateLimit-Reset`; and `Retry-After`. Points in time are converted by the upstream's own
//! clock, if the response contains it.

use http::header::{AGE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::Limiter;
use tollgate_limit::{Micros, Timestamp};
use tollgate_policy::Claims;
use tollgate_store::Store;

impl<S: Store + Send + Sync> Limiter<S> {
    /// Passes an upstream's request to slow down, or its remaining quota, to the limits among
    /// `claims` that follow the upstream's health. `status` and `headers` are its response's.
    pub fn follow(&self, claims: &Claims, status: StatusCode, headers: &HeaderMap, now: Timestamp) {
        let asks_for_less = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        let mut remaining = None;
        for health in claims
            .charges()
            .iter()
            .filter_map(|charge| self.rate_feedback(charge.limit))
        {
            let pause = if asks_for_less {
                retry_after(headers, now)
            } else {
                None
            };
            if asks_for_less {
                health.troubled(now, pause);
            }
            if !health.obeys_quota() {
                continue;
            }
            if let Some(pause) = pause {
                health.held(now, pause);
            }
            match *remaining.get_or_insert_with(|| left(headers, now)) {
                Some(Left { units: 0, span }) => health.held(now, span),
                Some(Left { units, span }) => health.bounded(now, units, span),
                None => {}
            }
        }
    }
}

/// The remaining units of a quota, and the time for which they must suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    /// Requests.
    units: u64,
    /// Until the quota is next reset, never zero.
    span: Micros,
}

/// Returns the quota with the lowest remaining rate; `None` if the response contains no quota that
/// can be parsed.
fn left(headers: &HeaderMap, now: Timestamp) -> Option<Left> {
    let lines = headers.get_all("ratelimit").iter().filter_map(text);
    let by_field = lines
        .flat_map(|line| members(line, ','))
        .collect::<Vec<_>>();
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
            key.trim()
                .eq_ignore_ascii_case(name)
                .then(|| whole(value))?
        })
    };
    some_time(value("remaining")?, seconds(value("reset")?))
}

/// `"burst";r=5;t=1, "daily";r=900;t=3600`; if `t` is missing, the policy of that name gives the
/// window.
fn by_name(members: &[&str], headers: &HeaderMap) -> Option<Left> {
    let policies: Vec<&str> = headers
        .get_all("ratelimit-policy")
        .iter()
        .filter_map(text)
        .flat_map(|line| self::members(line, ','))
        .collect();
    let policy = |name: &str| {
        policies
            .iter()
            .copied()
            .find(|policy| self::members(policy, ';').first() == Some(&name))
    };
    let mut least: Option<Left> = None;
    for member in members {
        let name = self::members(member, ';')
            .first()
            .copied()
            .unwrap_or_default();
        let policy = policy(name);
        // Skip quotas that count bytes or concurrent requests.
        let other_unit = policy
            .and_then(|policy| parameter(policy, "qu"))
            .is_some_and(|unit| unit != "\"requests\"");
        let Some(units) = parameter(member, "r").and_then(whole) else {
            continue;
        };
        let span = parameter(member, "t")
            .or_else(|| policy.and_then(|policy| parameter(policy, "w")))
            .and_then(whole);
        let told = span.and_then(|span| some_time(units, seconds(span)));
        if let (Some(told), false) = (told, other_unit) {
            least = Some(least.map_or(told, |least| least.scarcer(told)));
        }
    }
    least
}

impl Left {
    /// Returns the quota with the lower remaining rate; if both have nothing left, the one that
    /// lasts longer.
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

/// The delay an upstream asks for: seconds, or a date (RFC 9110 section 10.2.3).
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Micros> {
    let text = text(headers.get(RETRY_AFTER)?)?.trim();
    if let Ok(count) = text.parse() {
        return Some(seconds(count));
    }
    Some(until(date(text)?, headers, now))
}

/// The time until a moment that an upstream named. Measured by the upstream's clock (`Date`, and
/// the `Age` of a cached response), because its clock and ours may differ. A clock more than
/// [`CLOCK_OFF_MAX`] from ours is ignored, and a clock that makes the wait longer than
/// [`BELIEVED_MAX`] does not extend it beyond the wait by our clock.
fn until(moment: Timestamp, headers: &HeaderMap, now: Timestamp) -> Micros {
    let by_ours = moment.since(now);
    let Some(theirs) = their_now(headers) else {
        return by_ours;
    };
    if theirs.since(now).max(now.since(theirs)) > CLOCK_OFF_MAX {
        return by_ours;
    }
    let by_theirs = moment.since(theirs);
    if by_theirs > BELIEVED_MAX {
        by_theirs.min(by_ours)
    } else {
        by_theirs
    }
}

/// The time of the upstream's clock; `None` if the response contains no date, or several.
fn their_now(headers: &HeaderMap) -> Option<Timestamp> {
    let mut dates = headers.get_all(DATE).iter();
    let told = date(text(dates.next()?)?.trim()).filter(|_| dates.next().is_none())?;
    let age = headers.get(AGE).and_then(text).and_then(whole).unwrap_or(0);
    Some(told.after(seconds(age)))
}

fn date(text: &str) -> Option<Timestamp> {
    let since = httpdate::parse_http_date(text)
        .ok()?
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    Some(Timestamp::from_micros(0).after(seconds(since.as_secs())))
}

/// The time until a legacy reset, which is given in seconds, as a Unix time in seconds, or as one
/// in milliseconds.
fn until_reset(written: &str, headers: &HeaderMap, now: Timestamp) -> Option<Micros> {
    let number = whole(written)?;
    let moment = match number {
        0..EPOCH_SECONDS => {
            let fraction = u64::from(
                written
                    .trim()
                    .split_once('.')
                    .is_some_and(|(_, rest)| rest.contains(|c: char| c > '0')),
            );
            return Some(seconds(number + fraction)).filter(|span| span.0 > 0);
        }
        EPOCH_SECONDS..EPOCH_MILLIS => number.checked_mul(1_000_000)?,
        _ => number.checked_mul(1_000)?,
    };
    Some(until(Timestamp::from_micros(moment), headers, now)).filter(|span| span.0 > 0)
}

fn some_time(units: u64, span: Micros) -> Option<Left> {
    (span.0 > 0).then_some(Left { units, span })
}

/// The raw value of a parameter.
fn parameter<'m>(member: &'m str, name: &str) -> Option<&'m str> {
    members(member, ';').into_iter().skip(1).find_map(|part| {
        let (key, value) = part.split_once('=')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Splits a list at its separators, except those within quotes.
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
    parts
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// Parses a non-negative number; digits after a decimal point are ignored.
fn whole(text: &str) -> Option<u64> {
    text.trim().split('.').next()?.parse().ok()
}

fn seconds(count: u64) -> Micros {
    Micros(count.saturating_mul(1_000_000))
}

/// Legacy headers: the remaining units, and their reset.
const LEGACY: [(&str, &str); 4] = [
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset-after"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
];

/// The largest believable clock difference: more than any time zone that was mistaken for UTC.
const CLOCK_OFF_MAX: Micros = Micros::from_secs(86_400);
/// The longest wait that is obeyed before a request is tried.
const BELIEVED_MAX: Micros = Micros::from_secs(3_600);

/// From this value on (30 years) a reset is not a duration but a Unix time in seconds.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// From this value on it is a Unix time in milliseconds.
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
    fn retry_after_date_is_relative_to_the_date_header_within_bounds() {
        // Ours is 08:00:00 on 15 January 2027, a Friday.
        let on = |time: &str| format!("Fri, 15 Jan 2027 {time} GMT");
        let wait = |after: &str, fields: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields.iter().chain([&("retry-after", after)]) {
                headers.append(*name, HeaderValue::from_str(value).expect("a field value"));
            }
            retry_after(&headers, NOW).map(|wait| wait.0 / 1_000_000)
        };
        assert_eq!(
            wait("7", &[("date", &on("09:00:00"))]),
            Some(7),
            "seconds are seconds"
        );
        assert_eq!(
            wait(&on("08:00:10"), &[]),
            Some(10),
            "no Date: by our clock"
        );
        assert_eq!(
            wait(&on("09:00:10"), &[("date", &on("09:00:00"))]),
            Some(10),
            "an hour ahead"
        );
        assert_eq!(
            wait(&on("07:00:10"), &[("date", &on("07:00:00"))]),
            Some(10),
            "an hour behind"
        );
        assert_eq!(
            wait(&on("09:00:00"), &[("date", &on("09:00:00"))]),
            Some(0),
            "now"
        );
        assert_eq!(
            wait(&on("09:00:30"), &[("date", &on("09:00:00")), ("age", "20")]),
            Some(10),
            "kept by a cache"
        );
        for (date, why) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", "fifty years behind"),
            ("Tue, 15 Jan 2137 08:00:00 GMT", "a century ahead"),
            ("soon", "none at all"),
            (&*on("05:00:00"), "it would make the wait three hours"),
        ] {
            assert_eq!(wait(&on("08:00:10"), &[("date", date)]), Some(10), "{why}");
        }
        let two = [("date", &*on("09:00:00")), ("date", &*on("07:00:00"))];
        assert_eq!(wait(&on("08:00:10"), &two), Some(10), "two clocks are none");
        assert_eq!(wait("tomorrow", &[]), None);
        // The same clock rules a reset that is a moment.
        for (date, left) in [
            (on("09:00:00"), 3_600),
            (on("08:00:10"), 7_190),
            (on("01:00:00"), 7_200),
        ] {
            let fields = [
                ("x-ratelimit-remaining", "3"),
                ("x-ratelimit-reset", "1800007200"),
                ("date", &*date),
            ];
            assert_eq!(told(&fields), Some((3, left)), "{date}");
        }
    }

    #[test]
    fn every_dialect_is_understood() {
        for (fields, expected) in [
            (
                &[("ratelimit", "\"default\";r=50;t=30")][..],
                Some((50, 30)),
            ),
            (
                &[("ratelimit", "\"a,b;c\";r=5;t=1, \"daily\";r=900;t=3600")],
                Some((900, 3600)),
            ),
            (
                &[
                    ("ratelimit", "\"burst\";r=0;t=1"),
                    ("ratelimit", "\"daily\";r=0;t=3600"),
                ],
                Some((0, 3600)),
            ),
            (
                &[
                    ("ratelimit", "default;r=7"),
                    ("ratelimit-policy", "default;q=10;w=60"),
                ],
                Some((7, 60)),
            ),
            (
                &[
                    ("ratelimit", "\"b\";r=7"),
                    ("ratelimit-policy", "\"a\";q=10;w=60"),
                ],
                None,
            ),
            (
                &[
                    ("ratelimit", "\"bytes\";r=1;t=60, \"d\";r=9;t=60"),
                    (
                        "ratelimit-policy",
                        "\"bytes\";q=10;qu=\"content-bytes\";w=60",
                    ),
                ],
                Some((9, 60)),
            ),
            (
                &[("ratelimit", "limit=100, remaining=50, reset=30")],
                Some((50, 30)),
            ),
            (
                &[("ratelimit-remaining", "3"), ("ratelimit-reset", "9")],
                Some((3, 9)),
            ),
            (
                &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "9")],
                Some((3, 9)),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset-after", "1.25"),
                ],
                Some((0, 2)),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "3"),
                    ("x-ratelimit-reset", "1800000060"),
                ],
                Some((3, 60)),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "3"),
                    ("x-ratelimit-reset", "1800000060000"),
                ],
                Some((3, 60)),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "3"),
                    ("x-ratelimit-reset", "1800000060"),
                    ("date", "Fri, 15 Jan 2027 08:00:50 GMT"),
                ],
                Some((3, 10)),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "3"),
                    ("x-ratelimit-reset", "1700000000"),
                ],
                None,
            ),
            (&[("x-ratelimit-remaining", "3")], None),
            (&[("ratelimit", "\"d\";r=-1;t=5")], None),
            (&[("ratelimit", "\"d\";r=1;t=0")], None),
            (&[("ratelimit", "\";r=;t=,,;=")], None),
            (
                &[("ratelimit", "remaining=99999999999999999999999, reset=1")],
                None,
            ),
            (&[], None),
        ] {
            assert_eq!(told(fields), expected, "{fields:?}");
        }
    }
}
