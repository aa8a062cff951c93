//! Stores in the snapshot what is owed to the shared store: a count, then for each bucket the name, tier
//! and role of its limit, its key, and the units.

use std::io::{self, Read, Write};
use std::sync::Arc;

use tollgate_limit::{KeyBytes, Limit};

use super::{Name, SnapshotError, Unpaid, read_u32, read_u64, write_count};

const KEY_MAX: u32 = 1 << 20;

pub(super) fn write(
    limits: &[Arc<Limit>],
    unpaid: &[Unpaid],
    out: &mut impl Write,
) -> io::Result<()> {
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
pub(super) fn read(
    limits: &[Arc<Limit>],
    input: &mut impl Read,
) -> Result<Vec<Unpaid>, SnapshotError> {
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
