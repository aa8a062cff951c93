//! Reads an upstream's remaining quota from its response: `RateLimit` and `RateLimit-Policy`
//! (draft-ietf-httpapi-ratelimit-headers, revisions 3 to 11), or `X-RateLimit-Remaining` and
//! `X-RateLimit-Reset`; and `Retry-After`. Points in time are converted by the upstream's own
//! clock, if the response contains it.

use http::header::{AGE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};

use tollgate_limit::{Micros, Timestamp};
use tollgate_limiter::Limiter;
use tollgate_policy::Claims;

/// Passes an upstream's request to slow down, or its remaining quota, to those of `limiter` among
/// `claims` that follow the upstream's health. `status` and `headers` are its response's.
pub fn follow(
    limiter: &Limiter,
    claims: &Claims,
    status: StatusCode,
    headers: &HeaderMap,
    now: Timestamp,
) {
    let asks_for_less = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    let mut remaining = None;
    for health in claims
        .charges()
        .iter()
        .filter_map(|charge| limiter.rate_feedback(charge.limit))
    {
        let mut pause = None;
        if asks_for_less {
            pause = retry_after(headers, now);
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

/// The remaining units of a quota, and the time for which they must suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    units: u64,
    /// Until the quota is next reset, never zero.
    span: Micros,
}

/// The quota with the lowest remaining rate; `None`: there is none that can be parsed.
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

/// `"burst";r=5;t=1, "daily";r=900;t=3600`; without `t` the policy of that name says it.
fn by_name(members: &[&str], headers: &HeaderMap) -> Option<Left> {
    let policies = headers.get_all("ratelimit-policy").iter().filter_map(text);
    let policies: Vec<&str> = policies.flat_map(|line| self::members(line, ',')).collect();
    let policy = |name: &str| {
        let mut all = policies.iter().copied();
        all.find(|policy| self::members(policy, ';').first() == Some(&name))
    };
    let mut least: Option<Left> = None;
    for member in members {
        let parts = self::members(member, ';');
        let name = parts.first().copied().unwrap_or_default();
        let policy = policy(name);
        // Skip quotas that count bytes or concurrent requests.
        let unit = policy.and_then(|policy| parameter(policy, "qu"));
        let other_unit = unit.is_some_and(|unit| unit != "\"requests\"");
        let Some(units) = parameter(member, "r").and_then(whole) else {
            continue;
        };
        let span = parameter(member, "t")
            .or_else(|| policy.and_then(|policy| parameter(policy, "w")))
            .and_then(whole);
        let stated = span.and_then(|span| some_time(units, seconds(span)));
        if let (Some(stated), false) = (stated, other_unit) {
            least = Some(least.map_or(stated, |least| least.scarcer(stated)));
        }
    }
    least
}

impl Left {
    /// The quota with the lower remaining rate, or of two empty ones the longer one.
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
    let stated = date(text(dates.next()?)?.trim()).filter(|_| dates.next().is_none())?;
    let age = headers.get(AGE).and_then(text).and_then(whole).unwrap_or(0);
    Some(stated.after(seconds(age)))
}

fn date(text: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(text).ok()?;
    let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::from_micros(0).after(seconds(since.as_secs())))
}

/// The time until a legacy reset: in seconds, or at a Unix time in seconds or milliseconds.
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

fn parameter<'m>(member: &'m str, name: &str) -> Option<&'m str> {
    members(member, ';').into_iter().skip(1).find_map(|part| {
        let (key, value) = part.split_once('=')?;
        (key.trim() == name).then(|| value.trim())
    })
}

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
    let parts = parts.map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
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
mod tests;
