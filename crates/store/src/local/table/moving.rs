//! Moves buckets between tables: from a predecessor to its successor at a reload, and to a snapshot.

use std::sync::Arc;

use crate::local::bucket::{Moving, Whose};
use tollgate_limit::{Limit, Timestamp};

use super::{Replaced, Shard, Slot, Table, span};

impl Table {
    /// A table for `limits` (changed numbers, or another algorithm) with every bucket of this one
    /// moved into it. Callers of a tier get its numbers, or the limit's own.
    pub(in crate::local) fn succeeded_by(&self, limits: &[&Limit], now: Timestamp) -> Arc<Self> {
        let numbers = self.numbers.iter();
        let kept_in: Vec<_> = numbers.map(|one| Arc::new(one.algorithm.clone())).collect();
        let variant_in = |successor: &Self, variant: u16| {
            let tier = self.numbers[usize::from(variant)].tier.as_deref();
            successor.variant_of(tier)
        };
        let mut successor = Self::new(limits);
        for (variant, own) in (0..).zip(&kept_in) {
            successor.replace(variant_in(&successor, variant), own);
        }
        for Replaced { variant, own } in &self.replaced {
            successor.replace(variant_in(&successor, *variant), own);
        }
        let successor = Arc::new(successor);
        // Set first, so that a thread that finds a bucket moved finds the successor.
        let set = self.successor.set(Arc::clone(&successor));
        debug_assert!(set.is_ok(), "a table moves once, under the lock of moves");
        self.move_to(|moving| {
            let from = &kept_in[usize::from(moving.bucket.variant)];
            let variant = variant_in(&successor, moving.bucket.variant);
            if let Some(moving) = moving.carried(from, successor.algorithm(variant), variant, now) {
                successor.adopt(moving, now);
            }
        });
        successor
    }

    /// Passes every bucket to `adopt` and redirects later draws to the successor, shard by shard
    /// under the shard's lock. Draws through this table count until their shard has moved;
    /// afterwards they find their buckets in the successor.
    pub(super) fn move_to(&self, mut adopt: impl FnMut(Moving)) {
        // Before any draw is redirected, because its key may be new there.
        if let Some(bucket) = self.birth.get() {
            adopt(Moving::of(Whose::Birth, bucket.clone()));
        }
        for (index, chunk) in self.chunks.iter().enumerate() {
            // An untouched chunk becomes an empty one, which means moved.
            for (offset, shard) in chunk.get_or_init(Box::default).iter().enumerate() {
                let mut shard = shard.lock();
                self.pass_shard(&shard, index * self.chunk + offset, &mut adopt);
                *shard = Shard::moved();
            }
        }
    }

    /// Passes every bucket to `visit`, under its lock.
    pub(in crate::local) fn visit(&self, mut visit: impl FnMut(Moving)) {
        for (index, chunk) in self.chunks.iter().enumerate() {
            let shards = chunk.get().into_iter().flatten();
            for (offset, shard) in shards.enumerate() {
                self.pass_shard(&shard.lock(), index * self.chunk + offset, &mut visit);
            }
        }
        if let Some(bucket) = self.birth.get() {
            visit(Moving::of(Whose::Birth, bucket.clone()));
        }
    }

    fn pass_shard(&self, shard: &Shard, index: usize, to: &mut impl FnMut(Moving)) {
        for (tag, bucket) in shard.buckets(self) {
            to(Moving::of(Whose::Bucket { tag }, bucket.into_owned()));
        }
        if let Some(bucket) = shard.floor(self) {
            let (first, last) = span(index, self.shards());
            to(Moving::of(
                Whose::Floor { first, last },
                bucket.into_owned(),
            ));
        }
    }

    /// Takes over an item from a predecessor or a snapshot.
    pub(in crate::local) fn adopt(&self, moving: Moving, now: Timestamp) {
        let Moving { whose, bucket } = moving;
        match whose {
            Whose::Bucket { tag } => {
                if let Some(mut shard) = self.lock(self.index(tag)) {
                    let mut slot = Slot::of_table(self, &shard, tag, bucket.variant);
                    slot.adopt(&mut shard, &bucket, now);
                }
            }
            Whose::Floor { first, last } => {
                for index in self.index(first)..=self.index(last) {
                    if let Some(shard) = self.shard(index) {
                        shard.lock().lift_floor(self, bucket.clone(), now);
                    }
                }
            }
            Whose::Birth => {
                let _ = self.birth.set(bucket);
            }
        }
    }
}
