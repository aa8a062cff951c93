//! The arithmetic of `rateLimit`: a token bucket that lets a request wait for half a token at most.

use crate::draft::{Counting, Difference, Limit, either, upstream};
use crate::nginx::numbers::HELD;
use crate::tree::Node;
use crate::words::{self, SECOND, duration, go_duration};

/// The limit; `None`: `average` is 0.
pub(super) fn limit(rate: &Node) -> Result<Option<(Limit, Vec<Difference>)>, String> {
    let number = |key: &str, default: u64| match rate.text_at(key) {
        None => Ok(default),
        Some(text) => words::number(text).ok_or_else(|| format!("`{key}` is not understood")),
    };
    let (average, burst) = (number("average", 0)?, number("burst", 1)?.max(1));
    let period = match rate.text_at("period") {
        None => SECOND,
        // A bare number counts seconds.
        Some(text) => match text.parse::<u64>() {
            Ok(seconds) => seconds.checked_mul(SECOND),
            Err(_) => go_duration(text),
        }
        .ok_or("`period` is not understood")?,
    };
    if average == 0 {
        return Ok(None);
    }
    let period = if period == 0 { SECOND } else { period };
    let mut limit = Limit::new(Counting::TokenBucket, average, period);
    limit.burst = Some(burst);
    let mut differences = Vec::new();
    // Whole requests per second, and the longest wait in nanoseconds.
    let (units, span) = (u128::from(average), u128::from(period));
    let per_second = units * u128::from(SECOND) / span;
    let wait = match per_second {
        0 => 500_000_000,
        whole => 1_000_000_000 / (whole * 2),
    };
    limit.max_wait = u64::try_from(wait / 1_000).unwrap_or(0);
    if !period.is_multiple_of(average) {
        differences.push(upstream(HELD));
    }
    if !wait.is_multiple_of(1_000) || units / gcd(units, span) >= 1_000 {
        differences.push(either(format!(
            "Traefik lets a request wait {wait} ns at most and counts in floating point; here it is {} and exact",
            duration(limit.max_wait)
        )));
    }
    // Traefik forgets a bucket that was idle for a second, below one request a second for the time of one request.
    if per_second == 0 || (2 * u128::from(burst) + 1) * span > 2 * units * u128::from(SECOND) {
        let idle = match per_second {
            0 => span / units / u128::from(SECOND),
            _ => 1,
        };
        differences.push(upstream(format!(
            "Traefik forgets a client that was idle for {idle} to {} s and gives it a full bucket; here its bucket \
             refills at the rate",
            idle + 1
        )));
    }
    Ok(Some((limit, differences)))
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
