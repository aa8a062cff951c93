//! Keeps what limits have learnt from their upstreams and passes it to each decision as plain
//! numbers ([`tollgate_limit::Conditions`]). It is kept here because the core has no state and a
//! store keeps only buckets.

mod places;
mod rate;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tollgate_limit::in_flight::FIRST;
use tollgate_limit::{Algorithm, Conditions, Limit, Micros, Timestamp};
use tollgate_store::local::{Learnt, same_bucket};

use places::{Adaptive, PlacesFeedback};
pub use rate::RateFeedback;

#[derive(Debug, Default)]
pub(super) struct Feedback {
    by_limit: Box<[Option<Taught>]>,
}

#[derive(Debug)]
enum Taught {
    Rate(RateFeedback),
    Places(Arc<PlacesFeedback>),
}

impl Feedback {
    pub(super) fn new(limits: &[Arc<Limit>]) -> Self {
        Self::default().next(&[], limits)
    }

    /// The feedback for the next policy. Limits that existed before keep what they have learnt.
    pub(super) fn next(&self, before: &[Arc<Limit>], limits: &[Arc<Limit>]) -> Self {
        // Nearly always there is nothing to keep, and many limits to look for.
        let before = if self.by_limit.is_empty() {
            &[]
        } else {
            before
        };
        let taught = |limit: &Arc<Limit>| {
            let old = before.iter().position(|old| same_bucket(old, limit));
            Taught::new(limit, old.and_then(|old| self.taught(old)))
        };
        let by_limit: Vec<_> = limits.iter().map(taught).collect();
        // No limit learns anything, so requests skip the look-up.
        if by_limit.iter().all(Option::is_none) {
            return Self::default();
        }
        Self {
            by_limit: by_limit.into(),
        }
    }

    /// The conditions under which a claim of this limit is judged at `now`.
    pub(super) fn conditions(&self, limit: usize, now: Timestamp) -> Option<Conditions> {
        Some(match self.taught(limit)? {
            Taught::Rate(rate) => Conditions::Rate(rate.conditions(now)),
            Taught::Places(places) => Conditions::Places(places.places()),
        })
    }

    pub(super) fn rate(&self, limit: usize) -> Option<&RateFeedback> {
        match self.taught(limit)? {
            Taught::Rate(rate) => Some(rate),
            Taught::Places(_) => None,
        }
    }

    pub(super) fn places(&self, limit: usize) -> Option<u64> {
        match self.taught(limit)? {
            Taught::Rate(_) => None,
            Taught::Places(places) => Some(places.places()),
        }
    }

    /// Records an upstream's response after `took`, with `remaining` places left by the request.
    /// `lost`: there was no response, or a 503.
    pub(super) fn answered(
        &self,
        limit: usize,
        now: Timestamp,
        took: Micros,
        remaining: u64,
        lost: bool,
    ) {
        if let Some(Taught::Places(places)) = self.taught(limit) {
            let in_flight = places.places().saturating_sub(remaining);
            places.answered(now, took, in_flight, lost);
        }
    }

    /// What limits have learnt, by index, for a snapshot.
    pub(super) fn learnt(&self) -> Vec<(usize, Learnt)> {
        let learnt = |(limit, taught): (usize, &Option<Taught>)| match taught.as_ref()? {
            Taught::Rate(rate) => Some((limit, Learnt::Share(rate.learnt()))),
            Taught::Places(places) => Some((limit, Learnt::Places(places.learnt()))),
        };
        let by_limit = self.by_limit.iter().enumerate();
        by_limit.filter_map(learnt).collect()
    }

    /// Restores what limits of the same kind had learnt, within their own numbers.
    pub(super) fn relearn(&self, learnt: &[(usize, Learnt)], now: Timestamp) {
        for (limit, learnt) in learnt {
            match (self.taught(*limit), learnt) {
                (Some(Taught::Rate(rate)), Learnt::Share(share)) => rate.relearn(*share, now),
                (Some(Taught::Places(places)), Learnt::Places(learnt)) => places.relearn(*learnt),
                _ => {}
            }
        }
    }

    #[inline]
    fn taught(&self, limit: usize) -> Option<&Taught> {
        self.by_limit.get(limit)?.as_ref()
    }
}

impl Taught {
    fn new(limit: &Limit, before: Option<&Self>) -> Option<Self> {
        match &limit.algorithm {
            Algorithm::InFlight(limit) if limit.is_adaptive() => {
                let bounds = (limit.least(), limit.most());
                let places = match before {
                    Some(Self::Places(old)) if old.bounds() == bounds => Arc::clone(old),
                    Some(Self::Places(old)) => Arc::new(old.within(bounds.0, bounds.1)),
                    _ => {
                        let controller = Adaptive::new(bounds.0, bounds.1, FIRST);
                        Arc::new(PlacesFeedback::new(controller))
                    }
                };
                Some(Self::Places(places))
            }
            algorithm => {
                let rate = RateFeedback::new(*algorithm.follows()?, algorithm.quota()?);
                Some(Self::Rate(match before {
                    Some(Self::Rate(before)) => rate.after(before),
                    _ => rate,
                }))
            }
        }
    }
}
