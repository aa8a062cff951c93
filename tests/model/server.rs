//! A shared store by its definition: one map of buckets, each kept in the numbers of its last grant. It forgets none, is never
//! away, and does at once what a real store does with its next call.

use std::collections::HashMap;
use std::sync::Mutex;

use tollgate_limit::{Change, Claim, Draw, Limit, Settlement, Standing, StoredBucket, Verdict};
use tollgate_store::clock::Clock;
use tollgate_store::{Deadline, HashKey, Store, StoreError};

/// The store that all gateways of a trace share.
#[derive(Debug)]
pub(crate) struct Server {
    clock: Clock,
    names: HashKey,
    buckets: Mutex<HashMap<u128, StoredBucket>>,
}

impl Server {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            names: HashKey::new(b"the secret of the model"),
            buckets: Mutex::default(),
        }
    }

    /// The bucket of a claim under its numbers.
    fn seen(&self, buckets: &HashMap<u128, StoredBucket>, claim: &Claim<'_>) -> StoredBucket {
        let own = &claim.limit.algorithm;
        let kept = buckets.get(&self.names.bucket(claim.limit, claim.key));
        kept.map_or_else(
            || StoredBucket::full(own.clone()),
            |kept| kept.under(own, self.clock.now()),
        )
    }

    fn change(&self, limit: &Limit, key: &[u8], change: impl FnOnce(&mut StoredBucket)) {
        let mut buckets = self.buckets.lock().expect("not poisoned");
        let full = || StoredBucket::full(limit.algorithm.clone());
        change(
            buckets
                .entry(self.names.bucket(limit, key))
                .or_insert_with(full),
        );
    }
}

impl Store for Server {
    async fn draw_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        let now = self.clock.now();
        let mut buckets = self.buckets.lock().expect("not poisoned");
        let mut seen: Vec<StoredBucket> = claims
            .iter()
            .map(|claim| self.seen(&buckets, claim))
            .collect();
        let judged: Vec<_> = claims
            .iter()
            .zip(&seen)
            .map(|(claim, kept)| claim.limit.algorithm.judge(kept.state(), claim.cost, now))
            .collect();
        let verdicts: Vec<Verdict> = judged.iter().map(Verdict::from).collect();
        let granted = claims
            .iter()
            .zip(&verdicts)
            .all(|(claim, verdict)| !claim.enforced || verdict.is_allow());
        for ((claim, kept), judged) in claims.iter().zip(&mut seen).zip(judged) {
            if let (true, true, Ok(drawn)) = (granted, claim.cost > 0, judged) {
                kept.grant(drawn.next);
                buckets.insert(self.names.bucket(claim.limit, claim.key), kept.clone());
            }
        }
        let standing = |((claim, kept), verdict): ((&Claim<'_>, &StoredBucket), Verdict)| {
            Standing::new(verdict, claim.limit.algorithm.report(kept.state(), now))
        };
        let seen = claims.iter().zip(&seen);
        Ok(Draw {
            granted,
            standings: seen.zip(verdicts).map(standing).collect(),
            at: now,
        })
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        for one in settlements {
            let Settlement { limit, key, .. } = *one;
            let change: Change = one.change;
            self.change(limit, key, |kept| {
                kept.settle(&limit.algorithm, change, self.clock.now());
            });
        }
    }

    async fn peek_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        let now = self.clock.now();
        let buckets = self.buckets.lock().expect("not poisoned");
        let standing = |claim: &Claim<'_>| {
            let kept = self.seen(&buckets, claim);
            let own = &claim.limit.algorithm;
            let verdict = Verdict::from(&own.judge(kept.state(), claim.cost, now));
            Standing::new(verdict, own.report(kept.state(), now))
        };
        Ok(claims.iter().map(standing).collect())
    }

    fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> Option<u128> {
        Some(self.names.bucket(limit, key))
    }
}
