//! Limits and stores for the tests.

use std::sync::Arc;

use crate::clock::Clock;
use crate::local::table::Table;
use crate::local::{ColdStart, LocalStore};
use tollgate_limit::{Claim, Kind, Limit, Micros, Standing, Terms, Timestamp, fixtures};

pub(super) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(in crate::local) fn terms(kind: Kind, amount: u64, period: Micros, burst: u64) -> Terms {
    let burst = (kind != Kind::InFlight).then_some(burst);
    Terms {
        burst,
        ..fixtures::terms(kind, amount, period)
    }
}

/// `amount` per `period` with `burst`, in a table of `memory` bytes.
pub(in crate::local) fn limit(index: usize, name: &str, terms: &Terms, memory: usize) -> Limit {
    Limit {
        index,
        memory,
        ..fixtures::limit(name, terms)
    }
}

pub(super) fn bucket(
    index: usize,
    name: &str,
    amount: u64,
    seconds: u64,
    burst: u64,
) -> Arc<Limit> {
    let terms = terms(Kind::TokenBucket, amount, Micros::from_secs(seconds), burst);
    Arc::new(limit(index, name, &terms, 1 << 20))
}

pub(super) fn claim<'a>(limit: &'a Limit, key: &'a [u8]) -> Claim<'a> {
    Claim::new(limit, key, 1)
}

pub(super) fn store(limits: &[Arc<Limit>]) -> LocalStore {
    LocalStore::new(limits, Clock::manual(START), ColdStart::Full)
}

/// Draws a unit from the bucket of `tag` in `table`.
pub(in crate::local) fn draw_one(table: &Table, tag: u64) -> Option<Standing> {
    table.draw(tag, &claim(&bucket(0, "it", 1, 1, 1), b""), START)
}
