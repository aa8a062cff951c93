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
    pub bucket: u128,
    /// The end of the span in which refusals are counted, or of the block.
    pub until: Timestamp,
    pub refusals: u32,
    /// When a lone caller is admitted; `None`: the key is not blocked.
    pub admits: Option<Timestamp>,
}

pub(super) fn write(penalized: &[Penalized], out: &mut impl Write) -> io::Result<()> {
    write_count(penalized.len(), out)?;
    for one in penalized.iter().take(u32::MAX as usize) {
        out.write_all(&one.bucket.to_le_bytes())?;
        out.write_all(&one.until.as_micros().to_le_bytes())?;
        out.write_all(&one.refusals.to_le_bytes())?;
        let Some(admits) = one.admits else {
            out.write_all(&[COUNTED])?;
            continue;
        };
        out.write_all(&[BLOCKED])?;
        out.write_all(&admits.as_micros().to_le_bytes())?;
    }
    Ok(())
}

pub(super) fn read(input: &mut impl Read, shift: Shift) -> Result<Vec<Penalized>, SnapshotError> {
    let mut all = Vec::new();
    for _ in 0..read_u32(input)? {
        let (low, high) = (read_u64(input)?, read_u64(input)?);
        let until = read_moment(input, shift)?;
        let refusals = read_u32(input)?;
        let admits = match read_u8(input)? {
            COUNTED => None,
            BLOCKED => Some(read_moment(input, shift)?),
            _ => return Err(SnapshotError::Corrupt("an unknown kind of penalty")),
        };
        all.push(Penalized {
            bucket: u128::from(high) << 64 | u128::from(low),
            until,
            refusals,
            admits,
        });
    }
    Ok(all)
}

const COUNTED: u8 = 0;
const BLOCKED: u8 = 1;
