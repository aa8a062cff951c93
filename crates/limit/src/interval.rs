//! The interval bucket: up to `burst` units; `amount` is added at once after each whole period
//! since the first use of the full bucket. In any span of T it grants at most
//! `burst + amount x ceil(T / period)`.

use super::limit_spec::Align;
use super::quota::{Quota, QuotaError};
use super::stepped::Stepped;
use super::time::Micros;

/// An interval bucket with these numbers.
///
/// # Errors
/// As [`Stepped::new`].
pub fn new(
    quota: Quota,
    debt: u64,
    max_wait: Micros,
    shared: bool,
) -> Result<Stepped, Vec<QuotaError>> {
    Stepped::new(quota, Align::FirstHit, debt, max_wait, shared)
}
