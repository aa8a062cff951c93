//! Stores in the snapshot which keys were refused of late and which are blocked, so that a restart
//! forgives none: a count, then for each key its bucket and what is known of it.

use std::io::{self, Read, Write};

use tollgate_limit::Timestamp;

use super::SnapshotError;
use super::snapshot::{read_moment, read_u8, read_u32, read_u64, write_count};
use crate::clock::Shift;

/// What a gateway knows of a key under a limit with a penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalized {
    /// The bucket's name, by [`super::LocalStore::names`].
    pub bucket: u128,
    /// The end of the span in which refusals are counted, or of the block.
    pub until: Timestamp,
    /// The refusals in that span.
    pub refusals: u32,
    /// The block.
    pub block: Option<Blocked>,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// When a lone caller is admitted.
    pub admits: Timestamp,
    /// Whether it belongs into the shared store.
    pub shared: bool,
    /// Whether the shared store has not confirmed yet that it has the block.
    pub unstored: bool,
}

/// Writes what is known of these keys.
pub(super) fn write(penalized: &[Penalized], out: &mut impl Write) -> io::Result<()> {
    write_count(penalized.len(), out)?;
    for one in penalized.iter().take(u32::MAX as usize) {
        out.write_all(&one.bucket.to_le_bytes())?;
        out.write_all(&one.until.as_micros().to_le_bytes())?;
        out.write_all(&one.refusals.to_le_bytes())?;
        let Some(block) = one.block else {
            out.write_all(&[COUNTED])?;
            continue;
        };
        let is = |condition: bool, bit: u8| if condition { bit } else { 0 };
        out.write_all(&[BLOCKED | is(block.shared, SHARED) | is(block.unstored, UNSTORED)])?;
        out.write_all(&block.admits.as_micros().to_le_bytes())?;
    }
    Ok(())
}

/// What was known of keys.
pub(super) fn read(input: &mut impl Read, shift: Shift) -> Result<Vec<Penalized>, SnapshotError> {
    let mut all = Vec::new();
    for _ in 0..read_u32(input)? {
        let (low, high) = (read_u64(input)?, read_u64(input)?);
        let until = read_moment(input, shift)?;
        let refusals = read_u32(input)?;
        let kind = read_u8(input)?;
        let block = match kind & !(SHARED | UNSTORED) {
            COUNTED => None,
            BLOCKED => Some(Blocked {
                admits: read_moment(input, shift)?,
                shared: kind & SHARED != 0,
                unstored: kind & UNSTORED != 0,
            }),
            _ => return Err(SnapshotError::Corrupt("an unknown kind of penalty")),
        };
        all.push(Penalized {
            bucket: u128::from(high) << 64 | u128::from(low),
            until,
            refusals,
            block,
        });
    }
    Ok(all)
}

const COUNTED: u8 = 0;
const BLOCKED: u8 = 1;
const SHARED: u8 = 2;
const UNSTORED: u8 = 4;
