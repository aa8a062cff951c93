//! Saves the buckets to a file, so that a clean restart refills no caller.
//!
//! Layout, all integers little-endian: magic, version, hash seed and a probe of the hash, wall
//! time. Per limit: its name, tier, role, algorithm and numbers, the largest burst it has had, and
//! the number of its sets (0: forgotten debts are stored as floors). Then its records (bucket,
//! floor, birth; a record in other numbers is preceded by them) up to an end mark. Then what limits
//! have learnt from their upstreams ([`super::learnt`]), and which keys were refused too often
//! ([`super::penalized`]; not in version 3). Last, a SipHash of everything before it.
//! Places in flight are saved only for a handover: otherwise their requests ended with the process.
//!
//! A snapshot is valid only for the time of its writing. It must not be restored a second time:
//! after a crash that would lose the charges made since.

mod heading;

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::HashKey;
use crate::clock::Clock;
use heading::Numbers;
use tollgate_limit::{Kept, Limit, Micros, Role, Timestamp};

use super::beside::Entry;
use super::bucket::{Bucket, Moving, Whose};
use super::hash::Seed;
use super::state_bytes::{OWN, read_moving, write_end, write_moving};
use super::table::Table;
use super::{
    Carried, Carry, CarryReport, Learnt, LocalStore, Penalized, epoch, family, keep_floors, learnt,
    penalized,
};

pub(super) use heading::Name;

/// Why a snapshot cannot be used. The process then starts with the configured `cold_start`.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It could not be read or written.
    #[error("cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// It is not a snapshot, or has another version.
    #[error("not a snapshot of this version")]
    Version,
    /// It is damaged.
    #[error("damaged: {0}")]
    Corrupt(&'static str),
}

/// What a snapshot has beside the buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// What the limits with these indices have learnt from their upstreams.
    pub learnt: Vec<(usize, Learnt)>,
    /// The keys that were refused of late under limits with a penalty.
    pub penalized: Vec<Penalized>,
}

impl LocalStore {
    /// The hash by which [`Penalized`] names buckets: the same after a restart from a snapshot.
    pub fn names(&self) -> HashKey {
        HashKey::new(&self.seed.raw().to_le_bytes())
    }

    /// Writes every bucket that is not equal to no bucket. Draws may continue meanwhile; units they
    /// take afterwards are missing from the snapshot, so a shutdown drains first.
    ///
    /// # Errors
    /// When `writer` fails.
    pub fn save(&self, writer: impl Write, also: &Remembered) -> Result<(), SnapshotError> {
        self.write(writer, also, |limit| !limit.algorithm.holds_places())
    }

    /// The same for a process that takes over while this one ends its requests, so with the places
    /// that they hold in concurrency limits.
    ///
    /// # Errors
    /// When `writer` fails.
    pub fn save_for_handover(
        &self,
        writer: impl Write,
        also: &Remembered,
    ) -> Result<(), SnapshotError> {
        self.write(writer, also, |_| true)
    }

    fn write(
        &self,
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
        out.write_all(&VERSION.to_le_bytes())?;
        for word in [self.seed.raw(), self.seed.tag(MAGIC), now.as_micros()] {
            out.write_all(&word.to_le_bytes())?;
        }
        let kept = || {
            self.limits
                .iter()
                .zip(&self.tables)
                .filter(|(limit, _)| is_kept(limit))
        };
        write_count(kept().count(), &mut out)?;
        for (limit, table) in kept() {
            Name::write(limit, &mut out)?;
            Numbers::of(&limit.algorithm).write(&mut out)?;
            let table = table.latest();
            let beside = self.kept_beside(limit, now);
            let widest = beside
                .iter()
                .filter_map(|(_, kept)| widest(kept))
                .fold(table.widest(), u64::max);
            for word in [widest, table.geometry().unwrap_or(0) as u64] {
                out.write_all(&word.to_le_bytes())?;
            }
            let tags: HashSet<u64> = beside.iter().map(|(entry, _)| entry.tag).collect();
            let is_beside = |whose: &Whose| match whose {
                Whose::Bucket { tag } => tags.contains(tag),
                Whose::Floor { .. } | Whose::Birth => false,
            };
            let cell = RefCell::new((&mut out, Ok(())));
            let by = table.place_of(limit.tier.as_deref());
            table.visit(now, &|moving| {
                let (out, result) = &mut *cell.borrow_mut();
                if result.is_ok()
                    && moving.bucket.by == by
                    && !is_beside(&moving.whose)
                    // (A held place never expires.)
                    && moving
                        .bucket
                        .expiry(&limit.algorithm)
                        .is_none_or(|expiry| expiry > now)
                {
                    let own = moving.bucket.own.as_deref().map(Numbers::of);
                    let numbers = own.map_or(Ok(()), |own| {
                        out.write_all(&[OWN]).and_then(|()| own.write(*out))
                    });
                    *result = numbers.and_then(|()| write_moving(&moving, *out));
                }
            });
            cell.into_inner().1?;
            // The slots of their tables were emptied. Those of tiers share one table.
            for (entry, kept) in beside.iter().filter(|_| by == 0) {
                let Some((state, kept)) =
                    kept.as_ref().and_then(|kept| Some((kept.state()?, kept)))
                else {
                    continue;
                };
                out.write_all(&[OWN])?;
                Numbers::of(kept.algorithm()).write(&mut out)?;
                let whose = Whose::Bucket { tag: entry.tag };
                let bucket = Bucket::new(state.clone(), kept.beyond(), by);
                write_moving(&Moving { whose, bucket }, &mut out)?;
            }
            write_end(&mut out)?;
        }
        learnt::write(&self.limits, &also.learnt, &mut out)?;
        penalized::write(&also.penalized, &mut out)?;
        let sum = out.sum.finish();
        out.inner.write_all(&sum.to_le_bytes())?;
        out.inner.flush()?;
        Ok(())
    }

    /// A store for `limits` with the buckets that [`LocalStore::save`] wrote. Limits are matched by name, tier and role;
    /// changed numbers rescale as on a reload, and a limit the snapshot does not know starts full.
    ///
    /// # Errors
    /// When it cannot be read, is of another version, or is damaged: then nothing of it is used.
    pub fn restored(
        limits: &[Arc<Limit>],
        clock: Clock,
        reader: impl Read + Seek,
    ) -> Result<(Self, CarryReport), SnapshotError> {
        let now = clock.now();
        let mut input = BufReader::new(reader);
        // The checksum is verified before anything is used.
        verify(&mut input)?;
        let magic = read_bytes(&mut input)?;
        let version = read_u32(&mut input)?;
        if magic != *MAGIC || !(WITHOUT_PENALTIES..=VERSION).contains(&version) {
            return Err(SnapshotError::Version);
        }
        let seed = Seed::from_raw(read_u64(&mut input)?);
        if read_u64(&mut input)? != seed.tag(MAGIC) {
            // Another version of the hash: its tags would find nothing.
            return Err(SnapshotError::Version);
        }
        // If the wall clock has stepped back since, every bucket would wait for it to catch up.
        let behind = Timestamp::from_micros(read_u64(&mut input)?).since(now);
        let epoch = epoch(now);
        // By the index of the first limit of each family.
        let mut tables: Vec<Option<Table>> = limits.iter().map(|_| None).collect();
        let elder = |limit: &Limit| limits.iter().position(|elder| family::same(elder, limit));
        let mut carries = vec![Carry::New; limits.len()];
        let mut gone = Vec::new();
        for _ in 0..read_u32(&mut input)? {
            let (name, numbers) = (Name::read(&mut input)?, Numbers::read(&mut input)?);
            let (widest, sets) = (read_u64(&mut input)?, read_u64(&mut input)?);
            let place = limits.iter().position(|limit| name.is_of(limit));
            // Callers of a tier without numbers of its own draw under the limit's own.
            let own = || limits.iter().position(|limit| name.is_tier_of(limit));
            if place.is_none() {
                gone.push(name.gone());
            }
            let place = place.or_else(own);
            let carry = |numbers: Numbers, place: usize| {
                let (carry, from) = numbers.carry(&limits[place].algorithm);
                (carry, from.map(Arc::new))
            };
            let to = place.map(|place| (place, carry(numbers, place)));
            if let Some((place, (carry, _))) = &to {
                let limit = &limits[*place];
                if name.is_of(limit) {
                    carries[*place] = *carry;
                }
                if *carry != Carry::Afresh
                    && let Some(place) = elder(limit)
                    && tables[place].is_none()
                {
                    let before = usize::try_from(sets).ok().filter(|sets| *sets > 0);
                    let variants = family::of(limit, limits);
                    let floors = keep_floors(&variants, limits);
                    let (table, _) = Table::fitting(&variants, floors, epoch, widest, before);
                    tables[place] = Some(table);
                }
            }
            loop {
                let mut mark = read_u8(&mut input)?;
                let own = if mark == OWN {
                    let own = Numbers::read(&mut input)?;
                    mark = read_u8(&mut input)?;
                    Some(own)
                } else {
                    None
                };
                let until = own.unwrap_or(numbers).remembers_a_moment();
                let Some(moving) = read_moving(mark, &mut input, behind, until)? else {
                    break;
                };
                let Some((place, of_limit)) = &to else {
                    continue;
                };
                let limit = &limits[*place];
                let Some(table) = elder(limit).and_then(|elder| tables[elder].as_ref()) else {
                    continue;
                };
                let by = table.place_of(limit.tier.as_deref());
                let of_its_own = own.map(|own| carry(own, *place));
                let moving = match of_its_own.as_ref().unwrap_or(of_limit) {
                    (Carry::Kept, _) => Some(moving.drawn_by(by)),
                    (Carry::Rescaled, Some(from)) => {
                        moving.rescaled(from, table.algorithm(by), by, now)
                    }
                    _ => None,
                };
                if let Some(moving) = moving {
                    table.adopt(moving, now);
                }
            }
        }
        let mut tables = tables.into_iter().zip(limits);
        let tables = family::tables(limits, |variants| {
            // They were created in the order of the first limit of each family.
            let table = tables.find(|(_, limit)| {
                variants
                    .first()
                    .is_some_and(|first| std::ptr::eq(&***limit, *first))
            });
            let new = || Table::new(variants, keep_floors(variants, limits), epoch);
            Arc::new(table.and_then(|(table, _)| table).unwrap_or_else(new))
        });
        let learnt = learnt::read(limits, &mut input, behind)?;
        let penalized = match version {
            WITHOUT_PENALTIES => Vec::new(),
            _ => penalized::read(&mut input, behind)?,
        };
        let mut report: Vec<_> = limits
            .iter()
            .zip(carries)
            .map(|(limit, carry)| Carried::of(limit, carry))
            .collect();
        report.extend(gone);
        let store = Self {
            limits: limits.into(),
            tables,
            seed,
            clock,
            epoch,
            born: now,
            beside: Arc::default(),
        };
        let report = CarryReport {
            limits: report,
            also: Remembered { learnt, penalized },
        };
        Ok((store, report))
    }
}

impl LocalStore {
    /// The buckets of a limit that are beside its table; `None`: full.
    fn kept_beside(&self, limit: &Limit, now: Timestamp) -> Vec<(Arc<Entry>, Option<Kept>)> {
        if limit.role != Role::Live {
            return Vec::new();
        }
        let entries = self.beside.of_limit(&limit.name).into_iter();
        entries
            .map(|entry| {
                let kept = entry.kept(now);
                (entry, kept)
            })
            .collect()
    }
}

/// The largest burst that a bucket remembers.
fn widest(kept: &Option<Kept>) -> Option<u64> {
    let kept = kept.as_ref()?;
    let is_burst = !Numbers::of(kept.algorithm()).remembers_a_moment();
    Some(
        kept.algorithm()
            .burst()
            .max(if is_burst { kept.beyond() } else { 0 }),
    )
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

/// Reads everything once, compares the checksum with the stored one, and rewinds.
fn verify(input: &mut (impl Read + Seek)) -> Result<(), SnapshotError> {
    let length = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    let Some(body) = length.checked_sub(size_of::<u64>() as u64) else {
        return Err(SnapshotError::Corrupt("it is too short"));
    };
    let mut sum = Summed {
        inner: io::sink(),
        sum: SipHasher13::new(),
    };
    io::copy(&mut input.by_ref().take(body), &mut sum)?;
    if read_u64(input)? != sum.sum.finish() {
        return Err(SnapshotError::Corrupt("its checksum does not match"));
    }
    input.rewind()?;
    Ok(())
}

pub(super) fn write_count(count: usize, out: &mut impl Write) -> io::Result<()> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    out.write_all(&count.to_le_bytes())
}

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

/// A moment on a clock that is `behind` the clock it was written by.
pub(super) fn read_moment(input: &mut impl Read, behind: Micros) -> io::Result<Timestamp> {
    Ok(Timestamp::from_micros(read_u64(input)?).before(behind))
}

const MAGIC: &[u8; 16] = b"tollgate buckets";
const VERSION: u32 = 4;
/// The version before, which is read too: an update refills no bucket.
const WITHOUT_PENALTIES: u32 = 3;
