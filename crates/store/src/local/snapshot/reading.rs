//! Reads a snapshot into a new store.

use std::hash::Hasher;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tollgate_limit::{Algorithm, KeyBytes, Limit, Placement, Timestamp};

use super::form::{Input, Stored};
use super::records::{Name, Numbers, Record};
use super::{Learnt, MAGIC, Remembered, SnapshotError, Summed, Unpaid, VERSION};
use crate::clock::{Clock, Shift};
use crate::local::bucket::Moving;
use crate::local::hash::Seed;
use crate::local::table::{REPLACED_MAX, Table, family_of, family_tables, share_table};
use crate::local::{Carried, Carry, CarryReport, LocalStore};

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
        let mut input = Input {
            bytes: BufReader::new(reader),
            shift: Shift::default(),
        };
        let heading = Heading::read(&mut input)?;
        // A wall clock that was set forward while the writer ran must not count as time that has passed.
        // One that was set back must not leave buckets in the future, where they would wait for it.
        let shift = Shift::between(heading.written, heading.wall.min(now));
        let mut restoring = Restoring::new(limits, now);
        for _ in 0..u64::read(&mut input)? {
            restoring.read_limit(&mut input, shift)?;
        }
        input.shift = shift;
        let learnt = Vec::<(Name, Learnt)>::read(&mut input)?.into_iter();
        let learnt = learnt.filter_map(|(name, learnt)| {
            let place = limits.iter().position(|limit| name.is_of(limit))?;
            Some((place, learnt))
        });
        let penalized = Stored::read(&mut input)?;
        let unpaid = Vec::<(Name, (KeyBytes, u64))>::read(&mut input)?.into_iter();
        let unpaid = unpaid.filter_map(|(name, (key, units))| {
            let limit = name.place_in(limits)?;
            Some(Unpaid { limit, key, units })
        });
        let report = CarryReport {
            limits: restoring.report(),
            also: Remembered {
                learnt: learnt.collect(),
                penalized,
                unpaid: unpaid.collect(),
                replicas: Stored::read(&mut input)?,
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
    fn read(input: &mut Input<impl Read + Seek>) -> Result<Self, SnapshotError> {
        verify(input)?;
        let mut magic = [0; MAGIC.len()];
        input.bytes.read_exact(&mut magic)?;
        if magic != *MAGIC || u32::read(input)? != VERSION {
            return Err(SnapshotError::Version);
        }
        let (seed, probe) = <(u64, u64)>::read(input)?;
        let seed = Seed::from_raw(seed);
        if seed.tag(MAGIC) != probe {
            // Another version of the hash: its tags would find nothing.
            return Err(SnapshotError::Version);
        }
        let (written, wall) = Stored::read(input)?;
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
    /// By the index of the first limit of each family.
    tables: Vec<Option<Table>>,
    carries: Vec<Carry>,
    gone: Vec<Carried>,
}

/// Where buckets go that have the same numbers.
struct Destination {
    family: usize,
    variant: u16,
    /// The numbers they are kept in, where their limit has others.
    from: Option<Arc<Algorithm>>,
}

impl<'l> Restoring<'l> {
    fn new(limits: &'l [Arc<Limit>], now: Timestamp) -> Self {
        Self {
            limits,
            now,
            tables: limits.iter().map(|_| None).collect(),
            carries: vec![Carry::New; limits.len()],
            gone: Vec::new(),
        }
    }

    /// Reads a limit with its buckets, whose moments are moved by `shift`.
    fn read_limit(
        &mut self,
        input: &mut Input<impl Read>,
        shift: Shift,
    ) -> Result<(), SnapshotError> {
        let (name, numbers) = <(Name, Numbers)>::read(input)?;
        // Moved back, the start of a window would lie before its boundary, which would then count as a
        // window that has ended since.
        input.shift = match numbers.is_aligned() {
            true => Shift::default(),
            false => shift,
        };
        let is_known = self.limits.iter().any(|limit| name.is_of(limit));
        // (The records of a shared limit are those of its share, which is read by itself.)
        let is_here = |place: &usize| self.limits[*place].placement == Placement::Local;
        let place = name.place_in(self.limits).filter(is_here);
        if !is_known {
            self.gone.push(name.gone());
        }
        let mut destinations = Vec::new();
        if let Some(place) = place {
            let (carry, destination) = self.destination(numbers, place);
            if is_known {
                self.carries[place] = carry;
            }
            destinations.push((numbers, destination));
        }
        while let Some(record) = Option::<Record>::read(input)? {
            let (own, bucket) = (record.own.unwrap_or(numbers), record.moving()?);
            let Some(place) = place else { continue };
            if !destinations.iter().any(|(numbers, _)| *numbers == own) {
                destinations.truncate(REPLACED_MAX);
                destinations.push((own, self.destination(own, place).1));
            }
            let mut known = destinations.iter();
            if let Some((_, Some(to))) = known.find(|(numbers, _)| *numbers == own) {
                self.adopt(bucket, to);
            }
        }
        Ok(())
    }

    /// Makes the table for buckets with these numbers of the limit at `place`; `None`: the limit's
    /// buckets begin afresh.
    fn destination(&mut self, numbers: Numbers, place: usize) -> (Carry, Option<Destination>) {
        let limit = &self.limits[place];
        let (carry, from) = numbers.carry(&limit.algorithm);
        if carry == Carry::Afresh {
            return (carry, None);
        }
        let mut elders = self.limits.iter();
        let elder = elders.position(|elder| share_table(elder, limit));
        let family = elder.unwrap_or(place);
        let new = || Table::new(&family_of(limit, self.limits));
        let table = self.tables[family].get_or_insert_with(new);
        let variant = table.variant_of(limit.tier.as_deref());
        let from = from.map(Arc::new);
        if let Some(from) = &from {
            table.replace(variant, from);
        }
        let destination = Destination {
            family,
            variant,
            from,
        };
        (carry, Some(destination))
    }

    fn adopt(&self, bucket: Moving, to: &Destination) {
        let Some(table) = &self.tables[to.family] else {
            return;
        };
        let algorithm = table.algorithm(to.variant);
        let own = to.from.as_deref().unwrap_or(algorithm);
        let bucket = bucket.not_ahead(own, self.now);
        let bucket = match &to.from {
            None => Some(bucket.drawn_by(to.variant)),
            Some(from) => bucket.carried(from, algorithm, to.variant, self.now),
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
fn verify(input: &mut Input<impl Read + Seek>) -> Result<(), SnapshotError> {
    let length = input.bytes.seek(SeekFrom::End(0))?;
    input.bytes.rewind()?;
    let Some(body) = length.checked_sub(size_of::<u64>() as u64) else {
        return Err(SnapshotError::Corrupt("it is too short"));
    };
    let mut sum = Summed {
        inner: io::sink(),
        sum: SipHasher13::new(),
    };
    io::copy(&mut input.bytes.by_ref().take(body), &mut sum)?;
    if u64::read(input)? != sum.sum.finish() {
        return Err(SnapshotError::Corrupt("its checksum does not match"));
    }
    input.bytes.rewind()?;
    Ok(())
}
