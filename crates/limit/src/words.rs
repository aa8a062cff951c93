//! Describes spans, rates and limits in words. Parses nothing.

use super::Limit;
use super::algorithm::Algorithm;
use super::limit_spec::Align;
use super::quota::{Quota, Rate};
use super::stepped::Stepped;
use super::time::Micros;
use super::token_bucket::TokenBucket;

impl Limit {
    /// The limit in words: "20 at once, then one every 600 ms; at most 120 in any minute".
    pub fn words(&self) -> String {
        self.algorithm.words_in(self.currency.as_deref())
    }

    /// Its amount and period: "100 units per minute", "50 USD per month". `None`: it has no rate.
    pub fn rate_words(&self) -> Option<String> {
        let quota = self.algorithm.quota()?;
        let each = match &self.algorithm {
            Algorithm::FixedWindow(window) => window_words(window),
            _ => period(quota.period),
        };
        let amount = units(quota.amount, self.currency.as_deref());
        Some(format!("{amount} per {each}"))
    }
}

/// Units as a limit counts them: "1200", or "12.34 USD" where a unit is a millionth of a currency.
pub fn amount(units: u64, currency: Option<&str>) -> String {
    let Some(currency) = currency else {
        return units.to_string();
    };
    let (whole, part) = (units / 1_000_000, units % 1_000_000);
    match format!("{part:06}").trim_end_matches('0') {
        "" => format!("{whole} {currency}"),
        part => format!("{whole}.{part:0<2} {currency}"),
    }
}

/// The same with the name of a unit: "1 unit", "1200 units", "12.34 USD".
pub fn units(units: u64, currency: Option<&str>) -> String {
    let name = match (currency, units) {
        (Some(_), _) => "",
        (None, 1) => " unit",
        (None, _) => " units",
    };
    amount(units, currency) + name
}

impl Algorithm {
    /// The limit in words, with units of any kind.
    pub fn words(&self) -> String {
        self.words_in(None)
    }

    fn words_in(&self, currency: Option<&str>) -> String {
        let amount = |units| amount(units, currency);
        match self {
            Self::TokenBucket(bucket) => continuous(bucket, currency),
            Self::Interval(bucket) => {
                let quota = bucket.quota();
                // Units that would exceed the capacity are lost; a debt is paid first.
                let added = if bucket.debt() == 0 {
                    quota.amount.min(quota.burst)
                } else {
                    quota.amount
                };
                let most = added.saturating_add(quota.burst);
                format!(
                    "{} at once, then {} added every {} since first use, up to {}; at most {} in any {}",
                    amount(quota.burst),
                    amount(quota.amount),
                    period(quota.period),
                    amount(quota.burst),
                    amount(most),
                    period(quota.period)
                ) + &leeway(bucket.debt(), bucket.max_wait(), bucket.settled(), currency)
            }
            Self::FixedWindow(window) => fixed(window, currency),
            Self::SlidingWindow(window) => {
                let quota = window.quota();
                format!(
                    "about {} in any {}, estimated from two windows: never more than {} in one window of the clock, and at \
                     worst {} in any {} if they come all at once at a window's end",
                    amount(quota.amount),
                    period(quota.period),
                    amount(quota.amount),
                    amount((2 * quota.amount).saturating_sub(1)),
                    period(quota.period)
                ) + &leeway(0, window.max_wait(), window.settled(), currency)
            }
            Self::SlidingLog(log) => {
                let quota = log.quota();
                let most = amount(quota.amount);
                format!("at most {most} in any {}, exactly", period(quota.period))
                    + &leeway(0, log.max_wait(), log.settled(), currency)
            }
            Self::InFlight(limit) if limit.is_adaptive() => {
                format!(
                    "as many at the same time as the upstream is found to take, at least {} and at most {}",
                    limit.least(),
                    limit.most()
                )
            }
            Self::InFlight(limit) => format!("at most {} at the same time", limit.most()),
        }
    }
}

fn continuous(bucket: &TokenBucket, currency: Option<&str>) -> String {
    let quota = bucket.quota();
    let most = quota.amount.saturating_add(quota.burst);
    let rate_words = match currency {
        Some(_) => format!(
            "{} every {}, evenly",
            amount(quota.amount, currency),
            period(quota.period)
        ),
        None => rate_words(quota),
    };
    let mut words = format!(
        "{} at once, then {rate_words}; at most {} in any {}",
        amount(quota.burst, currency),
        amount(most, currency),
        period(quota.period)
    );
    if quota.burst == quota.amount {
        words.push_str(", because burst is the whole amount");
    }
    if let Some(following) = bucket.follows() {
        let Rate {
            amount: least,
            period: each,
        } = following.least_written;
        words.push_str(&format!(
            "; less while the upstream responds with 429 or 503, down to {} per {}",
            amount(least, currency),
            period(each)
        ));
        if following.obeys_quota {
            words.push_str(", and nothing while its Retry-After or an exhausted RateLimit says so");
        }
    }
    words + &leeway(bucket.debt(), bucket.max_wait(), bucket.settled(), currency)
}

/// The period of a window: "minute", "month in Europe/Berlin".
fn window_words(window: &Stepped) -> String {
    match window.align() {
        Align::FirstHit | Align::Clock => period(window.quota().period),
        Align::Calendar(calendar) => calendar.words.clone(),
    }
}

fn fixed(window: &Stepped, currency: Option<&str>) -> String {
    let quota = window.quota();
    let begins = match window.align() {
        Align::FirstHit => "counted from the first request",
        Align::Clock => "aligned to the clock (UTC)",
        Align::Calendar(_) => "by the calendar",
    };
    format!(
        "{} per {}, {begins}; up to {} in a moment across the edge of two windows",
        amount(quota.amount, currency),
        window_words(window),
        amount(2 * quota.amount, currency)
    ) + &leeway(window.debt(), window.max_wait(), window.settled(), currency)
}

fn leeway(debt: u64, max_wait: Micros, settled: u64, currency: Option<&str>) -> String {
    let mut words = String::new();
    if debt > 0 {
        words.push_str(&format!(
            "; up to {} more on credit, paid by the next caller's wait",
            amount(debt, currency)
        ));
    }
    if settled > 0 {
        words.push_str(&format!(
            "; a response may take {} more than was charged at first, and later requests wait until that is paid",
            amount(settled, currency)
        ));
    }
    if max_wait > Micros::ZERO {
        words.push_str(&format!("; held up to {} until due", span(max_wait)));
    }
    words
}

/// A span as a person writes it: "600 ms", "1 minute", "36 s", "1 day".
pub fn span(span: Micros) -> String {
    let micros = span.0;
    for (unit, name) in NAMED {
        if micros == unit {
            return format!("1 {name}");
        }
    }
    for (unit, name) in NAMED {
        if micros >= unit && micros.is_multiple_of(unit) {
            return format!("{} {name}s", micros / unit);
        }
    }
    let mut units = SHORT.into_iter();
    let (unit, name) = units.find(|(unit, _)| micros >= *unit).unwrap_or((1, "us"));
    if micros.is_multiple_of(unit) {
        return format!("{} {name}", micros / unit);
    }
    // Three decimals; a longer number is truncated, not rounded, and marked as such.
    let thousandths = micros % unit * 1_000 / unit;
    let exact = (micros % unit * 1_000).is_multiple_of(unit);
    let fraction = format!("{thousandths:03}");
    let number = format!("{}.{}", micros / unit, fraction.trim_end_matches('0'));
    let number = number.trim_end_matches('.');
    if exact {
        format!("{number} {name}")
    } else {
        format!("about {number} {name}")
    }
}

/// A period after "in any" or "every": "minute", "second", "10 seconds".
pub fn period(period: Micros) -> String {
    let named = NAMED.into_iter().find(|(unit, _)| *unit == period.0);
    named.map_or_else(|| span(period), |(_, name)| name.to_owned())
}

/// The pace of a rate: "one every 600 ms", "10 every 1 us".
pub fn rate_words(quota: &Quota) -> String {
    if quota.n == 1 {
        return format!("one every {}", period(Micros(quota.p)));
    }
    let per_second = u128::from(quota.amount) * 1_000_000;
    if per_second % u128::from(quota.period.0) == 0 {
        return format!(
            "{} a second, evenly",
            per_second / u128::from(quota.period.0)
        );
    }
    format!("{} every {}, evenly", quota.amount, period(quota.period))
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
    use crate::{Kind, Terms, fixtures};

    #[test]
    fn limits_read_as_the_readme_says_them() {
        let minute = Micros::from_secs(60);
        let terms = |kind| fixtures::terms(kind, 100, minute);
        for (terms, words) in [
            (
                Terms {
                    burst: Some(20),
                    ..terms(Kind::TokenBucket)
                },
                "20 at once, then one every 600 ms; at most 120 in any minute",
            ),
            (
                terms(Kind::TokenBucket),
                "100 at once, then one every 600 ms; at most 200 in any minute, because burst is the whole amount",
            ),
            (
                Terms {
                    burst: Some(20),
                    ..terms(Kind::Interval)
                },
                "20 at once, then 100 added every minute since first use, up to 20; at most 40 in any minute",
            ),
            (
                Terms {
                    burst: Some(20),
                    debt: 10,
                    ..terms(Kind::TokenBucket)
                },
                // Counted once: beside the 120, not among them.
                "20 at once, then one every 600 ms; at most 120 in any minute; up to 10 more on credit, paid by the next caller's wait",
            ),
            (
                Terms {
                    burst: Some(20),
                    debt: 10,
                    ..terms(Kind::Interval)
                },
                "20 at once, then 100 added every minute since first use, up to 20; at most 120 in any minute; up to 10 more on credit, paid by the next caller's wait",
            ),
            (
                terms(Kind::FixedWindow),
                "100 per minute, counted from the first request; up to 200 in a moment across the edge of two windows",
            ),
            (
                terms(Kind::SlidingLog),
                "at most 100 in any minute, exactly",
            ),
            (terms(Kind::InFlight), "at most 100 at the same time"),
            (
                fixtures::terms(Kind::TokenBucket, 1, Micros::from_secs(1)),
                "1 at once, then one every second; at most 2 in any second, because burst is the whole amount",
            ),
        ] {
            assert_eq!(
                Algorithm::new(&terms).expect("representable").words(),
                words
            );
        }
    }

    #[test]
    fn words_of_money_are_in_its_currency() {
        let day = Micros::from_secs(86_400);
        let limit = |kind| Limit {
            currency: Some("USD".into()),
            ..fixtures::limit("budget", &fixtures::terms(kind, 12_340_000, day))
        };
        let window = limit(Kind::FixedWindow);
        assert_eq!(
            window.words(),
            "12.34 USD per day, counted from the first request; up to 24.68 USD in a moment across the edge of two windows"
        );
        assert_eq!(window.rate_words().as_deref(), Some("12.34 USD per day"));
        assert_eq!(
            limit(Kind::TokenBucket).words(),
            "12.34 USD at once, then 12.34 USD every day, evenly; at most 24.68 USD in any day, because burst is the whole amount"
        );
        let plain = fixtures::limit("calls", &fixtures::terms(Kind::FixedWindow, 1, day));
        assert_eq!(plain.rate_words().as_deref(), Some("1 unit per day"));
        for (count, words) in [(0, "0 USD"), (1, "0.000001 USD"), (500_000, "0.50 USD")] {
            assert_eq!(units(count, Some("USD")), words);
        }
        assert_eq!(units(1_200, None), "1200 units");
    }

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
