//! A bucket with the numbers it is kept in, and the items that move from one table to another or to a
//! snapshot.

use std::sync::Arc;

use tollgate_limit::bucket::State;
use tollgate_limit::{Algorithm, Kept, Timestamp};

use super::table::LATE;

/// The state of a bucket, and what it remembers of other numbers ([`Kept::beyond`]).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bucket {
    pub(crate) state: State,
    pub(crate) beyond: u64,
    /// The numbers of its last draw, as an index in its table.
    pub(crate) by: u16,
    /// Those numbers, if a reload has changed them since. The bucket is kept in them, as in a
    /// shared store.
    pub(crate) own: Option<Arc<Algorithm>>,
}

impl Bucket {
    /// A bucket in the numbers at `by`.
    pub(crate) fn new(state: State, beyond: u64, by: u16) -> Self {
        Self {
            state,
            beyond,
            by,
            own: None,
        }
    }

    /// The moment from which it equals no bucket under any numbers; `None`: there is none.
    /// `algorithm`: the numbers at its index.
    pub(crate) fn expiry(&self, algorithm: &Algorithm) -> Option<Timestamp> {
        let own = self.own.as_deref().unwrap_or(algorithm);
        own.expiry_beyond(&self.state, self.beyond)
    }
}

/// An item that a table passes to its successor, or to a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moving {
    pub(crate) whose: Whose,
    pub(crate) bucket: Bucket,
}

/// The owner of a moved item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// One key's bucket.
    Bucket {
        /// Its tag.
        tag: u64,
    },
    /// The possible debt of forgotten keys with tags from `first` to `last`.
    Floor {
        /// The lowest tag.
        first: u64,
        /// The highest tag.
        last: u64,
    },
    /// The possible debt of a key that was never seen.
    Birth,
}

impl Moving {
    /// The same in a table that has its numbers at index `by`.
    pub(crate) fn drawn_by(mut self, by: u16) -> Self {
        self.bucket.by = by;
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

    /// The same for a table whose numbers at index `by` are `to`; `None`: full there.
    pub(crate) fn rescaled(
        self,
        from: &Arc<Algorithm>,
        to: &Algorithm,
        by: u16,
        now: Timestamp,
    ) -> Option<Self> {
        let Self { whose, bucket } = self;
        let from = bucket.own.as_ref().unwrap_or(from);
        // (Floors are joined, which requires one set of numbers.)
        let is_one = matches!(whose, Whose::Bucket { .. });
        if is_one && Kept::keeps_pace(from, to) && bucket.expiry(from)? > now {
            let own = (**from != *to).then(|| Arc::clone(from));
            let bucket = Bucket { own, by, ..bucket };
            return Some(Self { whose, bucket });
        }
        let kept = Kept::from_parts((**from).clone(), Some(bucket.state), bucket.beyond);
        let (state, beyond) = kept.handed_on(to, now, LATE)?;
        let bucket = Bucket::new(state, beyond, by);
        Some(Self { whose, bucket })
    }
}
