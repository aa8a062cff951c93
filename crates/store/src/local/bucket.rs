//! A bucket with its numbers, and the items that move to another table or to a snapshot.

use std::sync::Arc;

use tollgate_limit::bucket::State;
use tollgate_limit::{Algorithm, StoredBucket, Timestamp};

use super::table::LATE;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bucket {
    pub(crate) state: State,
    /// The largest burst that a token bucket was drawn under; zero: that of its numbers.
    pub(crate) largest: u64,
    /// The numbers of its last grant, as an index in its table.
    pub(crate) variant: u16,
    /// Those of a token bucket, where the table has others: an override's, or of before a reload.
    pub(crate) own: Option<Arc<Algorithm>>,
}

impl Bucket {
    pub(crate) fn new(state: State, variant: u16) -> Self {
        Self {
            state,
            largest: 0,
            variant,
            own: None,
        }
    }

    /// The same with the largest burst that it was drawn under. `algorithm`: the numbers it is kept in.
    pub(crate) fn of_largest(self, largest: u64, algorithm: &Algorithm) -> Self {
        let is_larger = largest > algorithm.burst();
        Self {
            largest: if is_larger { largest } else { 0 },
            ..self
        }
    }

    /// The bucket with the numbers that it is kept in. `algorithm`: those at its index.
    pub(crate) fn kept(&self, algorithm: &Algorithm) -> StoredBucket {
        let own = self.own.as_deref().unwrap_or(algorithm);
        StoredBucket::from_parts(own.clone(), Some(self.state.clone()), self.largest)
    }

    /// The moment from which it equals no bucket, if any. `algorithm`: the numbers at its index.
    pub(crate) fn expiry(&self, algorithm: &Algorithm) -> Option<Timestamp> {
        let own = self.own.as_deref().unwrap_or(algorithm);
        if own.burst() < self.largest {
            return self.kept(algorithm).expiry();
        }
        own.expiry(&self.state)
    }
}

/// An item that a table passes to its successor, or to a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moving {
    pub(crate) whose: Whose,
    pub(crate) bucket: Bucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Bucket {
        tag: u64,
    },
    /// The possible debt of forgotten keys with tags from `first` to `last`.
    Floor {
        first: u64,
        last: u64,
    },
    /// The possible debt of a key that was never seen.
    Birth,
}

impl Moving {
    pub(crate) fn of(whose: Whose, bucket: Bucket) -> Self {
        Self { whose, bucket }
    }

    /// The same in a table that has its numbers of `variant`.
    pub(crate) fn drawn_by(mut self, variant: u16) -> Self {
        self.bucket.variant = variant;
        self
    }

    /// The same on a clock that was set back to `now`, before the window that it has units of: these
    /// are then the units of the window of `now`.
    pub(crate) fn not_ahead(mut self, own: &Algorithm, now: Timestamp) -> Self {
        if let (Algorithm::FixedWindow(window), State::Steps(steps)) = (own, &mut self.bucket.state)
            && steps.since > now
        {
            steps.since = window.start_of(now);
        }
        self
    }

    /// The same for a table whose numbers of `variant` are `to`, from one with these `from`; `None`:
    /// it has been full for every thread that may still draw, or the limit's buckets are others.
    pub(crate) fn carried(
        self,
        from: &Arc<Algorithm>,
        to: &Algorithm,
        variant: u16,
        now: Timestamp,
    ) -> Option<Self> {
        let Self { whose, bucket } = self;
        let expiry = bucket.expiry(from);
        let is_full = expiry.is_some_and(|expiry| expiry.after(LATE) <= now);
        if is_full || !from.has_buckets_of(to) {
            return None;
        }
        if !matches!(from.as_ref(), Algorithm::TokenBucket(_)) {
            return Some(Self::of(whose, Bucket::new(bucket.state, variant)));
        }
        let kept = bucket.kept(from);
        // Floors are joined, which requires one set of numbers.
        if !matches!(whose, Whose::Bucket { .. }) {
            // As the latest thread sees it, for which it may not be full yet.
            let kept = kept.under(to, now.before(LATE));
            let bucket = Bucket::new(kept.state()?.clone(), variant).of_largest(kept.largest(), to);
            return Some(Self::of(whose, bucket));
        }
        let own = bucket.own.as_ref().unwrap_or(from);
        let carried = Bucket {
            own: (**own != *to).then(|| Arc::clone(own)),
            ..Bucket::new(bucket.state, variant)
        };
        Some(Self::of(whose, carried.of_largest(kept.largest(), own)))
    }
}
