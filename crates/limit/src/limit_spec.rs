//! A limit as the file specifies it, and the check for settings without meaning for its algorithm.

use std::sync::Arc;

use super::calendar::Calendar;
use super::quota::QuotaError;
use super::time::Micros;
use super::words;

/// A limit as the file specifies it, before it is known to be representable.
/// [`Algorithm::new`](super::Algorithm::new) checks it.
#[derive(Clone, Debug)]
pub struct Terms {
    pub kind: Kind,
    /// Units per period; for [`Kind::InFlight`] the most units at once (the period is then zero).
    pub amount: u64,
    pub period: Micros,
    /// The most units at once; `None`: the amount.
    pub burst: Option<u64>,
    pub align: Align,
    /// Units a bucket may go below zero; the next caller waits for them.
    pub debt: u64,
    /// The longest a request may wait for its token; zero: never.
    pub max_wait: Micros,
    /// Whether the buckets live in a shared store (then `burst x period < 2^53`) or in the process.
    pub shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    TokenBucket,
    /// The whole amount at once, each whole period since first use.
    Interval,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    InFlight,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// At the first request after the last window ended.
    #[default]
    FirstHit,
    /// At multiples of the period since the Unix epoch.
    Clock,
    /// At boundaries computed from a calendar (day, week, month; zone; anchor day).
    Calendar(Arc<Calendar>),
}

impl Align {
    /// Whether windows of one period begin at the same moments. A calendar is as its description
    /// says: its list of boundaries grows as time passes.
    pub fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::FirstHit, Self::FirstHit) | (Self::Clock, Self::Clock) => true,
            (Self::Calendar(a), Self::Calendar(b)) => a.words == b.words,
            _ => false,
        }
    }
}

impl Terms {
    /// A limit in the process with nothing but a rate.
    pub fn new(kind: Kind, amount: u64, period: Micros) -> Self {
        Self {
            kind,
            amount,
            period,
            burst: None,
            align: Align::FirstHit,
            debt: 0,
            max_wait: Micros::ZERO,
            shared: false,
        }
    }

    /// Settings without meaning for this algorithm. Each is an error, because ignoring it would
    /// make the file wrong about the limit.
    pub(super) fn meaningless(&self) -> Vec<QuotaError> {
        let mut errors = Vec::new();
        let mut forbid = |set: bool, field, why: &str| {
            if set {
                errors.push(QuotaError::new(field, why));
            }
        };
        let windows = matches!(
            self.kind,
            Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog
        );
        let in_flight = self.kind == Kind::InFlight;
        forbid(
            windows && self.burst.is_some_and(|burst| burst != self.amount),
            "burst",
            "a window admits its whole amount at once; burst is for token_bucket and interval",
        );
        forbid(
            in_flight && self.burst.is_some_and(|burst| burst != self.amount),
            "burst",
            "a concurrency limit has no burst",
        );
        forbid(
            self.kind != Kind::FixedWindow && self.align != Align::FirstHit,
            "window",
            "only fixed_window can be aligned",
        );
        forbid(
            self.debt > 0
                && matches!(
                    self.kind,
                    Kind::SlidingWindow | Kind::SlidingLog | Kind::InFlight
                ),
            "debt",
            "only token_bucket, interval and fixed_window can go into debt",
        );
        forbid(
            self.max_wait > Micros::ZERO && self.kind == Kind::SlidingWindow && self.shared,
            "max_wait",
            "a shared store keeps of an estimate what has been counted, not what has been promised for a window to come; take token_bucket or sliding_log, or store = \"local\"",
        );
        forbid(
            self.max_wait > Micros::ZERO && in_flight,
            "max_wait",
            "the time at which a request in flight ends is not known; max_wait is for rates",
        );
        forbid(
            self.max_wait > WAIT_MAX,
            "max_wait",
            "the longest wait is one hour",
        );
        errors
    }
}

/// The longest a request may be held. Clients and proxies time out before a longer wait ends.
pub const WAIT_MAX: Micros = Micros::from_secs(3_600);

/// A penalty: a limit blocks a key that it refuses too often. Each gateway counts the refusals that it
/// sends, and blocks by its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The refusals after which a key is blocked.
    pub refusals: u32,
    /// The span in which they are counted, from the first of them.
    pub span: Micros,
    pub block: Micros,
}

impl Penalty {
    /// The refusals that it takes, in words: "20 refusals in 1 minute".
    pub fn after(&self) -> String {
        let plural = if self.refusals == 1 { "" } else { "s" };
        let span = words::span(self.span);
        format!("{} refusal{plural} in {span}", self.refusals)
    }

    pub fn words(&self) -> String {
        let block = words::span(self.block);
        format!("{} block the key for {block}", self.after())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalty_says_its_numbers_in_words() {
        let penalty = Penalty {
            refusals: 20,
            span: Micros::from_secs(60),
            block: Micros::from_secs(600),
        };
        assert_eq!(
            penalty.words(),
            "20 refusals in 1 minute block the key for 10 minutes"
        );
    }
}
