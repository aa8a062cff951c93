//! Limits for tests of the core.

use super::bucket::State;
use super::{
    Algorithm, Claim, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Standing, Terms,
    Timestamp, Verdict, WhenDown,
};

/// Every kind of limit that has a rate.
pub const RATES: [Kind; 5] = [
    Kind::TokenBucket,
    Kind::Interval,
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingLog,
];

/// `amount` per `period` by `kind`, in the process.
pub fn terms(kind: Kind, amount: u64, period: Micros) -> Terms {
    Terms::new(kind, amount, period)
}

pub fn limit(name: &str, terms: &Terms) -> Limit {
    Limit {
        name: name.into(),
        index: 0,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(terms).expect("representable"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::LocalShare,
        on_failover: OnFailover::Keep,
        lease: false,
        memory: 1 << 20,
        refundable: false,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    }
}

/// A token bucket of `amount` a minute.
pub fn per_minute(name: &str, amount: u64, burst: u64) -> Limit {
    limit(
        name,
        &Terms {
            burst: Some(burst),
            ..terms(Kind::TokenBucket, amount, Micros::from_secs(60))
        },
    )
}

/// A decision about one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub standing: Standing,
    /// The bucket afterwards; unchanged when the cost was refused.
    pub state: Option<State>,
}

impl Algorithm {
    /// Decides about one bucket, and draws from it.
    pub fn decide(&self, state: Option<&State>, cost: u64, now: Timestamp) -> Decided {
        let judged = self.judge(state, cost, now);
        let verdict = Verdict::from(&judged);
        let mut state = state.cloned();
        if let Ok(granted) = judged {
            self.apply(&mut state, granted.next);
        }
        Decided {
            standing: Standing::new(verdict, self.report(state.as_ref(), now)),
            state,
        }
    }
}

/// The state of the buckets, without charging: each verdict is what a draw of that cost would get now.
pub fn peek_all(claims: &[Claim<'_>], states: &[Option<State>], now: Timestamp) -> Vec<Standing> {
    let standing = |(claim, state): (&Claim<'_>, &Option<State>)| {
        let algorithm = claim.limit.algorithm.under(claim.conditions);
        let verdict = Verdict::from(&algorithm.judge(state.as_ref(), claim.cost, now));
        Standing::new(verdict, algorithm.report(state.as_ref(), now))
    };
    claims.iter().zip(states).map(standing).collect()
}
