//! Moves buckets between tables: from a predecessor to its successor at a reload, and to a snapshot.

use crate::local::bucket::{Bucket, Moving, Whose};
use crate::local::packed::span;
use tollgate_limit::Timestamp;

use super::{Shard, WideTable};

impl WideTable {
    /// Passes every bucket to `adopt` and redirects later draws to the successor, shard by shard
    /// under the shard's lock. Draws through this table count until their shard has moved;
    /// afterwards they find their buckets in the successor.
    pub(crate) fn move_to(&self, adopt: impl Fn(Moving)) {
        // Before any draw is redirected, because its key may be new there.
        if let Some(bucket) = self.birth.get() {
            pass(&adopt, Whose::Birth, bucket.clone());
        }
        for (index, chunk) in self.chunks.iter().enumerate() {
            // An untouched chunk becomes an empty one, which means moved, without its shards being
            // created.
            for (offset, shard) in chunk.get_or_init(Box::default).iter().enumerate() {
                let mut shard = shard.lock();
                let Shard {
                    tags,
                    buckets,
                    floor,
                    moved,
                } = &mut *shard;
                for (tag, bucket) in tags.drain(..).zip(buckets.drain(..)) {
                    if let Some(bucket) = bucket {
                        pass(&adopt, Whose::Bucket { tag }, bucket);
                    }
                }
                if let Some(bucket) = floor.take() {
                    let (first, last) = span(index * self.chunk + offset, self.shards());
                    pass(&adopt, Whose::Floor { first, last }, bucket);
                }
                *moved = true;
            }
        }
    }

    /// Passes every bucket to `visit`, under its lock.
    pub(crate) fn visit(&self, visit: impl Fn(Moving)) {
        for (index, shards) in self
            .chunks
            .iter()
            .enumerate()
            .filter_map(|(index, chunk)| Some((index, chunk.get()?)))
        {
            for (offset, shard) in shards.iter().enumerate() {
                let shard = shard.lock();
                for (tag, bucket) in shard.tags.iter().zip(&shard.buckets) {
                    if let Some(bucket) = bucket {
                        pass(&visit, Whose::Bucket { tag: *tag }, bucket.clone());
                    }
                }
                if let Some(bucket) = &shard.floor {
                    let (first, last) = span(index * self.chunk + offset, self.shards());
                    pass(&visit, Whose::Floor { first, last }, bucket.clone());
                }
            }
        }
        if let Some(bucket) = self.birth.get() {
            pass(&visit, Whose::Birth, bucket.clone());
        }
    }

    /// Takes over an item from a predecessor.
    pub(crate) fn adopt(&self, moving: Moving, now: Timestamp) {
        let Moving { whose, bucket } = moving;
        match whose {
            Whose::Bucket { tag } => {
                if let Some(mut slot) = self.lock(tag, bucket.by, None) {
                    slot.adopt(&bucket, now);
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

fn pass(to: &impl Fn(Moving), whose: Whose, bucket: Bucket) {
    to(Moving { whose, bucket });
}
