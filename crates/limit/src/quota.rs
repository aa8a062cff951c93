//! Quota: an amount per period, with a burst, as exact integers.

use super::time::Micros;

/// Units per period, as written: the form of a rate from the file to the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub amount: u64,
    pub period: Micros,
}

impl Rate {
    pub const fn new(amount: u64, period: Micros) -> Self {
        Self { amount, period }
    }
}

/// A rate, plus a burst, checked to be representable.
///
/// The rate is kept as written for messages and headers, and reduced by the greatest common divisor
/// (`n` units per `p` microseconds) for arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    pub rate: Rate,
    /// The most units at once.
    pub burst: u64,
    /// `amount` over the greatest common divisor of amount and period.
    pub n: u64,
    /// `period` in microseconds over the same divisor.
    pub p: u64,
}

/// A quota is a rate with a burst.
impl std::ops::Deref for Quota {
    type Target = Rate;

    fn deref(&self) -> &Rate {
        &self.rate
    }
}

impl Quota {
    /// Checks the conditions that all rates share: no number is zero, each fits a quota header (15
    /// digits, RFC 9651) and the period fits a calendar.
    ///
    /// # Errors
    /// Each number that fails a condition.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, Vec<QuotaError>> {
        let Rate { amount, period } = rate;
        let mut errors = Vec::new();
        let mut check = |wrong: bool, field, message: &str| {
            if wrong {
                errors.push(QuotaError::new(field, message));
            }
        };
        let nothing =
            "a rate of 0 admits nothing; to refuse everything give the route a fixed answer";
        let most = format!("at most {UNITS_MAX} units");
        check(amount == 0, "rate", nothing);
        check(amount > UNITS_MAX, "rate", &format!("{most} per period"));
        let longer = "the period must be longer than zero";
        check(period == Micros::ZERO, "rate", longer);
        let longest = "the period must be at most 36500 days";
        check(period > PERIOD_MAX, "rate", longest);
        let least = "a burst of 0 admits nothing; the least is 1";
        check(burst == 0, "burst", least);
        check(burst > UNITS_MAX, "burst", &most);
        if !errors.is_empty() {
            return Err(errors);
        }
        let divisor = greatest_common_divisor(amount, period.0);
        Ok(Self {
            rate,
            burst,
            n: amount / divisor,
            p: period.0 / divisor,
        })
    }

    /// The time in which the rate yields `units`, rounded up to whole microseconds.
    pub fn time_for(&self, units: u64) -> Micros {
        let micros = (u128::from(units) * u128::from(self.p)).div_ceil(u128::from(self.n));
        Micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

/// Why a limit cannot be represented exactly. `field` names the key in the file that causes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct QuotaError {
    /// The key of the limit's table that must change: `rate`, `burst`, `debt`, `max_wait`, `window` …
    pub field: &'static str,
    /// What is wrong and what would be accepted, in one sentence.
    pub message: String,
}

impl QuotaError {
    /// An error about the key `field`.
    pub fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
        }
    }

    /// A response may cost at most `fits` units above what was charged for it at first.
    pub(super) fn too_much_to_settle(fits: u64, shared: bool) -> Self {
        let place = place(shared);
        let most =
            format!("a response may cost at most {fits} above what is charged for it at first");
        Self::new(
            "settle",
            format!(
                "too much to count exactly {place}: with these numbers {most}; write a lower `max`"
            ),
        )
    }
}

pub(super) const fn place(shared: bool) -> &'static str {
    if shared {
        "in a shared store"
    } else {
        "in the process"
    }
}

/// The integers of a limit in a shared store stay below this: exact in Rust, in Lua's doubles and in SQL's bigint.
pub const SHARED_BOUND: i64 = 1 << 53;

/// The integers of a limit in the process stay below this; products are taken in 128 bits.
pub const LOCAL_BOUND: i64 = 1 << 62;

/// The most units of a rate, burst or count: 15 digits, as structured headers allow (RFC 9651).
pub const UNITS_MAX: u64 = 999_999_999_999_999;

/// The longest period: a hundred years keeps every moment below 2^53 microseconds.
pub const PERIOD_MAX: Micros = Micros::from_secs(36_500 * 86_400);

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_reduced_to_lowest_terms() {
        let quota = Quota::new(Rate::new(100, Micros::from_secs(60)), 20).expect("representable");
        assert_eq!((quota.n, quota.p), (1, 600_000));
        let quota =
            Quota::new(Rate::new(10_000_000, Micros::from_secs(1)), 20).expect("representable");
        assert_eq!((quota.n, quota.p), (10, 1));
    }

    #[test]
    fn quota_zero_or_too_large_is_an_error_that_names_its_key() {
        let fields = |amount, period, burst| -> Vec<_> {
            Quota::new(Rate::new(amount, period), burst)
                .expect_err("not representable")
                .into_iter()
                .map(|e| e.field)
                .collect()
        };
        assert_eq!(fields(0, Micros::ZERO, 0), ["rate", "rate", "burst"]);
        assert_eq!(
            fields(u64::MAX, Micros(u64::MAX), u64::MAX),
            ["rate", "rate", "burst"]
        );
    }
}
