//! Names the buckets of a shared store, and makes the form of each limit once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::WireForm;
use crate::batch::{Origin, Wanted, Wants};
use crate::bucket_hash::HashKey;
use tollgate_limit::{Claim, Limit, key};

/// A bucket's name in a shared store: a keyed hash, because a caller's secret must not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Hash of the caller's identity alone: in a cluster it puts buckets of one caller in one slot.
    pub(crate) tag: u32,
    /// Hash of version, limit, role, algorithm and period, and identity.
    pub(crate) hash: u128,
}

/// Names buckets and keeps the shapes of the limits seen.
#[derive(Debug)]
pub(crate) struct Names {
    secret: HashKey,
    /// By a limit's index, oldest first. After a reload, old requests still settle in the numbers
    /// they were admitted with, keys with an override have their own, and equal numbers must stay
    /// the same wire form.
    shapes: RwLock<Vec<SmallVec<[Known; 1]>>>,
}

const KNOWN_MAX: usize = 64;

#[derive(Debug)]
struct Known {
    /// Whether it was used since a place was last sought: then it stays.
    used: AtomicBool,
    limit: Limit,
    shape: Arc<WireForm>,
}

impl Known {
    fn is(&self, limit: &Limit) -> bool {
        let own = &self.limit;
        own.role == limit.role
            && own.refundable == limit.refundable
            && own.resettable == limit.resettable
            && own.lease == limit.lease
            && own.on_failover == limit.on_failover
            && (Arc::ptr_eq(&own.name, &limit.name) || own.name == limit.name)
            && own.algorithm == limit.algorithm
    }
}

impl Names {
    /// Names keyed by `secret`, which all gateways of one store must share.
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self {
            secret: HashKey::new(secret),
            shapes: RwLock::default(),
        }
    }

    pub(crate) fn name(&self, limit: &Limit, identity: &[u8]) -> Name {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a tag is 32 bits of a hash"
        )]
        let tag = self.secret.bytes(identity) as u32;
        Name {
            tag,
            hash: self.secret.bytes(&key::of_bucket(limit, identity)),
        }
    }

    /// The name of a store that keeps its data there. With another secret it has other buckets.
    pub(crate) fn store(&self, origin: Origin) -> u64 {
        let (print, database) = origin;
        let place = [print.to_le_bytes(), database.to_le_bytes()].concat();
        let hash = self.secret.bytes(&[b"store ", &place[..]].concat());
        #[expect(clippy::cast_possible_truncation, reason = "64 bits of a hash")]
        let name = hash as u64;
        name
    }

    /// The claims of a request in the shared store's form.
    pub(crate) fn wants(&self, claims: &[Claim<'_>]) -> Wants {
        let wanted = |claim: &Claim<'_>| {
            let name = self.name(claim.limit, claim.key);
            Wanted {
                name,
                shape: self.shape(claim.limit),
                cost: claim.cost,
                enforced: claim.enforced,
            }
        };
        claims.iter().map(wanted).collect()
    }

    /// The wire form of `limit`, created once per set of numbers.
    pub(crate) fn shape(&self, limit: &Limit) -> Arc<WireForm> {
        let of = |known: &[Known]| {
            let known = known.iter().find(|known| known.is(limit))?;
            if !known.used.load(Ordering::Relaxed) {
                known.used.store(true, Ordering::Relaxed);
            }
            Some(known.shape.clone())
        };
        if let Some(shape) = self
            .shapes
            .read()
            .get(limit.index)
            .and_then(|known| of(known))
        {
            return shape;
        }
        let mut shapes = self.shapes.write();
        if limit.index >= shapes.len() {
            shapes.resize_with(limit.index + 1, SmallVec::new);
        }
        let known = &mut shapes[limit.index];
        // Another thread may have added it meanwhile.
        if let Some(shape) = of(known) {
            return shape;
        }
        let shape = Arc::new(WireForm::new(limit));
        let new = Known {
            used: AtomicBool::new(true),
            limit: limit.clone(),
            shape: shape.clone(),
        };
        if known.len() < KNOWN_MAX {
            known.push(new);
        } else {
            let is_unused = |known: &mut Known| !std::mem::take(known.used.get_mut());
            let unused = known.iter_mut().position(is_unused);
            known[unused.unwrap_or(KNOWN_MAX - 1)] = new;
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limit::fixtures::{limit, terms};
    use tollgate_limit::{Kind, Micros};

    #[test]
    fn the_same_numbers_stay_the_same_shape_while_requests_of_the_last_generation_are_settled() {
        let of = |amount| {
            limit(
                "total",
                &terms(Kind::TokenBucket, amount, Micros::from_secs(1)),
            )
        };
        let (names, old, new) = (Names::new(b"secret"), of(10), of(20));
        let (before, after) = (names.shape(&old), names.shape(&new));
        assert!(!Arc::ptr_eq(&before, &after));
        for _ in 0..3 {
            assert!(Arc::ptr_eq(&names.shape(&old), &before));
            assert!(Arc::ptr_eq(&names.shape(&new), &after));
        }
        // Reload after reload, no more than a few are kept.
        for amount in 30..30 + 2 * KNOWN_MAX as u64 {
            names.shape(&of(amount));
            assert!(
                Arc::ptr_eq(&names.shape(&new), &after),
                "what is used stays"
            );
        }
        assert_eq!(names.shapes.read()[old.index].len(), KNOWN_MAX);
    }
}
