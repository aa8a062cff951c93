//! A rate that follows its upstream: how far it may fall, and what a grant then takes.

use super::{TokenBucket, signed, unsigned};
use crate::conditions::{Following, RateConditions, WHOLE};
use crate::quota::{LOCAL_BOUND, QuotaError, Rate};
use crate::time::Timestamp;

impl TokenBucket {
    /// The same bucket with a rate that follows the upstream's health, down to `least`.
    ///
    /// # Errors
    /// When the minimum is above the rate, or too low to be counted exactly with this burst.
    pub fn following(self, least: Rate) -> Result<Self, Vec<QuotaError>> {
        let following = Following::new(least, &self.quota).map_err(|error| vec![error])?;
        // The most expensive grant takes this much, from a level as low as the debt allows.
        let (full, owed) = (i128::from(self.full), i128::from(self.owed));
        let dearest = (full + owed) * i128::from(WHOLE) / i128::from(following.least) + 1;
        let ahead = i128::from(self.max_wait.0) * i128::from(self.quota.n);
        let lowest = dearest + owed + ahead;
        if full + lowest >= i128::from(LOCAL_BOUND) {
            let message = "too low a rate to be counted exactly with this burst: raise the least, or lower the burst";
            return Err(vec![QuotaError::new("follow_upstream", message)]);
        }
        let lowest = -i64::try_from(lowest).expect("below the bound just checked");
        Ok(Self {
            following: Some(following),
            lowest,
            ..self
        })
    }

    /// The same bucket; if it follows the upstream's health, it also obeys its quota.
    pub fn obeying_quota(self) -> Self {
        let following = self.following.map(|following| Following {
            obeys_quota: true,
            ..following
        });
        Self { following, ..self }
    }

    /// How far the rate may fall, if it follows the upstream's health.
    pub fn follows(&self) -> Option<&Following> {
        self.following.as_ref()
    }

    /// The same bucket under the conditions learnt from its upstream, within the file's numbers.
    pub fn under(&self, conditions: RateConditions) -> Self {
        let conditions = match self.following {
            None => RateConditions::AS_WRITTEN,
            Some(following) => RateConditions {
                factor: conditions.factor.clamp(following.least, WHOLE),
                opens: if following.obeys_quota {
                    conditions.opens
                } else {
                    Timestamp::default()
                },
                ..conditions
            },
        };
        Self {
            conditions,
            ..self.clone()
        }
    }

    /// What a grant of this price takes from the level.
    pub(super) fn taken(&self, price: i64) -> i64 {
        signed(self.conditions.raised(unsigned(price)))
    }
}

#[cfg(test)]
mod tests;
