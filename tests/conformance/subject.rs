//! What the suite asks of a store beside the trait: to be made, and to have its clock moved.

use std::sync::Arc;

use tollgate_limit::{
    Algorithm, Align, Claim, KeyBytes, Kind, Limit, Micros, Mode, OnFailover, Placement, Role,
    Terms, Timestamp, WhenDown, key,
};
use tollgate_store::Store;

/// A store under test.
pub(crate) trait Subject: Sized {
    type Store: Store;

    /// Whether its limits must be representable in a shared store.
    const SHARED: bool;

    /// Random limits per test; each makes a store of its own.
    const RUNS: u64;

    /// A store for `limits` whose clock stands at `now`; `None`, with a printed notice: there is none here.
    async fn new(limits: &[Arc<Limit>], now: Timestamp) -> Option<Self>;

    fn store(&self) -> &Self::Store;

    /// Moves its clock on; that of a shared store back, too.
    fn set_time(&mut self, now: Timestamp);

    /// Brings other numbers of its limits into force; in a process by a reload, or by a clean stop and a start. (Shared stores
    /// learn of them with the next request.)
    fn reload(&mut self, _limits: &[Arc<Limit>], _restart: bool) {}

    /// Returns once every settlement handed over has landed.
    async fn settled(&self) {}

    /// Algorithms it can keep.
    fn kinds() -> &'static [Kind] {
        &[
            Kind::TokenBucket,
            Kind::Interval,
            Kind::FixedWindow,
            Kind::SlidingWindow,
            Kind::SlidingLog,
            Kind::InFlight,
        ]
    }

    /// Whether a calendar can align its windows.
    fn calendars() -> bool {
        true
    }
}

/// `amount` per `period` by `kind`.
pub(crate) fn terms<S: Subject>(kind: Kind, amount: u64, period: Micros) -> Terms {
    Terms {
        kind,
        amount,
        period,
        burst: None,
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: S::SHARED,
    }
}

/// A limit by `algorithm` at `index`, whose grants can be corrected.
pub(crate) fn limit<S: Subject>(index: usize, algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit {
        name: format!("limit-{index}").into(),
        index,
        tier: None,
        role: Role::Live,
        algorithm,
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: if S::SHARED {
            Placement::Shared
        } else {
            Placement::Local
        },
        when_down: WhenDown::Refuse,
        on_failover: OnFailover::Keep,
        lease: false,
        memory: 1 << 20,
        refundable: true,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    })
}

/// A caller of its own, on a store that is never emptied.
pub(crate) fn caller(name: &str) -> KeyBytes {
    let unique = fastrand::u128(..).to_be_bytes();
    key::identity([unique.as_slice(), name.as_bytes()])
}

/// An enforced claim.
pub(crate) fn claim<'a>(limit: &'a Limit, key: &'a KeyBytes, cost: u64) -> Claim<'a> {
    Claim::new(limit, key, cost)
}
