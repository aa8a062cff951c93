//! Blocks in the shared store: the store is asked whether they are in force, and keeps new ones.

use tollgate_limit::{Claim, Limit, Micros, Penalty, Settlement, Timestamp, Verdict};
use tollgate_store::{Deadline, Store, StoreError};

use super::Watched;
use crate::{Denied, Generation};

impl<S: Store + Send + Sync> Generation<S> {
    /// Asks the store whether blocks of which this gateway knows are still in force, if it has not
    /// asked of late. While the store does not respond they are.
    pub(super) async fn confirm(
        &self,
        claims: &[Claim<'_>],
        watched: &[Watched<'_>],
        now: Timestamp,
        deadline: &Deadline,
    ) {
        for one in watched {
            let Some(bucket) = one.shared else { continue };
            let Some(block) = self.penalties.due(one.bucket, now) else {
                continue;
            };
            let key = claims[one.place].key;
            match self.blocked_for(bucket, key, deadline).await {
                Ok(Some(_)) if block.unstored => self.penalties.is_stored(one.bucket),
                Ok(None) if block.unstored => {
                    let passed = one.penalty.block.0.saturating_sub(block.until.since(now).0);
                    if passed < STORED_WITHIN.0 {
                        self.store_block(bucket, key);
                    }
                }
                // It was lifted.
                Ok(None) => self.penalties.forget(one.bucket),
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }

    /// How long the store will block a key by this bucket; `None`: it does not.
    pub(super) async fn blocked_for(
        &self,
        bucket: &Limit,
        key: &[u8],
        deadline: &Deadline,
    ) -> Result<Option<Micros>, StoreError> {
        let claims = [Claim::new(bucket, key, 0)];
        let told = self.shared.peek_until(&claims, deadline).await?;
        Ok(match told.first().map(|standing| standing.verdict) {
            Some(Verdict::Deny { retry_after }) => retry_after,
            _ => None,
        })
    }

    fn store_block(&self, bucket: &Limit, key: &[u8]) {
        let block = Settlement::new(bucket, key, Penalty::BLOCK);
        self.shared.settle(&[block]);
    }

    /// Counts the refusals of `watched`, and blocks keys because of them.
    pub(super) async fn count(
        &self,
        claims: &[Claim<'_>],
        watched: &[Watched<'_>],
        denied: &mut Denied,
        (now, deadline): (Timestamp, &Deadline),
    ) {
        for place in self.count_refusals(denied, watched, now) {
            let Some(one) = watched.iter().find(|one| one.place == place) else {
                continue;
            };
            let claim = &claims[place];
            let block = match one.shared {
                Some(bucket) => {
                    let block = self.block_shared(bucket, claim.key, one.penalty, deadline);
                    block.await
                }
                None => (one.penalty.block, false),
            };
            let now = self.local.clock().now();
            self.impose(denied, claim, one, now, block);
        }
    }

    /// Blocks a key in the shared store; returns how long, and whether the store has not confirmed
    /// that it has the block. Asking for the end costs a call, once for each block: then its
    /// Retry-After is as exact as any other.
    async fn block_shared(
        &self,
        bucket: &Limit,
        key: &[u8],
        penalty: Penalty,
        deadline: &Deadline,
    ) -> (Micros, bool) {
        for _ in 0..ATTEMPTS {
            self.store_block(bucket, key);
            match self.blocked_for(bucket, key, deadline).await {
                Ok(Some(left)) => return (left, false),
                // A settlement is not acknowledged: this one was lost.
                Ok(None) => {}
                Err(_) => break,
            }
        }
        (penalty.block, true)
    }
}

/// How often it is tried at once to store a block.
const ATTEMPTS: u32 = 2;

/// How long after its beginning a block is stored again, if the store does not have it. In the store
/// it begins then, so that it ends later by no more than this.
pub(super) const STORED_WITHIN: Micros = Micros::from_secs(60);
