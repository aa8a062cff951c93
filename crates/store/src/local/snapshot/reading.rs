//! Reads a snapshot into a new store.

use std::hash::Hasher;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tollgate_limit::{Limit, Micros, Timestamp};

use super::heading::{Name, Numbers};
use super::{MAGIC, Remembered, SnapshotError, Summed, VERSION, WITHOUT_PENALTIES};
use crate::clock::Clock;
use crate::local::hash::Seed;
use crate::local::state_bytes::{OWN, read_moving};
use crate::local::table::Table;
use crate::local::{
    Carried, Carry, CarryReport, LocalStore, epoch, family, keep_floors, learnt, penalized,
};

impl LocalStore {
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

pub(super) fn read_bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(in crate::local) fn read_u8(input: &mut impl Read) -> io::Result<u8> {
    read_bytes(input).map(u8::from_le_bytes)
}

pub(in crate::local) fn read_u32(input: &mut impl Read) -> io::Result<u32> {
    read_bytes(input).map(u32::from_le_bytes)
}

pub(in crate::local) fn read_u64(input: &mut impl Read) -> io::Result<u64> {
    read_bytes(input).map(u64::from_le_bytes)
}

/// A moment on a clock that is `behind` the clock it was written by.
pub(in crate::local) fn read_moment(
    input: &mut impl Read,
    behind: Micros,
) -> io::Result<Timestamp> {
    Ok(Timestamp::from_micros(read_u64(input)?).before(behind))
}
