//! The fixed window: at most `amount` units per window. A window begins with the first request
//! outside any window, or is aligned to the clock or to a calendar. Up to twice the amount may be
//! granted around the edge of two windows; every fixed window has this property.

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
