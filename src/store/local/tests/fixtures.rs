//! Limits and stores for the tests.

use std::sync::Arc;

use crate::clock::Clock;
use crate::limit::{
    Algorithm, Claim, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, Timestamp, WhenDown,
};
use crate::store::local::{ColdStart, LocalStore};

pub(super) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(in crate::store::local) fn terms(kind: Kind, amount: u64, period: Micros, burst: u64) -> Terms {
    Terms {
        kind,
        amount,
        period,
        burst: (kind != Kind::InFlight).then_some(burst),
        align: crate::limit::Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        warm_up: Micros::ZERO,
        shared: false,
    }
}

/// `amount` per `period` with `burst`, in a table of `memory` bytes.
pub(in crate::store::local) fn limit(index: usize, name: &str, terms: &Terms, memory: usize) -> Limit {
    Limit {
        name: name.into(),
        index,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(terms).expect("representable"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::LocalShare,
        on_failover: OnFailover::Keep,
        lease: false,
        memory,
        refundable: false,
    }
}

pub(super) fn bucket(index: usize, name: &str, amount: u64, seconds: u64, burst: u64) -> Arc<Limit> {
    let terms = terms(Kind::TokenBucket, amount, Micros::from_secs(seconds), burst);
    Arc::new(limit(index, name, &terms, 1 << 20))
}

pub(super) fn claim<'a>(limit: &'a Limit, key: &'a [u8]) -> Claim<'a> {
    Claim { limit, key, cost: 1, enforced: true }
}

pub(super) fn store(limits: &[Arc<Limit>]) -> LocalStore {
    LocalStore::new(limits, Clock::manual(START), ColdStart::Full)
}
