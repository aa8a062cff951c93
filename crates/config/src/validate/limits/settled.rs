//! How much a response may cost: `settle` with the default of its `max`.

use super::Builder;
use crate::values::rate::Rate;
use tollgate_limit::{Algorithm, Limit, QuotaError, UNITS_MAX};
use tollgate_policy::Settle;

/// How much a response may cost above what is charged when its request is admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Above {
    most: u64,
    /// Where so much cannot be counted, `most` can be lowered to this: the file does not say it.
    least: u64,
}

impl Above {
    /// The algorithm with the debt that a response may leave.
    pub(super) fn applied(
        self,
        plain: Algorithm,
        shared: bool,
    ) -> Result<Algorithm, Vec<QuotaError>> {
        let mut more = self.most;
        loop {
            match plain.clone().settling(more, shared) {
                Err(_) if more / 2 >= self.least => more /= 2,
                made => return made,
            }
        }
    }

    /// `settle` with the most that the debts of all these limits can count.
    pub(super) fn counted<'l>(
        self,
        settle: Settle,
        limits: impl Iterator<Item = &'l Limit>,
    ) -> Settle {
        // A tier without a bound counts nothing.
        let above = limits.map(|limit| limit.algorithm.settled());
        match above.filter(|above| *above > 0).min() {
            Some(above) if above < self.most => Settle {
                most: settle.estimate.unwrap_or(0).saturating_add(above),
                ..settle
            },
            _ => settle,
        }
    }
}

impl Builder<'_, '_> {
    /// `settle`, with the default of its `max`. `reserved`: the most that is reserved for a request.
    pub(super) fn settle(&self, reserved: u64) -> Option<Settle> {
        let written = self.raw.settle.get()?;
        let mut settle = written.settle.clone();
        if written.max.is_some() {
            return Some(settle);
        }
        settle.most = match (self.is_ceiling(), settle.estimate) {
            // What is above the reservation takes what the bucket still holds.
            (true, _) => UNITS_MAX,
            (false, Some(_)) => settle.most.max(self.at_once()),
            // A response that exceeds its reservation is charged what it used.
            (false, None) => {
                let many = reserved.saturating_mul(100);
                many.max(self.at_once()).min(UNITS_MAX)
            }
        };
        Some(settle)
    }

    /// How much a response may cost above what is charged first. `reserved`: as for [`Builder::settle`].
    pub(super) fn above(&self, settle: Option<&Settle>, reserved: u64) -> Above {
        let Some(settle) = settle.filter(|_| !self.is_ceiling()) else {
            return Above { most: 0, least: 0 };
        };
        let most = settle.most.saturating_sub(settle.estimate.unwrap_or(0));
        let written = self.raw.settle.get().is_some_and(|at| at.max.is_some());
        let least = match settle.estimate {
            _ if written => most,
            Some(_) => 1,
            None => reserved.max(1),
        };
        Above { most, least }
    }

    /// The most units at once by the limit's own numbers, debt included.
    fn at_once(&self) -> u64 {
        match self.raw.rate.get().map(|rate| rate.value) {
            Some(Rate::Per { rate, .. }) => {
                let burst = self.raw.burst.or(rate.amount);
                burst.saturating_add(self.raw.debt().value)
            }
            Some(Rate::Unlimited) | None => 1,
        }
    }
}
