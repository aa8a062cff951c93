//! The thread that watches the store's document and the ends of overrides. It sleeps while there is
//! nothing to do: without a store and without overrides it never wakes up.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{CacheFile, Document, Inner, Overrides, PLACES, ours};
use crate::own_thread::OwnThread;
use tollgate_limit::{Placement, Timestamp};
use tollgate_store::{Document as StoreDocument, clock::Clock};

/// How often what the store told is written again after a failure, such as a full disk.
const KEEP_TOLD_EVERY: Duration = Duration::from_secs(30);

/// How often a test's clock is looked at: its time passes without a timer.
const TICK: Duration = Duration::from_millis(20);

impl Overrides {
    /// Watches the store and the ends of overrides, on a thread of its own.
    pub(crate) fn watch(&self) -> std::io::Result<OwnThread> {
        let overrides = self.clone();
        OwnThread::start("overrides", move |stopped| async move {
            overrides.watch_until(stopped).await;
        })
    }

    /// Lets the thread look again: a reload may have brought another store.
    pub(crate) fn look_again(&self) {
        self.0.wake.notify_one();
    }
}

impl Overrides {
    async fn watch_until(&self, stopped: watch::Receiver<bool>) {
        let kept = &*self.0;
        let mut limits = kept.limits();
        {
            // A limit may have gone while no gateway ran.
            let known = kept.known.lock();
            let overrides = known.local.overrides.iter();
            limits.extend(overrides.map(|one| (Arc::from(&*one.limit), Placement::Local)));
        }
        kept.watch(stopped, async || {
            let present = kept.limits();
            let removed: Vec<_> = limits.difference(&present).cloned().collect();
            match self.end_a_day_after(&removed).await {
                Ok(()) => limits = present,
                Err(error) => {
                    // It is tried again with the next look.
                    tracing::warn!(%error, "overrides of limits that are gone keep their ends");
                }
            }
        })
        .await;
    }
}

impl Inner {
    fn limits(&self) -> HashSet<(Arc<str>, Placement)> {
        let snapshot = self.current.load();
        let rules = snapshot.policy.rules.iter();
        rules
            .map(|rule| (Arc::clone(&rule.live.name), rule.live.placement))
            .collect()
    }

    /// Watches; `looked` is called with each look.
    async fn watch(&self, mut stopped: watch::Receiver<bool>, mut looked: impl AsyncFnMut()) {
        let (mut store, mut since) = (None, self.clock.now());
        loop {
            looked().await;
            let backend = Arc::clone(self.current.load().limiter.shared());
            let is_same = |(known, _): &(std::sync::Weak<_>, _)| {
                std::ptr::eq(known.as_ptr(), Arc::as_ptr(&backend))
            };
            if !store.as_ref().is_some_and(is_same) {
                // A reload has brought another store, or none.
                if store.is_some() {
                    self.learn(Placement::Shared, |known| {
                        known.shared = Document::default();
                    });
                }
                let watched = backend.remote().map(|store| store.document());
                if let Some(watched) = &watched {
                    self.learn_shared(watched);
                }
                store = Some((Arc::downgrade(&backend), watched));
            }
            drop(backend);
            let watched = store.as_mut().and_then(|(_, watched)| watched.as_mut());
            tokio::select! {
                watched = changed(watched) => match watched {
                    Some(watched) => self.learn_shared(watched),
                    // The store is closed: its document does not change any more.
                    None => if let Some((_, watched)) = &mut store { *watched = None; },
                },
                () = self.wake.notified() => {}
                () = sleep(self.idle_for(since)) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
            if let Some((_, Some(watched))) = &store {
                self.keep_told(watched);
            }
            let now = self.clock.now();
            self.end(since, now);
            since = now;
        }
    }

    /// How long the thread has nothing to do that has seen to all ends up to `since`; `None`: until something
    /// is changed.
    pub(super) fn idle_for(&self, since: Timestamp) -> Option<Duration> {
        let now = self.clock.now();
        let known = self.known.lock();
        let ends = PLACES.into_iter().flat_map(|placement| {
            let ahead = known.ahead_of(placement);
            let entries = known.of(placement).overrides.iter();
            entries.map(move |entry| ours(entry.until(), ahead))
        });
        let next = ends.filter(|end| *end > since).min();
        let next = next.map(|end| Duration::from(end.since(now)));
        let is_outdated = self.cache.as_ref().is_some_and(CacheFile::is_outdated);
        let keep_told = is_outdated.then_some(KEEP_TOLD_EVERY);
        let idle = [next, keep_told].into_iter().flatten().min()?;
        Some(match self.clock {
            Clock::System(_) => idle,
            Clock::Manual(_) => TICK,
        })
    }
}

/// Waits for so long; `None`: forever.
async fn sleep(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

/// Waits for another document; forever without a store. `None`: there will be none.
async fn changed(
    watched: Option<&mut watch::Receiver<StoreDocument>>,
) -> Option<&mut watch::Receiver<StoreDocument>> {
    let Some(watched) = watched else {
        return std::future::pending().await;
    };
    watched.changed().await.ok()?;
    watched.mark_unchanged();
    Some(watched)
}
