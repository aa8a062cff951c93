//! Saves the buckets to a file, so that a clean restart refills no caller.
//!
//! Layout: magic, version, hash seed and a probe of the hash, the time by the clock of the process and by
//! the wall clock. How many limits there are, and for each its name and numbers and then its buckets, up to
//! an end mark. Then what limits have learnt from their upstreams, which keys were refused too often, what
//! is owed to the shared store, and by how many gateways it is shared. Last, a SipHash of everything
//! before it. ([`form`] has the bytes of each value.)
//! Places in flight are saved only for a handover: otherwise their requests ended with the process.
//!
//! A snapshot is valid only for the time of its writing. It must not be restored a second time:
//! after a crash that would lose the charges made since.

mod form;
mod reading;
mod records;

use std::hash::Hasher;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tollgate_limit::bucket::State;
use tollgate_limit::{KeyBytes, Limit, Placement, Timestamp};

use super::LocalStore;
use super::bucket::Whose;
use super::table::{Table, share_table};
use crate::HashKey;
use form::Stored;
use records::{Name, Numbers, Record};

/// Why a snapshot cannot be used. The process then starts with the configured `cold_start`.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot be read or written: {0}")]
    Io(#[from] io::Error),
    #[error("not a snapshot of this version")]
    Version,
    #[error("damaged: {0}")]
    Corrupt(&'static str),
}

/// Units of a shared limit that were granted without its store, and are to be charged there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpaid {
    pub limit: usize,
    pub key: KeyBytes,
    pub units: u64,
}

/// What a limit has learnt from its upstream, so that a clean restart need not learn it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// How many places an adaptive concurrency limit has found.
    Places(Places),
    /// How far a rate that follows its upstream's health has fallen.
    Share(Share),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub limit: u64,
    /// The time of a response that did not queue, in 1/1024 microsecond; 0: not known yet.
    pub unloaded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The factor in 1/1024, and the moment until which it stays and from which it rises.
    pub factor: (u64, Timestamp),
    /// The upper bound from the upstream's quota, in 1/1024, and the moment until which it applies.
    pub bound: (u64, Timestamp),
    /// Nothing is granted before this moment.
    pub opens: Timestamp,
}

/// What a gateway knows of a key under a limit with a penalty, so that a restart forgives none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Penalized {
    pub bucket: u128,
    /// The end of the span in which refusals are counted, or of the block; from then on nothing is known of
    /// the key.
    pub until: Timestamp,
    /// The refusals in that span; zero of a key that is blocked.
    pub refusals: u32,
    /// When a lone caller is admitted; `None`: the key is not blocked.
    pub admits: Option<Timestamp>,
}

/// The places in flight that another process holds in a concurrency limit of this one, by the tag of their
/// key: the requests that hold them run there, and the keys are known there only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPlaces {
    /// The index of the limit, or of its tier.
    pub limit: usize,
    pub tag: u64,
    pub units: u64,
}

/// What a snapshot has beside the buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// What the limits with these indices have learnt from their upstreams.
    pub learnt: Vec<(usize, Learnt)>,
    /// The keys that were refused of late under limits with a penalty.
    pub penalized: Vec<Penalized>,
    pub unpaid: Vec<Unpaid>,
    /// The number of gateways that share it; zero: it is not known.
    pub replicas: u32,
}

impl LocalStore {
    /// The hash by which [`Penalized`] names buckets: the same after a restart from a snapshot.
    pub fn names(&self) -> HashKey {
        HashKey::new(&self.seed.raw().to_le_bytes())
    }

    /// Writes every bucket that is not equal to no bucket. Draws may continue meanwhile; units they
    /// take afterwards are missing from the snapshot, so a shutdown drains first. The shares of shared
    /// limits are in a [`LocalStore::sibling`]; [`LocalStore::restored`] with their limits reads them.
    pub fn save(
        &self,
        shares: Option<&Self>,
        writer: impl Write,
        also: &Remembered,
    ) -> Result<(), SnapshotError> {
        let is_kept = |limit: &Limit| !limit.algorithm.holds_places();
        self.write(shares, writer, also, is_kept)
    }

    /// The same for a process that takes over while this one ends its requests, so with the places
    /// that they hold in concurrency limits.
    pub fn save_for_handover(
        &self,
        shares: Option<&Self>,
        writer: impl Write,
        also: &Remembered,
    ) -> Result<(), SnapshotError> {
        self.write(shares, writer, also, |_| true)
    }

    /// The tag of a key; a store that was restored from a snapshot has those of its writer.
    pub fn tag(&self, key: &[u8]) -> u64 {
        self.seed.tag(key)
    }

    pub fn held_places(&self) -> Vec<HeldPlaces> {
        let mut held = Vec::new();
        for (index, (limit, table)) in self.limits.iter().zip(&self.tables).enumerate() {
            if !limit.algorithm.holds_places() {
                continue;
            }
            // Tiers share the table of their limit.
            let is_elder = !self.limits[..index]
                .iter()
                .any(|elder| share_table(elder, limit));
            if !is_elder {
                continue;
            }
            table.latest().visit(|moving| {
                if let (Whose::Bucket { tag }, State::Held(state)) =
                    (moving.whose, &moving.bucket.state)
                {
                    held.push(HeldPlaces {
                        limit: index,
                        tag,
                        units: state.units,
                    });
                }
            });
        }
        held
    }

    /// Writes the limits that are kept, with their buckets. Those of limits that have `shares` are in
    /// these; nothing is in them that a request holds.
    fn write(
        &self,
        shares: Option<&Self>,
        writer: impl Write,
        also: &Remembered,
        is_kept: impl Fn(&Limit) -> bool,
    ) -> Result<(), SnapshotError> {
        let now = self.clock.now();
        let mut out = Summed {
            inner: BufWriter::new(writer),
            sum: SipHasher13::new(),
        };
        out.write_all(MAGIC)?;
        VERSION.write(&mut out)?;
        (self.seed.raw(), self.seed.tag(MAGIC)).write(&mut out)?;
        (now, self.clock.wall()).write(&mut out)?;
        let is_mine = |limit: &Limit| shares.is_none() || limit.placement == Placement::Local;
        let mut kept = self.limits_with_tables(|limit| is_kept(limit) && is_mine(limit));
        if let Some(shares) = shares {
            kept.extend(shares.limits_with_tables(|limit| !limit.algorithm.holds_places()));
        }
        (kept.len() as u64).write(&mut out)?;
        for (limit, table) in kept {
            write_limit(limit, table, now, &mut out)?;
        }
        let named = |place: usize| self.limits.get(place).map(|limit| Name::of(limit));
        let learnt = also.learnt.iter();
        let learnt = learnt.filter_map(|(place, learnt)| Some((named(*place)?, *learnt)));
        learnt.collect::<Vec<_>>().write(&mut out)?;
        also.penalized.write(&mut out)?;
        let unpaid = also.unpaid.iter();
        let unpaid =
            unpaid.filter_map(|one| Some((named(one.limit)?, (one.key.clone(), one.units))));
        unpaid.collect::<Vec<_>>().write(&mut out)?;
        also.replicas.write(&mut out)?;
        let sum = out.sum.finish();
        sum.write(&mut out.inner)?;
        out.inner.flush()?;
        Ok(())
    }

    fn limits_with_tables(&self, is_kept: impl Fn(&Limit) -> bool) -> Vec<(&Limit, &Arc<Table>)> {
        let limits = self.limits.iter().map(|limit| &**limit).zip(&self.tables);
        limits.filter(|(limit, _)| is_kept(limit)).collect()
    }
}

fn write_limit(
    limit: &Limit,
    table: &Arc<Table>,
    now: Timestamp,
    out: &mut impl Write,
) -> io::Result<()> {
    Name::of(limit).write(out)?;
    Numbers::of(&limit.algorithm).write(out)?;
    let table = table.latest();
    let variant = table.variant_of(limit.tier.as_deref());
    let mut written = Ok(());
    table.visit(|moving| {
        // (A held place never expires.)
        let expiry = moving.bucket.expiry(&limit.algorithm);
        let is_kept = expiry.is_none_or(|expiry| expiry > now);
        if written.is_ok() && moving.bucket.variant == variant && is_kept {
            written = Some(Record::of(moving)).write(out);
        }
    });
    written?;
    None::<Record>.write(out)
}

/// Passes bytes through and computes their checksum.
struct Summed<T> {
    inner: T,
    sum: SipHasher13,
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sum.write(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

const MAGIC: &[u8; 16] = b"tollgate buckets";
const VERSION: u32 = 7;
