//! Stores in the snapshot what limits have learnt from their upstreams: a count, then per limit its
//! name, tier and role, its kind, and its numbers.

use std::io::{self, Read, Write};
use std::sync::Arc;

use tollgate_limit::{Limit, Timestamp};

use super::SnapshotError;
use super::snapshot::{Name, read_moment, read_u8, read_u32, read_u64, write_count};
use crate::clock::Shift;

/// What a limit has learnt from its upstream, so that a clean restart need not learn it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// How many places an adaptive concurrency limit has found.
    Places(Places),
    /// How far a rate that follows its upstream's health has fallen.
    Share(Share),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub limit: u64,
    /// The time of a response that did not queue, in 1/1024 microsecond; 0: not known yet.
    pub unloaded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The factor in 1/1024, and the moment from which it rises.
    pub factor: (u64, Timestamp),
    /// The upper bound from the upstream's quota, in 1/1024, and the moment until which it applies.
    pub bound: (u64, Timestamp),
    /// Nothing is granted before this moment.
    pub opens: Timestamp,
}

pub(super) fn write(
    limits: &[Arc<Limit>],
    learnt: &[(usize, Learnt)],
    out: &mut impl Write,
) -> io::Result<()> {
    let learnt = || {
        let known = learnt.iter();
        known.filter_map(|(place, learnt)| Some((limits.get(*place)?, *learnt)))
    };
    write_count(learnt().count(), out)?;
    for (limit, learnt) in learnt() {
        Name::write(limit, out)?;
        let (kind, numbers) = match learnt {
            Learnt::Places(Places { limit, unloaded }) => (PLACES, vec![limit, unloaded]),
            Learnt::Share(Share {
                factor,
                bound,
                opens,
            }) => (
                SHARE,
                vec![
                    factor.0,
                    factor.1.as_micros(),
                    bound.0,
                    bound.1.as_micros(),
                    opens.as_micros(),
                ],
            ),
        };
        out.write_all(&[kind])?;
        for number in numbers {
            out.write_all(&number.to_le_bytes())?;
        }
    }
    Ok(())
}

/// What `limits` had learnt, by their index.
pub(super) fn read(
    limits: &[Arc<Limit>],
    input: &mut impl Read,
    shift: Shift,
) -> Result<Vec<(usize, Learnt)>, SnapshotError> {
    let mut all = Vec::new();
    for _ in 0..read_u32(input)? {
        let name = Name::read(input)?;
        let learnt = match read_u8(input)? {
            PLACES => Learnt::Places(Places {
                limit: read_u64(input)?,
                unloaded: read_u64(input)?,
            }),
            SHARE => Learnt::Share(Share {
                factor: (read_u64(input)?, read_moment(input, shift)?),
                bound: (read_u64(input)?, read_moment(input, shift)?),
                opens: read_moment(input, shift)?,
            }),
            _ => return Err(SnapshotError::Corrupt("an unknown kind of knowledge")),
        };
        if let Some(place) = limits.iter().position(|limit| name.is_of(limit)) {
            all.push((place, learnt));
        }
    }
    Ok(all)
}

const PLACES: u8 = 0;
const SHARE: u8 = 1;
