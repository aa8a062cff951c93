//! The mark of a server's data: a row among the buckets with the time since which they are
//! complete. It shares their fate, so an event that loses buckets loses it too; each database has
//! its own signs of such an event.

use crate::batch::Origin;
use tollgate_limit::Timestamp;

/// The key of the mark; the names of buckets are 16 bytes.
pub(crate) const KEY: &[u8] = b"tollgate";

/// The value that a row's print is compared with, and the time since which this data is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) print: i64,
    pub(crate) since: i64,
}

impl Mark {
    /// Whether its moment is after `now`: the clock was set back.
    pub(crate) fn is_ahead(&self, now: Timestamp) -> bool {
        self.since() > now
    }

    /// Its moment.
    pub(crate) fn since(&self) -> Timestamp {
        Timestamp::from_micros(u64::try_from(self.since).unwrap_or(0))
    }

    /// A print for a new one: 52 random bits.
    pub(crate) fn new_print() -> i64 {
        crate::wire_form::signed(fastrand::u64(1..1 << 52))
    }
}

/// The origin of what is read from tables whose mark has this print; `None`: the print is not known
/// yet. Every database and schema has tables of its own.
pub(crate) fn origin(print: i64) -> Option<Origin> {
    (print != 0).then_some((print, 0))
}

/// Logs that a gateway has made a new mark.
pub(crate) fn log_new() {
    tracing::info!(
        "nothing is known of this server's past (it is new, was emptied, restarted, restored or promoted): buckets \
         of limits with on_failover = \"drain\" begin drained there"
    );
}
