//! Quota: an amount per period, with a burst, as exact integers.

use super::time::Micros;

/// An amount per period, plus a burst, checked to be representable.
///
/// The rate is kept as written (`amount` per `period`) for words and headers, and reduced by the greatest common
/// divisor (`n` units per `p` microseconds) for arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Units granted per `period`, as written.
    pub amount: u64,
    /// The period, as written.
    pub period: Micros,
    /// The most units at once.
    pub burst: u64,
    /// `amount` over the greatest common divisor of amount and period.
    pub n: u64,
    /// `period` in microseconds over the same divisor.
    pub p: u64,
}

/// Why a limit cannot be represented exactly. `field` names the key of the file it hangs on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct QuotaError {
    /// The key of the limit's table that must change: `rate`, `burst`, `debt`, `max_wait`, `warm_up`, `window` …
    pub field: &'static str,
    /// What is wrong and what would do, in a sentence.
    pub message: String,
}
