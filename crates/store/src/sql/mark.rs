//! The rows among the buckets that are none. They share their fate: an event that loses buckets loses
//! these, too.
//!
//! - The mark of a server's data: the time since which its buckets are complete. Each database has its
//!   own signs of an event that loses some.
//! - The moment of a bucket's last reset, by an operator.
//! - The receipt of a gateway's corrections: the number of its last call that made some, written in the
//!   transaction of that call.

use crate::batch::Origin;
use tollgate_limit::{Micros, Timestamp};

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

pub(crate) fn log_new() {
    tracing::info!(
        "nothing is known of this server's past (it is new, was emptied, restarted, restored or promoted): buckets \
         of limits with on_failover = \"drain\" begin drained there"
    );
}

/// The moment of a bucket's last reset is kept this long: requests of before it have ended by then.
pub(crate) const RESET_KEPT: Micros = Micros::from_secs(86_400);

/// The key of the row that has the moment of a bucket's last reset. (Names of buckets are keyed hashes, so
/// no other bucket has it.)
pub(crate) fn reset_key(bucket: u128) -> u128 {
    bucket ^ u128::from_be_bytes(*b"tollgate reset  ")
}

/// A receipt is kept this long: a gateway that reaches the store again by then finds it.
pub(crate) const RECEIPT_KEPT: Micros = Micros::from_secs(86_400);

/// The key of a gateway's receipt; the names of buckets are 16 bytes.
pub(crate) fn receipt_key(gateway: i64) -> [u8; 12] {
    let mut key = *b"made........";
    key[4..].copy_from_slice(&gateway.to_be_bytes());
    key
}
