//! Moves moments of a snapshot to the clock of the process that reads it.

use std::io::{self, Read};

use tollgate_limit::{Micros, Timestamp};

use super::read_u64;

/// From the clock of the process that wrote a snapshot to the clock of the process that reads it.
///
/// A process anchors its clock to the wall clock once. A wall clock that was set forward since then
/// must not count as time that has passed, and one that was set back must not leave buckets in the
/// future, where they would wait for the clock to catch up.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::local) struct Shift {
    forward: Micros,
    back: Micros,
}

impl Shift {
    /// It was written at `written` by its writer's clock, at `wall` by the wall clock, and it is `now`.
    pub(super) fn new(written: Timestamp, wall: Timestamp, now: Timestamp) -> Self {
        Self {
            forward: wall.since(written),
            back: Micros(written.since(wall).0 + wall.since(now).0),
        }
    }

    /// The moment `at` of the writer.
    pub(in crate::local) fn of(self, at: Timestamp) -> Timestamp {
        at.after(self.forward).before(self.back)
    }

    /// Reads a moment of the writer.
    pub(in crate::local) fn read(self, input: &mut impl Read) -> io::Result<Timestamp> {
        read_u64(input).map(|micros| self.of(Timestamp::from_micros(micros)))
    }
}
