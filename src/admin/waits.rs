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

    /// A copy for the looks of [`Live::confirmed`], which has their time limit.
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
        match self.waits.reads {
            // What is ready is taken even after the end.
            Some(end) => timeout_at(end, asked).await.ok(),
            None => Some(asked.await),
        }
    }

    /// The outcome of a change of a limit with this placement. A change of a limit in the process waits for no store, so
    /// it has no time limit.
    /// The error is the change's own, or that the time of this response is up: before the change, or while it is
    /// made.
    pub(super) async fn change_in_time<T>(
        &self,
        placement: Placement,
        change: impl Future<Output = Result<T, ChangeError>>,
    ) -> Result<T, ChangeError> {
        let (Some(until), Placement::Shared) = (self.waits.changes, placement) else {
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

    /// Looks at a bucket of `limit` that was filled until a look sees it full, which it returns.
    /// `notice` tells the other gateways, in a task of its own, so that it takes no time from the response.
    pub(super) async fn confirmed<T, L: Future<Output = Option<T>>>(
        &self,
        limit: &Limit,
        notice: impl Future<Output = Result<(), ChangeError>> + Send + 'static,
        look: impl Fn() -> L,
    ) -> Option<T> {
        // Gateways without the notice ask the store again within a second, and their bounds of
        // exhausted buckets end by themselves.
        let (live, placement) = (self.clone(), limit.placement);
        tokio::spawn(async move { live.change_in_time(placement, notice).await });
        let looks = async {
            loop {
                if let Some(seen) = look().await {
                    return seen;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let span = Instant::now() + CHANGE_WITHIN;
        timeout_at(self.waits.changes.unwrap_or(span), looks)
            .await
            .ok()
    }
}

/// Why the store is asked no more for a response.
pub(super) const TOO_SLOW: &str = "the store is too slow: the time of this response is over";

/// How long the store is asked for one response.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(2);

/// How long one response waits for changes and what is read for them. `tollgate` waits longer by
/// default, so that the gateway's own words reach the operator.
pub(crate) const CHANGE_WITHIN: Duration = Duration::from_secs(4);

/// The interval at which a gateway checks whether a change is made: corrections of a shared bucket
/// are sent with the next call.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
            async move { over.change_in_time(limit.placement, async { Ok(()) }).await }
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

    /// The notice waits as long as it may, and the second look sees the bucket full.
    #[tokio::test(start_paused = true)]
    async fn change_is_confirmed_while_the_notice_to_the_other_gateways_waits() {
        let began = Instant::now();
        let live = live().waiting(Waits {
            reads: None,
            changes: Some(began + CHANGE_WITHIN),
        });
        let limit = Limit {
            placement: Placement::Shared,
            ..per_minute("a", 1, 1)
        };
        let looks = std::cell::Cell::new(0);
        let look = || async {
            looks.set(looks.get() + 1);
            match looks.get() {
                1 => None,
                look => Some(look),
            }
        };
        let notice = std::future::pending();
        let seen = live.confirmed(&limit, notice, look).await;
        assert_eq!(seen, Some(2));
        assert!(began.elapsed() < READ_WITHIN, "{:?}", began.elapsed());
    }
}
