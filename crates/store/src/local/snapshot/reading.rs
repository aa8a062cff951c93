//! Reads a snapshot into a new store.

use std::hash::Hasher;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tollgate_limit::{Algorithm, Limit, Placement, Timestamp};

use super::heading::{Name, Numbers};
use super::{
    MAGIC, Remembered, SnapshotError, Summed, VERSION, read_bytes, read_u8, read_u32, read_u64,
    read_unpaid,
};
use crate::clock::{Clock, Shift};
use crate::local::bucket::Moving;
use crate::local::hash::Seed;
use crate::local::state_bytes::{OWN, read_moving};
use crate::local::table::{REPLACED_MAX, Table, family_of, family_tables, share_table};
use crate::local::{Carried, Carry, CarryReport, LocalStore, learnt, penalized};

impl LocalStore {
    /// A store for `limits` with the buckets that [`LocalStore::save`] wrote. Limits are matched by name, tier and role;
    /// changed numbers carry over as on a reload, and a limit the snapshot does not know starts full.
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
        let heading = Heading::read(&mut input)?;
        // A wall clock that was set forward while the writer ran must not count as time that has passed.
        // One that was set back must not leave buckets in the future, where they would wait for it.
        let shift = Shift::between(heading.written, heading.wall.min(now));
        let mut restoring = Restoring::new(limits, now, shift);
        for _ in 0..read_u32(&mut input)? {
            restoring.read_limit(&mut input)?;
        }
        let learnt = learnt::read(limits, &mut input, shift)?;
        let penalized = penalized::read(&mut input, shift)?;
        let (unpaid, replicas) = (read_unpaid(limits, &mut input)?, read_u32(&mut input)?);
        let report = CarryReport {
            limits: restoring.report(),
            also: Remembered {
                learnt,
                penalized,
                unpaid,
                replicas,
            },
        };
        let store = Self {
            limits: limits.into(),
            tables: restoring.tables(),
            seed: heading.seed,
            clock,
            resets: Arc::default(),
        };
        Ok((store, report))
    }
}

struct Heading {
    seed: Seed,
    written: Timestamp,
    wall: Timestamp,
}

impl Heading {
    fn read(input: &mut (impl Read + Seek)) -> Result<Self, SnapshotError> {
        verify(input)?;
        let magic = read_bytes(input)?;
        let version = read_u32(input)?;
        if magic != *MAGIC || version != VERSION {
            return Err(SnapshotError::Version);
        }
        let seed = Seed::from_raw(read_u64(input)?);
        if read_u64(input)? != seed.tag(MAGIC) {
            // Another version of the hash: its tags would find nothing.
            return Err(SnapshotError::Version);
        }
        let written = Timestamp::from_micros(read_u64(input)?);
        let wall = Timestamp::from_micros(read_u64(input)?);
        Ok(Self {
            seed,
            written,
            wall,
        })
    }
}

/// The tables of a new store, while a snapshot is read into them.
struct Restoring<'l> {
    limits: &'l [Arc<Limit>],
    now: Timestamp,
    /// From the clock of the process that wrote the snapshot to the clock of this one.
    shift: Shift,
    /// By the index of the first limit of each family.
    tables: Vec<Option<Table>>,
    carries: Vec<Carry>,
    gone: Vec<Carried>,
}

/// The buckets of one limit of the snapshot, as they are carried over to the limit at `place`.
struct Moved {
    place: usize,
    carry: Carry,
    /// The numbers they are kept in, where the limit has others.
    from: Option<Arc<Algorithm>>,
}

impl<'l> Restoring<'l> {
    fn new(limits: &'l [Arc<Limit>], now: Timestamp, shift: Shift) -> Self {
        Self {
            limits,
            now,
            shift,
            tables: limits.iter().map(|_| None).collect(),
            carries: vec![Carry::New; limits.len()],
            gone: Vec::new(),
        }
    }

    fn read_limit(&mut self, input: &mut impl Read) -> Result<(), SnapshotError> {
        let (name, numbers) = (Name::read(input)?, Numbers::read(input)?);
        let is_known = self.limits.iter().any(|limit| name.is_of(limit));
        // (The records of a shared limit are those of its share, which is read by itself.)
        let is_here = |place: &usize| self.limits[*place].placement == Placement::Local;
        if !is_known {
            self.gone.push(name.gone());
        }
        let place = name.place_in(self.limits).filter(is_here);
        let moved = place.map(|place| self.moved(numbers, place));
        if let Some(moved) = &moved {
            if is_known {
                self.carries[moved.place] = moved.carry;
            }
            self.make_table(moved);
        }
        // Those of buckets that are kept in numbers of before a reload, or of an override.
        let mut others: Vec<(Numbers, Moved)> = Vec::new();
        while let Some((own, bucket)) = self.read_bucket(numbers, input)? {
            let Some(moved) = &moved else { continue };
            let Some(own) = own else {
                self.adopt(bucket, moved);
                continue;
            };
            match others.iter().find(|(numbers, _)| *numbers == own) {
                Some((_, of_its_own)) => self.adopt(bucket, of_its_own),
                None => {
                    let of_its_own = self.moved(own, moved.place);
                    self.make_table(&of_its_own);
                    self.adopt(bucket, &of_its_own);
                    if others.len() < REPLACED_MAX {
                        others.push((own, of_its_own));
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a bucket, with its numbers if they are not those of its limit (`numbers`). `None`: there
    /// is no other bucket of this limit.
    fn read_bucket(
        &self,
        numbers: Numbers,
        input: &mut impl Read,
    ) -> Result<Option<(Option<Numbers>, Moving)>, SnapshotError> {
        let mut mark = read_u8(input)?;
        let mut own = None;
        if mark == OWN {
            own = Some(Numbers::read(input)?);
            mark = read_u8(input)?;
        }
        let numbers = own.unwrap_or(numbers);
        let bucket = read_moving(mark, input, self.shift, numbers.is_aligned())?;
        Ok(bucket.map(|bucket| (own, bucket)))
    }

    /// Buckets with these numbers, carried over to the limit at `place`.
    fn moved(&self, numbers: Numbers, place: usize) -> Moved {
        let (carry, from) = numbers.carry(&self.limits[place].algorithm);
        Moved {
            place,
            carry,
            from: from.map(Arc::new),
        }
    }

    /// The place of the first limit of a limit's family, whose table all of them share.
    fn elder(&self, place: usize) -> Option<usize> {
        let limit = &self.limits[place];
        self.limits
            .iter()
            .position(|elder| share_table(elder, limit))
    }

    /// Makes the table that the buckets come into.
    fn make_table(&mut self, moved: &Moved) {
        let Some(elder) = self.elder(moved.place) else {
            return;
        };
        if moved.carry == Carry::Afresh {
            return;
        }
        let limit = &self.limits[moved.place];
        let new = || Table::new(&family_of(limit, self.limits));
        let table = self.tables[elder].get_or_insert_with(new);
        if let Some(from) = &moved.from {
            table.replace(table.variant_of(limit.tier.as_deref()), from);
        }
    }

    fn adopt(&self, bucket: Moving, moved: &Moved) {
        let elder = self.elder(moved.place);
        let Some(table) = elder.and_then(|elder| self.tables[elder].as_ref()) else {
            return;
        };
        let variant = table.variant_of(self.limits[moved.place].tier.as_deref());
        let own = moved.from.as_deref().unwrap_or(table.algorithm(variant));
        let bucket = bucket.not_ahead(own, self.now);
        let bucket = match (moved.carry, &moved.from) {
            (Carry::Kept, _) => Some(bucket.drawn_by(variant)),
            (Carry::Renumbered, Some(from)) => {
                bucket.carried(from, table.algorithm(variant), variant, self.now)
            }
            _ => None,
        };
        if let Some(bucket) = bucket {
            table.adopt(bucket, self.now);
        }
    }

    fn report(&mut self) -> Vec<Carried> {
        let limits = self.limits.iter().zip(&self.carries);
        let mut report: Vec<_> = limits
            .map(|(limit, carry)| Carried::of(limit, *carry))
            .collect();
        report.append(&mut self.gone);
        report
    }

    /// The table of each limit; a family without buckets gets a new one.
    fn tables(self) -> Box<[Arc<Table>]> {
        let mut tables = self.tables.into_iter().zip(self.limits);
        family_tables(self.limits, |variants| {
            // They were created in the order of the first limit of each family.
            let table = tables.find(|(_, limit)| {
                variants
                    .first()
                    .is_some_and(|first| std::ptr::eq(&***limit, *first))
            });
            let table = table.and_then(|(table, _)| table);
            Arc::new(table.unwrap_or_else(|| Table::new(variants)))
        })
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
