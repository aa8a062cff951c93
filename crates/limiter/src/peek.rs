//! Reads the levels of buckets for operators, and fills buckets for them: nothing is counted.

use tollgate_limit::{Change, Claim, Corrects, Limit, Placement, Settlement, Standing};
use tollgate_store::{Store, StoreError};

use super::limiter::Limiter;
use super::permit::{DrawnFrom, Settle as _};

/// How a bucket stands, and by which numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// The standing of the bucket.
    pub standing: Standing,
    /// The capacity by the numbers that it was read by: those of an override, or the limit's own.
    pub capacity: u64,
}

impl<S: Store> Limiter<S> {
    /// How the bucket of `claim` stands, and what it would say to its cost now. The level of a
    /// leased limit does not include the units that gateways hold.
    ///
    /// # Errors
    /// When its store does not answer.
    pub async fn peek(&self, claim: Claim<'_>) -> Result<Peeked, StoreError> {
        let generation = &self.generation;
        let now = generation.local.clock().now();
        // Under the numbers of an override; a block or no limit leave the bucket as it is.
        let outcomes = generation.resolve(&[claim], now);
        let claims = [outcomes[0].claim(&claim)];
        let standings = match claim.limit.placement {
            Placement::Local => generation.local.peek_at(&claims, now),
            Placement::Shared => generation.shared.peek(&claims).await?,
        };
        let standing = standings.first().copied();
        Ok(Peeked {
            standing: standing.ok_or_else(|| StoreError::Garbled("no standing".to_owned()))?,
            capacity: claims[0].limit.algorithm.capacity(),
        })
    }

    /// Whether this is the first call, on all gateways that share the bucket, for this key beside the buckets
    /// of `limit` ([`tollgate_limit::key::beside`]): the first one draws all units of a bucket under that key.
    ///
    /// # Errors
    /// When its store does not answer; then the next call may not be the first.
    pub async fn is_first(&self, limit: &Limit, key: &[u8]) -> Result<bool, StoreError> {
        let generation = &self.generation;
        let claims = [Claim::new(limit, key, limit.algorithm.greatest_cost())];
        let drawn = match limit.placement {
            Placement::Local => {
                let now = generation.local.clock().now();
                generation.local.draw_at(&claims, now)
            }
            Placement::Shared => generation.shared.draw(&claims).await?,
        };
        Ok(drawn.granted)
    }

    /// Gives units back to the bucket of `limit` for `key`, never above its burst. For a correction
    /// that a trusted peer reports about a request that was charged before. Places of a concurrency
    /// limit are held by requests and cannot be given back.
    pub fn give_back(&self, limit: &Limit, key: &[u8], units: u64) {
        if let Some(depth) = limit.algorithm.depth() {
            let units = units.min(depth);
            let refund = Settlement::new(limit, key, Change::Refund { units });
            self.generation.settle(refund, DrawnFrom::Bucket);
        }
    }

    /// Charges units to the bucket of `limit` for `key`, which may go into debt by one burst. For what
    /// a trusted peer reports after the fact.
    pub fn charge(&self, limit: &Limit, key: &[u8], units: u64) {
        let charge = Settlement::new(limit, key, Change::Charge { more: units });
        self.generation.settle(charge, DrawnFrom::Bucket);
    }

    /// Fills the bucket of `limit` for `key`; [`Limiter::peek`] says what came of it. A bucket stays
    /// as it is while requests wait for its units (`max_wait`). Returns whether the limit has
    /// buckets to fill: the places of a concurrency limit are held by requests.
    pub fn reset(&self, limit: &Limit, key: &[u8]) -> bool {
        let generation = &self.generation;
        // A bucket with an override lacks as much as its numbers allow.
        let claim = Claim::new(limit, key, 0);
        let outcomes = generation.resolve(&[claim], generation.local.clock().now());
        let limit = outcomes[0].claim(&claim).limit;
        let Some(units) = limit.algorithm.depth() else {
            return false;
        };
        let reset = Settlement {
            corrects: Corrects::Reset,
            ..Settlement::new(limit, key, Change::Refund { units })
        };
        // It gives back more units than were charged, so it is not counted among the refunds.
        generation.correct(reset, DrawnFrom::Bucket);
        true
    }
}
