//! The bytes of a snapshot: how each value is written, and beside it how it is read. Integers are
//! little-endian.

use std::io::{self, Read, Write};

use tollgate_limit::bucket::{Held, Level, Pair, State, Steps};
use tollgate_limit::sliding_log::{Entry, Log};
use tollgate_limit::{KeyBytes, Role, Timestamp};

use super::{Learnt, Penalized, Places, Share, SnapshotError};
use crate::clock::Shift;
use crate::local::bucket::Whose;

pub(super) trait Stored: Sized {
    fn write(&self, out: &mut impl Write) -> io::Result<()>;
    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError>;
}

/// A snapshot that is read.
pub(super) struct Input<R> {
    pub(super) bytes: R,
    /// Moves the moments that are read: from the clock of the process that wrote them to that of this one.
    pub(super) shift: Shift,
}

/// Stores a structure by its fields, in this order.
macro_rules! stored_by_fields {
    ($name:ident { $($field:ident),* }) => {
        impl Stored for $name {
            fn write(&self, out: &mut impl Write) -> io::Result<()> {
                $(self.$field.write(out)?;)*
                Ok(())
            }

            fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
                $(let $field = Stored::read(input)?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// Stores a variant by its number, and what it holds.
macro_rules! stored_by_number {
    ($name:ident { $($number:literal: $variant:ident),* }) => {
        impl Stored for $name {
            fn write(&self, out: &mut impl Write) -> io::Result<()> {
                match self {
                    $(Self::$variant(held) => {
                        out.write_all(&[$number])?;
                        held.write(out)
                    })*
                }
            }

            fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
                Ok(match u8::read(input)? {
                    $($number => Self::$variant(Stored::read(input)?),)*
                    _ => return Err(UNKNOWN),
                })
            }
        }
    };
}

macro_rules! stored_integers {
    ($($integer:ident),*) => {$(
        impl Stored for $integer {
            fn write(&self, out: &mut impl Write) -> io::Result<()> {
                out.write_all(&self.to_le_bytes())
            }

            fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
                let mut bytes = [0; size_of::<Self>()];
                input.bytes.read_exact(&mut bytes)?;
                Ok(Self::from_le_bytes(bytes))
            }
        }
    )*};
}

pub(super) use stored_by_fields;

stored_integers! { u8, u32, u64, u128, i64 }
stored_by_fields! { Level { level, at } }
stored_by_fields! { Steps { used, since, amount } }
stored_by_fields! { Pair { start, previous, current } }
stored_by_fields! { Held { units } }
stored_by_fields! { Entry { at, units } }
stored_by_fields! { Places { limit, unloaded } }
stored_by_fields! { Share { factor, bound, opens } }
stored_by_fields! { Penalized { bucket, until, refusals, admits } }
stored_by_number! { State { 1: Level, 2: Steps, 3: Pair, 4: Held, 5: Log } }
stored_by_number! { Learnt { 0: Places, 1: Share } }

impl Stored for Timestamp {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.as_micros().write(out)
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        let written = Self::from_micros(Stored::read(input)?);
        Ok(input.shift.moved(written))
    }
}

impl<T: Stored> Stored for Option<T> {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            None => out.write_all(&[0]),
            Some(value) => {
                out.write_all(&[1])?;
                value.write(out)
            }
        }
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        match u8::read(input)? {
            0 => Ok(None),
            1 => T::read(input).map(Some),
            _ => Err(UNKNOWN),
        }
    }
}

impl<A: Stored, B: Stored> Stored for (A, B) {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.0.write(out)?;
        self.1.write(out)
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        Ok((A::read(input)?, B::read(input)?))
    }
}

impl<T: Stored> Stored for Vec<T> {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        (self.len() as u64).write(out)?;
        self.iter().try_for_each(|one| one.write(out))
    }

    /// The memory that this takes is bounded by the length of the snapshot, whatever the count.
    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        let count = u64::read(input)?;
        (0..count).map(|_| T::read(input)).collect()
    }
}

impl Stored for String {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.as_bytes().to_vec().write(out)
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        let bytes = Stored::read(input)?;
        Self::from_utf8(bytes).map_err(|_| SnapshotError::Corrupt("a name is not text"))
    }
}

impl Stored for KeyBytes {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.to_vec().write(out)
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        Stored::read(input).map(Self::from_vec)
    }
}

impl Stored for Role {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&[u8::from(*self == Self::Candidate)])
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        Ok(match u8::read(input)? {
            0 => Self::Live,
            _ => Self::Candidate,
        })
    }
}

impl Stored for Log {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.entries().collect::<Vec<_>>().write(out)
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        Vec::read(input).map(Self::from_entries)
    }
}

impl Stored for Whose {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match *self {
            Self::Bucket { tag } => {
                out.write_all(&[1])?;
                tag.write(out)
            }
            Self::Floor { first, last } => {
                out.write_all(&[2])?;
                (first, last).write(out)
            }
            Self::Birth => out.write_all(&[3]),
        }
    }

    fn read(input: &mut Input<impl Read>) -> Result<Self, SnapshotError> {
        Ok(match u8::read(input)? {
            1 => Self::Bucket {
                tag: Stored::read(input)?,
            },
            2 => match Stored::read(input)? {
                (first, last) if first <= last => Self::Floor { first, last },
                _ => return Err(SnapshotError::Corrupt("a floor ends before it begins")),
            },
            3 => Self::Birth,
            _ => return Err(UNKNOWN),
        })
    }
}

const UNKNOWN: SnapshotError = SnapshotError::Corrupt("a record of no known kind");
