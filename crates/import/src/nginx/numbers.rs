//! The arithmetic of `limit_req`, as Tollgate counts it, and where the two are not the same.
//!
//! NGINX keeps for each key an excess in thousandths of a request: at every request it grows by 1000 and falls by
//! `rate * milliseconds / 1000`, rounded down, where `rate` is in thousandths of a request per second. A request is
//! refused when the excess would be above `burst`. That is a token bucket of `burst + 1`.

use crate::draft::{Counting, Difference, Limit, clients, upstream};
use crate::words::{MINUTE, SECOND, percent};

/// Where the time of one request is no whole number of microseconds.
pub(crate) const HELD: &str =
    "the turn of a held request is a whole microsecond here, so each waits up to 1 us longer";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) amount: u64,
    /// 1 for `r/s`, 60 for `r/m`.
    pub(crate) seconds: u64,
}

impl Rate {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, seconds) = match text.strip_suffix("r/s") {
            Some(number) => (number, 1),
            None => (text.strip_suffix("r/m")?, 60),
        };
        let amount = number.parse().ok()?;
        (amount > 0 && amount <= 1_000_000_000).then_some(Self { amount, seconds })
    }

    /// Thousandths of a request per second, as NGINX keeps it.
    const fn thousandths(self) -> u64 {
        self.amount * 1_000 / self.seconds
    }
}

/// A use of a zone: `burst` requests in excess, of which `delay` pass at once; `None`: all of them.
pub(crate) fn limit(rate: Rate, burst: u64, delay: Option<u64>) -> (Limit, Vec<Difference>) {
    let period = if rate.seconds == 1 { SECOND } else { MINUTE };
    let mut limit = Limit::new(Counting::TokenBucket, rate.amount, period);
    let mut differences = Vec::new();
    let at_once = delay.map_or(burst, |delay| delay.min(burst));
    limit.burst = Some(at_once.saturating_add(1));
    let held = burst - at_once;
    let wait = u128::from(held) * u128::from(period);
    limit.max_wait = u64::try_from(wait.div_ceil(u128::from(rate.amount))).unwrap_or(u64::MAX);
    if held > 0 && !period.is_multiple_of(rate.amount) {
        differences.push(upstream(HELD));
    }
    let kept = rate.thousandths();
    let meant = rate.amount * 1_000;
    if kept * rate.seconds != meant {
        differences.push(clients(format!(
            "NGINX keeps the rate as {kept}/1000 a second, {}.{:02} a minute; here it is {} a minute, {} more",
            kept * 60 / 1_000,
            kept * 60 % 1_000 / 10,
            rate.amount,
            percent(meant - kept * rate.seconds, kept * rate.seconds)
        )));
    }
    if !kept.is_multiple_of(1_000) {
        differences.push(clients(
            "NGINX rounds what flows in between two requests down to 1/1000 of a request: a client at its limit gets \
             up to 0.1 % less there, and its turn comes up to 1/1000 of a request later",
        ));
    }
    if burst.saturating_add(1).saturating_mul(1_000) > kept.saturating_mul(60) {
        differences.push(upstream(
            "NGINX may forget a client that was quiet for a minute while it still owes up to one request; \
             nothing is forgotten here",
        ));
    }
    (limit, differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_rate_is_read_as_nginx_reads_it() {
        assert_eq!(
            Rate::parse("10r/s"),
            Some(Rate {
                amount: 10,
                seconds: 1
            })
        );
        assert_eq!(
            Rate::parse("30r/m"),
            Some(Rate {
                amount: 30,
                seconds: 60
            })
        );
        for bad in ["0r/s", "-1r/s", "10", "r/s", "10r/h", "99999999999r/s"] {
            assert_eq!(Rate::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn nginx_burst_counts_the_one_in_service() {
        let rate = Rate {
            amount: 10,
            seconds: 1,
        };
        let (made, differences) = limit(rate, 5, None);
        assert_eq!((made.burst, made.max_wait), (Some(6), 0));
        assert!(differences.is_empty(), "{differences:?}");
        let (made, _) = limit(rate, 5, Some(0));
        assert_eq!((made.burst, made.max_wait), (Some(1), 500_000));
        let (made, _) = limit(rate, 5, Some(2));
        assert_eq!((made.burst, made.max_wait), (Some(3), 300_000));
        let (made, _) = limit(
            Rate {
                amount: 3,
                seconds: 1,
            },
            1,
            Some(0),
        );
        assert_eq!(made.max_wait, 333_334);
    }

    #[test]
    fn nginx_rate_per_minute_differs_from_the_rate_nginx_keeps() {
        let words = |amount| {
            let (_, differences) = limit(
                Rate {
                    amount,
                    seconds: 60,
                },
                1,
                None,
            );
            differences
                .iter()
                .map(|difference| difference.what.clone())
                .collect::<Vec<_>>()
                .join("; ")
        };
        assert!(
            words(10)
                .contains("166/1000 a second, 9.96 a minute; here it is 10 a minute, 0.40 % more"),
            "{}",
            words(10)
        );
        assert!(
            words(1).contains("16/1000 a second, 0.96 a minute"),
            "{}",
            words(1)
        );
        assert!(words(1).contains("quiet for a minute"), "{}", words(1));
        assert_eq!(words(60), "");
        assert!(words(6).starts_with("NGINX rounds"), "{}", words(6));
    }
}
