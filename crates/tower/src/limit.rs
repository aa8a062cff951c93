//! Limits that are written in code.

use std::time::Duration;

use tollgate_config::quoted;

use super::Key;

/// Units per period.
///
/// ```
/// use std::time::Duration;
/// use tollgate_tower::Rate;
///
/// assert_eq!(Rate::per_minute(60), Rate::per(60, Duration::from_secs(60)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    units: u64,
    period: Duration,
}

impl Rate {
    /// This many units in every period.
    pub const fn per(units: u64, period: Duration) -> Self {
        Self { units, period }
    }

    /// This many units a second.
    pub const fn per_second(units: u64) -> Self {
        Self::per(units, Duration::from_secs(1))
    }

    /// This many units a minute.
    pub const fn per_minute(units: u64) -> Self {
        Self::per(units, Duration::from_secs(60))
    }

    /// This many units an hour.
    pub const fn per_hour(units: u64) -> Self {
        Self::per(units, Duration::from_secs(3_600))
    }

    /// This many units a day.
    pub const fn per_day(units: u64) -> Self {
        Self::per(units, Duration::from_secs(86_400))
    }

    fn text(self) -> String {
        quoted(&format!("{}/{}us", self.units, self.period.as_micros()))
    }
}

/// A limit: its numbers, and the owner of each of its buckets.
///
/// The numbers are checked when the layer is built. What no method here says can be said in the
/// words of the file with [`Limit::set`].
///
/// ```
/// use tollgate_tower::{Key, Limit, Rate};
///
/// let search = Limit::token_bucket(Rate::per_minute(100), 20)
///     .per(Key::header("x-api-key").or_refuse())
///     .cost(2);
/// let jobs = Limit::in_flight(10).per(Key::everyone());
/// let tokens = Limit::token_bucket(Rate::per_minute(90_000), 90_000)
///     .per(Key::bearer().or_refuse())
///     .set("settle", r#"{ from = "json:usage.total_tokens", estimate = 500 }"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Keys of the file, with their values in TOML.
    entries: Vec<(String, String)>,
}

impl Limit {
    fn of(rate: Rate, algorithm: &str) -> Self {
        let entries = vec![
            ("rate".to_owned(), rate.text()),
            ("algorithm".to_owned(), quoted(algorithm)),
        ];
        Self { entries }
    }

    /// A token bucket: at most `burst` units at once, refilled at `rate`. In every span of T seconds
    /// it admits at most `burst + rate x T`.
    pub fn token_bucket(rate: Rate, burst: u64) -> Self {
        Self::of(rate, "token_bucket").set("burst", &burst.to_string())
    }

    /// All units of `rate` at the end of each whole period since the first request, up to `burst`.
    pub fn interval(rate: Rate, burst: u64) -> Self {
        Self::of(rate, "interval").set("burst", &burst.to_string())
    }

    /// Windows of one period, which begin with the first request.
    pub fn fixed_window(rate: Rate) -> Self {
        Self::of(rate, "fixed_window")
    }

    /// A window that slides, estimated from two windows.
    pub fn sliding_window(rate: Rate) -> Self {
        Self::of(rate, "sliding_window")
    }

    /// A window that slides, exact: it keeps the time of every unit.
    pub fn sliding_log(rate: Rate) -> Self {
        Self::of(rate, "sliding_log")
    }

    /// A concurrency limit: at most this many requests in progress at the same time.
    pub fn in_flight(most: u64) -> Self {
        let entries = vec![("in_flight".to_owned(), most.to_string())];
        Self { entries }
    }

    /// Sets the owner of each bucket. Every limit needs one.
    #[must_use]
    pub fn per(self, key: Key) -> Self {
        let limit = self.set("per", &quoted(&key.per));
        match key.when_missing {
            Some(missing) => limit.set("when_missing", &quoted(missing)),
            None => limit,
        }
    }

    /// The units that each request costs.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        self.set("cost", &units.to_string())
    }

    /// Holds a request until its units are due, if that is at most this long, instead of refusing
    /// it.
    /// Where `settle` reserves what a request may cost, a request that only others' reservations
    /// refuse waits in line for them.
    #[must_use]
    pub fn max_wait(self, most: Duration) -> Self {
        let text = quoted(&format!("{}us", most.as_micros()));
        self.set("max_wait", &text)
    }

    /// Only responses with these statuses count, such as `["401", "5xx"]`; the charge of all others
    /// is given back.
    #[must_use]
    pub fn count(self, statuses: &[&str]) -> Self {
        self.set("count", &list(statuses))
    }

    /// The charge is given back after a response with one of these statuses, such as `["502", "503"]`.
    #[must_use]
    pub fn refund_on(self, statuses: &[&str]) -> Self {
        self.set("refund_on", &list(statuses))
    }

    /// Counts what the limit would refuse, and refuses nothing.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.set("mode", "\"shadow\"")
    }

    /// Keeps the buckets in this process, although there is a shared store.
    #[must_use]
    pub fn local(self) -> Self {
        self.set("store", "\"local\"")
    }

    /// Sets a key of the file's `[limits]` to a value in TOML. The reference of the file has all keys.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.entries.retain(|(known, _)| known != key);
        self.entries.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Appends the limit as a table of the file.
    pub(super) fn write(&self, name: &str, out: &mut String) {
        out.push_str(&format!("[limits.{}]\n", quoted(name)));
        for (key, value) in &self.entries {
            out.push_str(&format!("{key} = {value}\n"));
        }
        out.push('\n');
    }
}

/// A TOML list of strings.
pub(super) fn list<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word.as_ref())).collect();
    format!("[{}]", words.join(", "))
}
