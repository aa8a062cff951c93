//! The fixed window: at most `amount` units per window. Windows begin with the first request that finds none, or are
//! aligned to the clock or to a calendar. Across the edge of two windows up to twice the amount may be granted in a moment:
//! that is what a fixed window is.

use super::limit_spec::Align;
use super::quota::{Quota, QuotaError};
use super::stepped::Stepped;
use super::time::Micros;

/// A fixed window: a [`Stepped`] bucket that is full again at each boundary.
///
/// # Errors
/// As [`Stepped::new`].
pub fn new(
    quota: Quota,
    align: Align,
    debt: u64,
    max_wait: Micros,
    shared: bool,
) -> Result<Stepped, Vec<QuotaError>> {
    Stepped::new(quota, align, debt, max_wait, shared)
}
