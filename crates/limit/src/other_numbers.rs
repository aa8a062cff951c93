//! The same limit with other numbers, for one key and a while: an operator's override.

use super::in_flight::InFlight;
use super::limit_spec::{Kind, Terms};
use super::quota::{QuotaError, Rate};
use super::{Algorithm, Limit, Placement};

impl Limit {
    /// The limit with this rate, or this burst, or both. The rest stays: algorithm, windows, debt,
    /// waiting, settlement. Without a burst it stays too, unless it was the number of the rate: then
    /// it is that of the new rate.
    ///
    /// # Errors
    /// Why these numbers cannot be counted, or why the limit takes none.
    pub fn with_numbers(
        &self,
        rate: Option<Rate>,
        burst: Option<u64>,
    ) -> Result<Self, Vec<QuotaError>> {
        let algorithm =
            self.algorithm
                .with_numbers(rate, burst, self.placement == Placement::Shared)?;
        Ok(Self {
            algorithm,
            // Leases are of the numbers that all callers share.
            lease: false,
            ..self.clone()
        })
    }
}

impl Limit {
    /// The concurrency limit with so many places.
    ///
    /// # Errors
    /// Why it cannot have so many, or that it has no places.
    pub fn with_places(&self, places: u64) -> Result<Self, Vec<QuotaError>> {
        if self.algorithm.kind() != Kind::InFlight {
            let error = QuotaError::new("in_flight", "a rate has no places");
            return Err(vec![error]);
        }
        Ok(Self {
            algorithm: Algorithm::InFlight(InFlight::new(places)?),
            ..self.clone()
        })
    }
}

impl Algorithm {
    fn with_numbers(
        &self,
        rate: Option<Rate>,
        burst: Option<u64>,
        shared: bool,
    ) -> Result<Self, Vec<QuotaError>> {
        let no = |why: &str| Err(vec![QuotaError::new("rate", why)]);
        let (Some(quota), Some(own)) = (self.quota(), self.terms(shared)) else {
            return no("a concurrency limit has places, not a rate");
        };
        if self.follows().is_some() {
            return no("this rate follows the upstream's health (follow_upstream)");
        }
        let Rate { amount, period } = rate.unwrap_or(quota.rate);
        if self.kind() != Kind::TokenBucket && period != quota.period {
            return no("this limit keeps its period: only the number can change");
        }
        // (A burst that is the number of the rate follows it.)
        let is_own = rate.is_none() || quota.burst != quota.amount;
        let terms = Terms {
            amount,
            period,
            burst: burst.or(own.burst.filter(|_| is_own)),
            ..own
        };
        Self::new(&terms)?.settling(self.settled(), shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Micros, fixtures};

    #[test]
    fn other_numbers_without_a_burst_follow_the_rate_or_keep_their_own() {
        let minute = Micros::from_secs(60);
        let rate = Some(Rate::new(1000, minute));
        let plain = fixtures::limit("plain", &fixtures::terms(Kind::TokenBucket, 100, minute));
        assert_eq!(burst(&plain.with_numbers(rate, None)), 1000);
        let own = fixtures::per_minute("own", 100, 20);
        assert_eq!(burst(&own.with_numbers(rate, None)), 20);
        assert_eq!(burst(&own.with_numbers(None, Some(500))), 500);
        assert_eq!(burst(&own.with_numbers(rate, Some(7))), 7);
        let raised = own
            .with_numbers(rate, None)
            .expect("numbers that can be counted");
        assert_eq!(
            raised.algorithm.quota().map(|quota| quota.amount),
            Some(1000)
        );
        // Windows admit their whole number at once.
        let window = fixtures::limit("w", &fixtures::terms(Kind::FixedWindow, 100, minute));
        assert_eq!(burst(&window.with_numbers(rate, None)), 1000);
        let errors = window.with_numbers(None, Some(5)).expect_err("no burst");
        assert_eq!(errors[0].field, "burst");
    }

    #[test]
    fn other_numbers_keep_debt_waiting_and_settlement_and_give_up_leases() {
        let terms = Terms {
            debt: 7,
            max_wait: Micros::from_secs(2),
            ..fixtures::terms(Kind::TokenBucket, 100, Micros::from_secs(60))
        };
        let limit = Limit {
            lease: true,
            ..fixtures::limit("l", &terms)
        };
        let other = limit.with_numbers(None, Some(10)).expect("good numbers");
        let Algorithm::TokenBucket(bucket) = &other.algorithm else {
            panic!("another algorithm");
        };
        assert_eq!(
            (bucket.debt(), bucket.max_wait()),
            (7, Micros::from_secs(2))
        );
        assert!(!other.lease);
        let places = fixtures::limit("p", &fixtures::terms(Kind::InFlight, 3, Micros::ZERO));
        assert!(places.with_numbers(None, Some(5)).is_err());
        let more = places.with_places(5).expect("places");
        assert!(matches!(&more.algorithm, Algorithm::InFlight(it) if it.most() == 5));
        assert!(places.with_places(0).is_err() && limit.with_places(5).is_err());
    }

    fn burst(limit: &Result<Limit, Vec<QuotaError>>) -> u64 {
        limit.as_ref().expect("good numbers").algorithm.burst()
    }
}
