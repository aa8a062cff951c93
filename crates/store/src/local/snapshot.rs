//! Saves the buckets to a file, so that a clean restart refills no caller.
//!
//! Layout, all integers little-endian: magic, version, hash seed and a probe of the hash, the time by
//! the clock of the process and by the wall clock. Per limit: its name, tier, role, algorithm and
//! numbers. Then its records (bucket, floor, birth; a record in other numbers is preceded by them) up to
//! an end mark. Then what limits have learnt from their upstreams ([`super::learnt`]), which keys were
//! refused too often ([`super::penalized`]), what is owed to the shared store, and by how many gateways
//! it is shared. Last, a SipHash of everything before it.
//! Places in flight are saved only for a handover: otherwise their requests ended with the process.
//!
//! A snapshot is valid only for the time of its writing. It must not be restored a second time:
//! after a crash that would lose the charges made since.

mod heading;
mod reading;
mod writing;

use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tollgate_limit::{KeyBytes, Limit, Timestamp};

use super::{Learnt, LocalStore, Penalized};
use crate::HashKey;
use crate::clock::Shift;

pub(super) use heading::Name;

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
    /// take afterwards are missing from the snapshot, so a shutdown drains first.
    pub fn save(&self, writer: impl Write, also: &Remembered) -> Result<(), SnapshotError> {
        self.write(writer, None, also, |limit| !limit.algorithm.holds_places())
    }

    /// [`LocalStore::save`] together with the shares of shared limits, which are in a
    /// [`LocalStore::sibling`]. [`LocalStore::restored`] with the limits of the shares reads them.
    pub fn save_with_shares(
        &self,
        shares: &Self,
        writer: impl Write,
        also: &Remembered,
    ) -> Result<(), SnapshotError> {
        let is_kept = |limit: &Limit| !limit.algorithm.holds_places();
        self.write(writer, Some(shares), also, is_kept)
    }

    /// The same for a process that takes over while this one ends its requests, so with the places
    /// that they hold in concurrency limits.
    pub fn save_for_handover(
        &self,
        shares: Option<&Self>,
        writer: impl Write,
        also: &Remembered,
    ) -> Result<(), SnapshotError> {
        self.write(writer, shares, also, |_| true)
    }
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
const VERSION: u32 = 6;

fn read_bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn read_u8(input: &mut impl Read) -> io::Result<u8> {
    read_bytes(input).map(u8::from_le_bytes)
}

pub(super) fn read_u32(input: &mut impl Read) -> io::Result<u32> {
    read_bytes(input).map(u32::from_le_bytes)
}

pub(super) fn read_u64(input: &mut impl Read) -> io::Result<u64> {
    read_bytes(input).map(u64::from_le_bytes)
}

/// Reads a moment of the process that wrote it, as a moment of this one.
pub(super) fn read_moment(input: &mut impl Read, shift: Shift) -> io::Result<Timestamp> {
    read_u64(input).map(|micros| shift.moved(Timestamp::from_micros(micros)))
}

pub(super) fn write_count(count: usize, out: &mut impl Write) -> io::Result<()> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    out.write_all(&count.to_le_bytes())
}

const KEY_MAX: u32 = 1 << 20;

/// Stores what is owed to the shared store: a count, then for each bucket the name, tier and role of its
/// limit, its key, and the units.
fn write_unpaid(limits: &[Arc<Limit>], unpaid: &[Unpaid], out: &mut impl Write) -> io::Result<()> {
    let known = || {
        let limit = |one: &Unpaid| limits.get(one.limit);
        let known = unpaid
            .iter()
            .filter_map(move |one| Some((limit(one)?, one)));
        known.filter(|(_, one)| one.key.len() <= KEY_MAX as usize)
    };
    write_count(known().count(), out)?;
    for (limit, one) in known() {
        Name::write(limit, out)?;
        write_count(one.key.len(), out)?;
        out.write_all(&one.key)?;
        out.write_all(&one.units.to_le_bytes())?;
    }
    Ok(())
}

/// What is owed under `limits`, by their index.
fn read_unpaid(limits: &[Arc<Limit>], input: &mut impl Read) -> Result<Vec<Unpaid>, SnapshotError> {
    let mut all = Vec::new();
    for _ in 0..read_u32(input)? {
        let name = Name::read(input)?;
        let length = read_u32(input)?;
        if length > KEY_MAX {
            return Err(SnapshotError::Corrupt("a key longer than any"));
        }
        let mut key = KeyBytes::from_elem(0, length as usize);
        input.read_exact(&mut key)?;
        let units = read_u64(input)?;
        if let Some(limit) = name.place_in(limits) {
            all.push(Unpaid { limit, key, units });
        }
    }
    Ok(all)
}
