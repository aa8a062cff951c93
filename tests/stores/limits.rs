//! Limits for tests.

use std::sync::Arc;

use tollgate_limit::{
    Algorithm, Align, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, WhenDown,
};

/// The terms of a shared token bucket.
pub fn terms(kind: Kind, amount: u64, period: Micros) -> Terms {
    Terms {
        kind,
        amount,
        period,
        burst: None,
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: true,
    }
}

/// A limit of these terms.
pub fn limit(name: &str, index: usize, terms: &Terms) -> Arc<Limit> {
    Arc::new(Limit {
        name: name.into(),
        index,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(terms).expect("terms that can be represented"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Shared,
        when_down: WhenDown::Refuse,
        on_failover: OnFailover::Keep,
        lease: false,
        memory: 1 << 20,
        refundable: false,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    })
}

/// `amount` per `period` with this burst.
pub fn bucket(name: &str, index: usize, amount: u64, period: Micros, burst: u64) -> Arc<Limit> {
    limit(
        name,
        index,
        &Terms {
            burst: Some(burst),
            ..terms(Kind::TokenBucket, amount, period)
        },
    )
}
