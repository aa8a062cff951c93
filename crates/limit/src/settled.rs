//! Limits whose cost is known only from the response: admission draws an estimate, and the
//! response's cost above the estimate is charged afterwards.
//!
//! Such a charge must never be reduced for a caller that sends one request after another; otherwise
//! the rate used would exceed the rate in the file. A bucket admits requests as long as it holds
//! the estimate, so each response may leave it below zero by the largest correction, and the next
//! request waits until that is paid. With `D` the largest correction, at most `D` more than the
//! limit's own bound is used in any span. Corrections that arrive together lower the level as far
//! as a single one may after the lowest grant, and the rest is forgiven: a hundred responses at
//! once must not block a caller for days.

use super::algorithm::Algorithm;
use super::quota::QuotaError;

impl Algorithm {
    /// The same algorithm; each grant may turn out to cost up to `more` units above what it drew.
    ///
    /// # Errors
    /// When such a debt cannot be counted exactly where it is kept.
    pub fn settling(self, more: u64, shared: bool) -> Result<Self, Vec<QuotaError>> {
        Ok(match self {
            _ if more == 0 => self,
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.settling(more, shared)?),
            Self::Interval(bucket) => Self::Interval(bucket.settling(more, shared)?),
            Self::FixedWindow(bucket) => Self::FixedWindow(bucket.settling(more, shared)?),
            Self::SlidingWindow(window) => Self::SlidingWindow(window.settling(more, shared)?),
            Self::SlidingLog(log) => Self::SlidingLog(log.settling(more, shared)?),
            Self::InFlight(_) => self,
        })
    }

    /// The same algorithm as a ceiling: what a response costs above its reservation takes what its
    /// bucket still holds, and units that are given back return only to the window they came from.
    /// An algorithm that does not know that window stays as it is; its units cannot be given back.
    pub fn ceiling(self) -> Self {
        match self {
            Self::FixedWindow(bucket) => Self::FixedWindow(bucket.ceiling()),
            other => other,
        }
    }

    /// Whether its units are given back only to the window they came from.
    pub fn is_ceiling(&self) -> bool {
        matches!(self, Self::FixedWindow(bucket) if bucket.is_ceiling())
    }

    /// Units that a grant may turn out to cost above what it drew; zero: it is not settled.
    pub fn settled(&self) -> u64 {
        match self {
            Self::TokenBucket(bucket) => bucket.settled(),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => bucket.settled(),
            Self::SlidingWindow(window) => window.settled(),
            Self::SlidingLog(log) => log.settled(),
            Self::InFlight(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fixtures::RATES;
    use crate::{Align, Calendar, Change, Kind, Micros, Terms, Timestamp, fixtures};

    const SECOND: u64 = 1_000_000;
    const START: u64 = 1_760_000_000_000_000;

    fn terms(kind: Kind, amount: u64) -> Terms {
        fixtures::terms(kind, amount, Micros(SECOND))
    }

    /// A past defect: with 100 a second and responses of 1000, 6000 units were used in six seconds.
    #[test]
    fn one_request_after_the_other_is_never_forgiven_anything() {
        let days = (0..4_000)
            .map(|second| Timestamp::from_micros(START - START % SECOND + second * SECOND))
            .collect();
        let calendar = Align::Calendar(Arc::new(Calendar {
            boundaries: days,
            words: "second".into(),
        }));
        let mut all: Vec<Terms> = RATES.into_iter().map(|kind| terms(kind, 100)).collect();
        all.push(Terms {
            align: calendar,
            ..terms(Kind::FixedWindow, 100)
        });
        all.push(Terms {
            debt: 50,
            burst: Some(60),
            ..terms(Kind::TokenBucket, 100)
        });
        all.push(Terms {
            max_wait: Micros(3 * SECOND),
            ..terms(Kind::TokenBucket, 100)
        });
        all.push(Terms {
            max_wait: Micros(3 * SECOND),
            ..terms(Kind::SlidingLog, 100)
        });
        all.push(Terms {
            max_wait: Micros(3 * SECOND),
            ..terms(Kind::SlidingWindow, 100)
        });
        for (place, terms) in all.iter().enumerate() {
            for (seed, (estimate, dearest)) in
                [(1, 1_000), (0, 1_000), (10, 60), (100, 130), (1, 7_777)]
                    .into_iter()
                    .enumerate()
            {
                let mut rng = fastrand::Rng::with_seed(seed as u64);
                let limit = Algorithm::new(terms)
                    .and_then(|limit| limit.settling(dearest - estimate, false));
                let limit = limit.expect("representable");
                let (mut state, mut now, mut used) = (None, START, 0);
                while now < START + 3_000 * SECOND {
                    let at = Timestamp::from_micros(now);
                    match limit.judge(state.as_ref(), estimate, at) {
                        Ok(granted) => {
                            now += granted.wait.0 + rng.u64(0..SECOND / 3);
                            let wait = granted.wait;
                            limit.apply(&mut state, granted.next);
                            assert!(wait <= terms.max_wait);
                            let cost = if rng.bool() {
                                dearest
                            } else {
                                rng.u64(estimate..=dearest)
                            };
                            let change = Change::Charge {
                                more: cost - estimate,
                            };
                            limit.settle(&mut state, change, Timestamp::from_micros(now));
                            used += cost;
                        }
                        Err(refused) => {
                            now += refused.retry_after.expect("it is a matter of time").0
                        }
                    }
                    // Two windows overlap at each edge.
                    let bound = 100 * ((now - START) / SECOND + 2) + 100 + terms.debt + dearest;
                    assert!(
                        used <= bound,
                        "{place}: {used} of {bound} after {} us of {terms:?}",
                        now - START
                    );
                }
                assert!(
                    used > 100 * 500,
                    "{place}: all that waiting is paid for: {used} of {terms:?}"
                );
            }
        }
    }

    #[test]
    fn a_debt_too_deep_to_be_counted_is_an_error_that_says_the_most() {
        for kind in RATES {
            for shared in [false, true] {
                let make = |more| {
                    let terms = Terms {
                        shared,
                        ..terms(kind, 100)
                    };
                    Algorithm::new(&terms)
                        .expect("representable")
                        .settling(more, shared)
                };
                let errors = make(u64::MAX).expect_err("too much for any integer");
                assert_eq!(errors[0].field, "settle");
                let most = errors[0]
                    .message
                    .split_whitespace()
                    .find_map(|word| word.parse().ok())
                    .expect("a number");
                assert_eq!(make(most).expect("the most").settled(), most, "{kind:?}");
                assert!(make(most + 1).is_err(), "{kind:?}");
            }
        }
    }

    #[test]
    fn settled_responses_at_once_are_charged_up_to_the_dearest() {
        for kind in RATES {
            let limit =
                Algorithm::new(&terms(kind, 100)).and_then(|limit| limit.settling(1_000, false));
            let limit = limit.expect("representable");
            let (mut state, now) = (None, Timestamp::from_micros(START));
            for _ in 0..100 {
                limit.settle(&mut state, Change::Charge { more: 1_000 }, now);
            }
            let refused = limit.judge(state.as_ref(), 1, now).expect_err("in debt");
            let wait = refused.retry_after.expect("it is a matter of time").0;
            assert!(
                (10 * SECOND..=14 * SECOND).contains(&wait),
                "{kind:?}: {wait}"
            );
        }
    }

    #[test]
    fn settled_share_pays_for_a_response_like_the_whole() {
        for kind in RATES {
            let limit =
                Algorithm::new(&terms(kind, 100)).and_then(|limit| limit.settling(1_000, true));
            assert_eq!(
                limit.expect("representable").share(4).settled(),
                1_000,
                "{kind:?}"
            );
        }
    }
}
