//! Rates: those that a frontier has by default, and what they yield.

/// A rate as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// `10/second`.
    pub text: String,
    /// Units.
    pub amount: u64,
    /// Microseconds.
    pub period: u64,
}

/// 1, 2, 5, 10, 20, …
pub(super) fn ladder() -> impl Iterator<Item = u64> {
    let tens = (0..15).map(|power| 10_u64.pow(power));
    tens.flat_map(|ten| [ten, 2 * ten, 5 * ten])
}

/// From one a minute up to the busiest second of the log.
pub(super) fn usual_rates(busiest: u64) -> Vec<Rate> {
    let rate = |amount: u64, unit: &str, period| Rate {
        text: format!("{amount}/{unit}"),
        amount,
        period,
    };
    let minutes = [1, 2, 5, 10, 20, 30].map(|amount| rate(amount, "minute", MINUTE));
    let top = busiest.max(100);
    let seconds = ladder()
        .take_while(|amount| *amount <= top)
        .map(|amount| rate(amount, "second", MINUTE / 60));
    minutes.into_iter().chain(seconds).collect()
}

impl Rate {
    /// What stamps that are off by `blur` microseconds make of a burst.
    pub(super) fn bar(&self, blur: u64) -> u64 {
        let units = u128::from(self.amount) * u128::from(blur);
        u64::try_from(units.div_ceil(u128::from(self.period.max(1)))).unwrap_or(u64::MAX)
    }

    /// The most units in any minute.
    pub(super) fn per_minute(&self, burst: u64) -> u64 {
        let units = u128::from(self.amount) * u128::from(MINUTE) / u128::from(self.period.max(1));
        u64::try_from(units)
            .unwrap_or(u64::MAX)
            .saturating_add(burst)
    }

    pub(super) fn faster_than(&self, other: &Self) -> std::cmp::Ordering {
        let one = u128::from(self.amount) * u128::from(other.period);
        one.cmp(&(u128::from(other.amount) * u128::from(self.period)))
    }
}

pub(super) const MINUTE: u64 = 60_000_000;
