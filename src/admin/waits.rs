//! How long one response waits for the store: a store that is silent, or slow, would otherwise be
//! waited for once for each bucket.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::live::Live;
use crate::overrides::ChangeError;
use tollgate_limit::{Limit, Placement};

/// Until when a response waits for the store; by default it never stops.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// When it stops to ask how buckets stand.
    reads: Option<Instant>,
    /// When it stops to wait for changes.
    changes: Option<Instant>,
}

impl Live {
    /// A copy for the response to a read, which stops asking the store after 2 s.
    pub(super) fn for_read(&self) -> Self {
        self.waiting(Waits {
            reads: Some(Instant::now() + READ_WITHIN),
            changes: None,
        })
    }

    /// A copy for the response to a change. What reads leave of its time is for the change.
    pub(super) fn for_change(&self) -> Self {
        let now = Instant::now();
        self.waiting(Waits {
            reads: Some(now + READ_WITHIN),
            changes: Some(now + CHANGE_WITHIN),
        })
    }

    /// A copy for reads that confirm a change: [`Live::confirmed`] has their time limit.
    pub(super) fn for_confirmation(&self) -> Self {
        self.waiting(Waits {
            reads: None,
            ..self.waits
        })
    }

    fn waiting(&self, waits: Waits) -> Self {
        Self {
            waits,
            ..self.clone()
        }
    }

    /// What the store says of a bucket; `None`: the time of this response is up.
    pub(super) async fn in_time<T>(&self, asked: impl Future<Output = T>) -> Option<T> {
        until(self.waits.reads, asked).await
    }

    /// The outcome of a change of `limit`. A change of a limit in the process waits for no store, so
    /// it has no time limit.
    ///
    /// # Errors
    /// The change's own, or that the time of this response is up: before the change, or while it is
    /// made.
    pub(super) async fn change_in_time<T>(
        &self,
        limit: &Limit,
        change: impl Future<Output = Result<T, ChangeError>>,
    ) -> Result<T, ChangeError> {
        let (Some(until), Placement::Shared) = (self.waits.changes, limit.placement) else {
            return change.await;
        };
        if until <= Instant::now() {
            return Err(ChangeError::Unavailable(TOO_SLOW.to_owned()));
        }
        timeout_at(until, change).await.unwrap_or_else(|_| {
            let words = "the store is too slow; the change may have been made";
            Err(ChangeError::Unsure(words.to_owned()))
        })
    }

    /// What `looks` see of a change, which may take all that is left of its time; `None`: nothing yet.
    pub(super) async fn confirmed<T>(&self, looks: impl Future<Output = T>) -> Option<T> {
        until(self.waits.changes, looks).await
    }

    /// The end of something that this response waits for, at most `span` from now.
    pub(super) fn change_ends_within(&self, span: Duration) -> Instant {
        let end = Instant::now() + span;
        self.waits.changes.map_or(end, |until| until.min(end))
    }
}

/// The output of a future that has it before `end`; `None`: it has none by then. A future that is
/// ready has it even after the end.
async fn until<T>(end: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match end {
        Some(end) => timeout_at(end, future).await.ok(),
        None => Some(future.await),
    }
}

/// Why the store is asked no more for a response.
pub(super) const TOO_SLOW: &str = "the store has taken too long for the other buckets";

/// How long the store is asked for one response.
const READ_WITHIN: Duration = Duration::from_secs(2);

/// How long one response waits for changes and what is read for them. `tollgate` gives a gateway a
/// second more by default, so that the gateway's own words reach the operator.
const CHANGE_WITHIN: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::super::tests::live;
    use super::*;
    use tollgate_limit::fixtures::per_minute;

    #[tokio::test]
    async fn change_of_a_limit_in_the_process_is_made_after_the_time_for_the_store() {
        let over = live().waiting(Waits {
            reads: Some(Instant::now()),
            changes: Some(Instant::now()),
        });
        let made = |limit: Limit| {
            let over = &over;
            async move { over.change_in_time(&limit, async { Ok(()) }).await }
        };
        let local = per_minute("a", 1, 1);
        let shared = Limit {
            placement: Placement::Shared,
            ..local.clone()
        };
        assert!(made(local).await.is_ok());
        let late = made(shared).await;
        assert!(matches!(late, Err(ChangeError::Unavailable(_))), "{late:?}");
    }
}
