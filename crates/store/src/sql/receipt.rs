//! The receipt of a gateway's corrections: a row among the buckets with the number of its last call
//! that made some, written in the transaction of that call. It shares the fate of the buckets: an event
//! that loses it loses the corrections, too.

use tollgate_limit::{Micros, hex};

/// A receipt is kept this long after it was written: a gateway that reaches the store again within
/// this time finds it.
pub(crate) const KEPT: Micros = Micros::from_secs(86_400);

/// The key of a gateway's receipt, in hexadecimal; the names of buckets are 16 bytes.
pub(crate) fn key_text(gateway: i64) -> String {
    hex::digits(&key(gateway))
}

/// The key of a gateway's receipt.
pub(crate) fn key(gateway: i64) -> [u8; 12] {
    let mut key = *b"made........";
    key[4..].copy_from_slice(&gateway.to_be_bytes());
    key
}
