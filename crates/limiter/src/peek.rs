//! Reads the levels of buckets for operators, and fills buckets for them: nothing is counted.

use tollgate_limit::{Change, Claim, Limit, Placement, Settlement, Standing};
use tollgate_store::{Deadline, Store, StoreError};

use super::permit::{DrawnFrom, Settle as _};
use super::two_stores::{Claims, merge};
use super::{Limiter, feedback};

/// How a bucket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Its standing.
    pub standing: Standing,
    /// The capacity by the numbers that it was read by: those of an override, or the limit's own.
    pub capacity: u64,
}

impl<S: Store + Send + Sync> Limiter<S> {
    /// How the bucket of `claim` stands, and what it would say to its cost now. The level of a
    /// leased limit does not include the units that gateways hold.
    ///
    /// # Errors
    /// When its store does not answer.
    pub async fn peek(&self, claim: Claim<'_>) -> Result<Peeked, StoreError> {
        let peeked = self.peeked(&[claim], &Deadline::default()).await?;
        peeked.first().copied().ok_or_else(missing)
    }

    /// The same of several buckets, those of the shared store by one call. `deadline`: that of the
    /// request for which they are read.
    ///
    /// # Errors
    /// As [`Limiter::peek`].
    pub async fn peek_all(
        &self,
        claims: &[Claim<'_>],
        deadline: &Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        let peeked = self.peeked(claims, deadline).await?;
        Ok(peeked.iter().map(|peeked| peeked.standing).collect())
    }

    async fn peeked(
        &self,
        claims: &[Claim<'_>],
        deadline: &Deadline,
    ) -> Result<Vec<Peeked>, StoreError> {
        let generation = &self.generation;
        let now = generation.local.clock().now();
        // Under the numbers of an override; a block or no limit leave the bucket as it is.
        let found = generation.found(claims, now);
        let limits = found
            .as_ref()
            .map(|found| generation.limits_under(claims, found));
        let own = |place: usize| limits.as_ref().and_then(|limits| limits[place].as_deref());
        let claims: Claims<'_> = claims
            .iter()
            .enumerate()
            .map(|(place, claim)| own(place).map_or(*claim, |own| own.of(claim)))
            .collect();
        let (shared, local): (Claims<'_>, Claims<'_>) = claims
            .iter()
            .copied()
            .partition(|claim| claim.limit.placement == Placement::Shared);
        let mut stored = Vec::new();
        if !shared.is_empty() {
            stored = generation.shared.peek_until(&shared, deadline).await?;
            if stored.len() != shared.len() {
                return Err(missing());
            }
        }
        let conditions = generation.feedback.conditions(&local, now);
        let local = feedback::under(&local, &conditions);
        let local = generation.local.peek_at(&local, now);
        let standings = merge(&claims, local.into(), stored.into());
        let capacities = claims.iter().map(|claim| claim.limit.algorithm.capacity());
        let peeked = standings.into_iter().zip(capacities);
        let peeked = peeked.map(|(standing, capacity)| Peeked { standing, capacity });
        Ok(peeked.collect())
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
        // A bucket with an override lacks as much as its numbers allow.
        let claims = [Claim::new(limit, key, 0)];
        let found = self
            .generation
            .found(&claims, self.generation.local.clock().now());
        let limits = found.map(|found| self.generation.limits_under(&claims, &found));
        let own = limits.as_ref().and_then(|limits| limits[0].as_deref());
        let limit = own.map_or(limit, |own| &own.limit);
        let Some(units) = limit.algorithm.depth() else {
            return false;
        };
        let refund = Settlement::new(limit, key, Change::Refund { units });
        // It gives back more units than were charged, so it is not counted among the refunds.
        self.generation.correct(refund, DrawnFrom::Bucket);
        true
    }
}

fn missing() -> StoreError {
    StoreError::Garbled("no standing for the bucket".to_owned())
}
