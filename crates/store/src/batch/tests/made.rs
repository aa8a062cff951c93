//! A server that is made up.

use super::*;

/// Responds to calls as a test demands.
pub(super) struct Made<K, C> {
    /// What it remembers of its calls.
    pub(super) kept: K,
    pub(super) call: C,
    /// How long until the next turn of housekeeping.
    pub(super) housekeep_every: Duration,
    /// How often it was kept house for.
    pub(super) housekeeps: AtomicU64,
}

impl<K, C: AsyncFn(&K, &Batch) -> Answer> Made<K, C> {
    pub(super) fn new(kept: K, call: C) -> Self {
        Self {
            kept,
            call,
            housekeep_every: Duration::from_millis(20),
            housekeeps: AtomicU64::new(0),
        }
    }
}

/// A server that grants everything.
pub(super) fn granting() -> impl Link<Connection = ()> {
    Made::new((), async |(), batch: &Batch| granted(batch))
}

/// That all buckets are full and everything is granted.
pub(super) fn granted(batch: &Batch) -> Answer {
    Answer {
        now: START,
        before: batch.buckets.iter().map(|_| None).collect(),
        granted: batch.groups.iter().map(|group| group.count).collect(),
        leased: batch.leases.iter().map(|_| 0).collect(),
        unreadable: Vec::new(),
    }
}

/// Lets others come and go so many times: a call takes its time.
pub(super) async fn turns(many: u32) {
    for _ in 0..many {
        tokio::task::yield_now().await;
    }
}

impl<K: 'static, C: AsyncFn(&K, &Batch) -> Answer + 'static> Link for Made<K, C> {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), batch: &Batch) -> Result<Answer, Trouble> {
        Ok((self.call)(&self.kept, batch).await)
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        self.housekeeps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        self.housekeep_every
    }
}
