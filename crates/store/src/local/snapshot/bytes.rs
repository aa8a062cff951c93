//! Numbers and moments as the bytes of a snapshot.

use std::io::{self, Read, Write};

use tollgate_limit::Timestamp;

use crate::clock::Shift;

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

/// Reads a moment of the process that wrote it, as a moment of this one.
pub(in crate::local) fn read_moment(input: &mut impl Read, shift: Shift) -> io::Result<Timestamp> {
    read_u64(input).map(|micros| shift.moved(Timestamp::from_micros(micros)))
}

pub(in crate::local) fn write_count(count: usize, out: &mut impl Write) -> io::Result<()> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    out.write_all(&count.to_le_bytes())
}
