//! Which numbers a token bucket can have: every level that it can reach is exact where it is kept.

use super::TokenBucket;
use crate::conditions::RateConditions;
use crate::quota::{LOCAL_BOUND, Quota, QuotaError, SHARED_BOUND, place};
use crate::time::Micros;

impl TokenBucket {
    /// Checks that every number this bucket can reach is exact where it is kept.
    ///
    /// # Errors
    /// Each setting that makes it inexact.
    pub fn new(
        quota: Quota,
        debt: u64,
        max_wait: Micros,
        shared: bool,
    ) -> Result<Self, Vec<QuotaError>> {
        let bound = if shared { SHARED_BOUND } else { LOCAL_BOUND };
        let (n, p) = (i128::from(quota.n), i128::from(quota.p));
        let full = i128::from(quota.burst) * p;
        let owed = i128::from(debt) * p;
        let ahead = i128::from(max_wait.0) * n;
        let span = full + owed + ahead;
        let mut errors = Vec::new();
        if full < n {
            // The bucket would be full again within a clock tick, and the rest of the rate lost.
            errors.push(QuotaError::new(
                "burst",
                format!(
                    "a burst of {} is less than the rate yields in a microsecond, the finest time kept; the least here is {}",
                    quota.burst,
                    quota.n.div_ceil(quota.p)
                ),
            ));
        }
        if span >= i128::from(bound) {
            let place = place(shared);
            let field = if full >= i128::from(bound) {
                "burst"
            } else if full + owed >= i128::from(bound) {
                "debt"
            } else {
                "max_wait"
            };
            let most = match field {
                "burst" => format!("the most at this rate is {}", (i128::from(bound) - 1) / p),
                "debt" => format!(
                    "the most with this burst is {}",
                    (i128::from(bound) - 1 - full) / p
                ),
                _ => {
                    format!(
                        "the longest with this rate and burst is {} us",
                        (i128::from(bound) - 1 - full - owed) / n
                    )
                }
            };
            errors.push(QuotaError::new(
                field,
                format!("too much to count exactly {place}: {most}, or choose a rate with rounder numbers"),
            ));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let whole = |value: i128| i64::try_from(value).expect("below the bound just checked");
        Ok(Self {
            full: whole(full),
            owed: whole(owed),
            // A settlement may take one burst more than the level, or as much as fits.
            floor: -whole(owed.max(full.min(i128::from(bound) - 1 - full))),
            lowest: -whole(owed + ahead),
            settled: 0,
            following: None,
            conditions: RateConditions::AS_WRITTEN,
            quota,
            debt,
            max_wait,
        })
    }

    /// The same bucket; each grant may turn out to cost up to `more` units above what it drew. A
    /// charge of that size is never reduced when it comes after the bucket's last grant, however
    /// low that grant left the level.
    ///
    /// # Errors
    /// When a level that low is not exact where it is kept.
    pub(crate) fn settling(self, more: u64, shared: bool) -> Result<Self, Vec<QuotaError>> {
        let bound = i128::from(if shared { SHARED_BOUND } else { LOCAL_BOUND });
        let (p, lowest) = (i128::from(self.quota.p), i128::from(self.lowest));
        let fits = (bound - 1 - i128::from(self.full) + lowest) / p;
        if i128::from(more) > fits {
            return Err(vec![QuotaError::too_much_to_settle(
                u64::try_from(fits).unwrap_or(0),
                shared,
            )]);
        }
        let deepest =
            i64::try_from(lowest - i128::from(more) * p).expect("above the bound just checked");
        Ok(Self {
            settled: more,
            floor: self.floor.min(deepest),
            ..self
        })
    }

    /// Units that a grant may turn out to cost above what it drew.
    pub fn settled(&self) -> u64 {
        self.settled
    }
}
