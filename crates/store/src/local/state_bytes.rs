//! One bucket's state as bytes.

use std::io::{self, Read, Write};

use tollgate_limit::Timestamp;
use tollgate_limit::bucket::{Held, Level, Pair, State, Steps};
use tollgate_limit::quota::{LOCAL_BOUND, UNITS_MAX};
use tollgate_limit::sliding_log::{Entry, LOG_UNITS_MAX, Log};

use super::bucket::{Bucket, Moving, Whose};
use super::snapshot::{SnapshotError, read_u8, read_u64};
use crate::clock::Shift;

pub(super) fn write_moving(moving: &Moving, out: &mut impl Write) -> io::Result<()> {
    match moving.whose {
        Whose::Bucket { tag } => {
            out.write_all(&[BUCKET])?;
            out.write_all(&tag.to_le_bytes())?;
        }
        Whose::Floor { first, last } => {
            out.write_all(&[FLOOR])?;
            out.write_all(&first.to_le_bytes())?;
            out.write_all(&last.to_le_bytes())?;
        }
        Whose::Birth => out.write_all(&[BIRTH])?,
    }
    write_state(&moving.bucket.state, out)?;
    out.write_all(&moving.bucket.largest.to_le_bytes())
}

pub(super) fn write_end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[END])
}

/// Reads the record that begins with `mark`; `None`: the end mark. `is_aligned`: its windows begin at
/// boundaries of the clock or of a calendar.
pub(super) fn read_moving(
    mark: u8,
    input: &mut impl Read,
    shift: Shift,
    is_aligned: bool,
) -> Result<Option<Moving>, SnapshotError> {
    let whose = match mark {
        END => return Ok(None),
        BUCKET => Whose::Bucket {
            tag: read_u64(input)?,
        },
        FLOOR => {
            let (first, last) = (read_u64(input)?, read_u64(input)?);
            if first > last {
                return Err(SnapshotError::Corrupt("a floor ends before it begins"));
            }
            Whose::Floor { first, last }
        }
        BIRTH => Whose::Birth,
        _ => return Err(SnapshotError::Corrupt("a record of no known kind")),
    };
    let state = read_state(input, shift, is_aligned)?;
    let bucket = Bucket {
        largest: read_u64(input)?.min(UNITS_MAX),
        ..Bucket::new(state, 0)
    };
    Ok(Some(Moving { whose, bucket }))
}

fn write_state(state: &State, out: &mut impl Write) -> io::Result<()> {
    let mut words = |kind: u8, words: &[u64]| {
        out.write_all(&[kind])?;
        words
            .iter()
            .try_for_each(|word| out.write_all(&word.to_le_bytes()))
    };
    match state {
        State::Level(Level { level, at }) => words(LEVEL, &[level.cast_unsigned(), at.as_micros()]),
        State::Steps(Steps {
            used,
            since,
            amount,
        }) => words(STEPS, &[*used, since.as_micros(), *amount]),
        State::Pair(Pair {
            start,
            previous,
            current,
        }) => words(PAIR, &[start.as_micros(), *previous, *current]),
        State::Held(Held { units }) => words(HELD, &[*units]),
        State::Log(log) => {
            words(LOG, &[log.entries().len() as u64])?;
            for Entry { at, units } in log.entries() {
                out.write_all(&at.as_micros().to_le_bytes())?;
                out.write_all(&units.to_le_bytes())?;
            }
            Ok(())
        }
    }
}

fn read_state(
    input: &mut impl Read,
    shift: Shift,
    is_aligned: bool,
) -> Result<State, SnapshotError> {
    let kind = read_u8(input)?;
    let mut word = || read_u64(input);
    let most = LOCAL_BOUND.unsigned_abs();
    let count = |word: u64, most: u64| {
        if word <= most {
            Ok(word)
        } else {
            Err(SnapshotError::Corrupt(FAR))
        }
    };
    let level =
        |word: u64| count(word.cast_signed().unsigned_abs(), most).map(|_| word.cast_signed());
    let moment = |micros: u64| shift.moved(Timestamp::from_micros(micros));
    Ok(match kind {
        LEVEL => State::Level(Level {
            level: level(word()?)?,
            at: moment(word()?),
        }),
        STEPS => State::Steps(Steps {
            used: count(word()?, most)?,
            // Moved back, the start of a window would lie before its boundary, which would then count
            // as a window that has ended since.
            since: match is_aligned {
                true => Timestamp::from_micros(word()?),
                false => moment(word()?),
            },
            amount: count(word()?, UNITS_MAX)?.max(1),
        }),
        PAIR => {
            let start = moment(word()?);
            State::Pair(Pair {
                start,
                previous: count(word()?, most)?,
                current: count(word()?, most)?,
            })
        }
        HELD => State::Held(Held {
            units: count(word()?, most)?,
        }),
        LOG => {
            let entries = word()?;
            if entries > 2 * LOG_UNITS_MAX {
                return Err(SnapshotError::Corrupt("a log longer than any"));
            }
            // All of them together are counted as well.
            let entry = |_| {
                Ok(Entry {
                    at: moment(word()?),
                    units: count(word()?, most / (2 * LOG_UNITS_MAX))?,
                })
            };
            State::Log(Log::from_entries(
                (0..entries)
                    .map(entry)
                    .collect::<Result<Vec<_>, SnapshotError>>()?,
            ))
        }
        _ => return Err(SnapshotError::Corrupt("a state of no known kind")),
    })
}

/// Numbers outside the range of every limit: sums of them would overflow.
const FAR: &str = "a number beyond those that any limit counts to";

const END: u8 = 0;
const BUCKET: u8 = 1;
const FLOOR: u8 = 2;
const BIRTH: u8 = 3;
/// Mark before a record: the numbers it is kept in, if they are not the limit's.
pub(super) const OWN: u8 = 4;

const LEVEL: u8 = 1;
const STEPS: u8 = 2;
const PAIR: u8 = 3;
const HELD: u8 = 4;
const LOG: u8 = 5;
