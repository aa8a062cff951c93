//! Servers that refuse or fail all calls, or some.

use super::*;

/// A server whose calls all fail so.
pub(super) struct Failing(pub(super) fn(String) -> Trouble);

impl Link for Failing {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), _: &Batch) -> Result<Answer, Trouble> {
        Err((self.0)("failed".into()))
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// A cluster in which one of two parts refuses its calls.
pub(super) struct HalfRefusing;

impl Link for HalfRefusing {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), batch: &Batch) -> Result<Answer, Trouble> {
        match self.part(&batch.buckets[0].0) {
            0 => Ok(granted(batch)),
            _ => Err(Trouble::Refused("failed".into())),
        }
    }

    fn part(&self, name: &Name) -> u32 {
        u32::from(name.hash % 2 == 1)
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(60)
    }
}
