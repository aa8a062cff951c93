//! How limits and buckets look to a shared store: names, numbers, states.
//!
//! The pure core stays the specification: a [`Shape`] carries the algorithm, to replay what a server decided, and the
//! same algorithm as integers, for the scripts and statements that decide there.

use std::hash::Hasher;
use std::sync::Arc;

use parking_lot::RwLock;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::StoreError;
use super::batch::Adjust;
use crate::limit::bucket::{Granted, Held, Judged, Level, Report, State};
use crate::limit::{Algorithm, Limit, Micros, OnFailover, Role, Standing, Timestamp, Verdict};

/// A bucket's state as a server returned it, in the numbers of its present limit.
pub(crate) type Seen = State;

/// The kinds as scripts and statements number them; stored with every bucket, so never renumbered.
pub(crate) const TOKEN_BUCKET: i64 = 1;
pub(crate) const IN_FLIGHT: i64 = 8;

/// How long a gateway's places in a concurrency limit stand without a heartbeat: a dead gateway's are free by then.
pub(crate) const HOLD: Micros = Micros(5_000_000);
/// Numbers a shape sends: kind, drain, and eight of its own.
pub(crate) const NUMBERS: usize = 10;

/// A bucket's name in a shared store: a keyed hash, as no caller's secret may stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Of the caller's identity alone: in a cluster, buckets of one caller share a slot by it.
    pub(crate) tag: u32,
    /// Of version, limit, role and identity.
    pub(crate) hash: u128,
}

/// One limit as a shared store is told of it.
#[derive(Debug)]
pub(crate) struct Shape {
    algorithm: Algorithm,
    /// Kind, whether a fail-over drains it, and the kind's own.
    pub(crate) numbers: [i64; NUMBERS],
    refundable: bool,
}

impl Shape {
    fn new(limit: &Limit) -> Result<Self, StoreError> {
        let own = match &limit.algorithm {
            Algorithm::TokenBucket(bucket) => {
                let (quota, debt) = (bucket.quota(), bucket.debt());
                let p = signed(quota.p);
                let (owed, most) = (signed(debt).saturating_mul(p), signed(quota.burst.saturating_add(debt)));
                [signed(quota.n), p, bucket.full(), owed, signed(bucket.max_wait().0), bucket.floor(), most, 0]
            }
            Algorithm::InFlight(limit) => [signed(limit.most()), signed(HOLD.0), 0, 0, 0, 0, 0, 0],
        };
        let mut numbers = [0; NUMBERS];
        numbers[0] = match &limit.algorithm {
            Algorithm::TokenBucket(_) => TOKEN_BUCKET,
            Algorithm::InFlight(_) => IN_FLIGHT,
        };
        numbers[1] = i64::from(limit.on_failover == OnFailover::Drain);
        numbers[2..].copy_from_slice(&own);
        Ok(Self { algorithm: limit.algorithm.clone(), numbers, refundable: limit.refundable })
    }

    /// The kind's number.
    pub(crate) fn kind(&self) -> i64 {
        self.numbers[0]
    }

    /// Whether its charges may be given back.
    pub(crate) fn refundable(&self) -> bool {
        self.refundable
    }

    /// Whether an upper bound of it can be kept: others only take from it, and time alone gives back.
    pub(crate) fn boundable(&self) -> bool {
        !matches!(self.algorithm, Algorithm::InFlight(_))
    }

    /// Whether its places must be told again and again, or are lost.
    pub(crate) fn holds(&self) -> bool {
        matches!(self.algorithm, Algorithm::InFlight(_))
    }

    /// Judges `cost` at `now`: how the bucket stands (after the draw, when it can pay), and the state that pays.
    pub(crate) fn decide(&self, state: Option<&Seen>, cost: u64, now: Timestamp) -> (Standing, Option<Seen>) {
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => {
                let level = level_of(state);
                told(bucket.judge(level, cost, now), level, |state| bucket.report(state, now), State::Level)
            }
            Algorithm::InFlight(limit) => {
                let held = held_of(state);
                told(limit.judge(held, cost), held, |state| limit.report(state), State::Held)
            }
        }
    }

    /// How the bucket stands, and what it would say to `cost`, nothing taken.
    pub(crate) fn standing(&self, state: Option<&Seen>, cost: u64, now: Timestamp) -> Standing {
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => {
                let level = level_of(state);
                Standing::new(Verdict::from(&bucket.judge(level, cost, now)), bucket.report(level, now))
            }
            Algorithm::InFlight(limit) => {
                let held = held_of(state);
                Standing::new(Verdict::from(&limit.judge(held, cost)), limit.report(held))
            }
        }
    }

    /// The state after a correction.
    pub(crate) fn settle(&self, state: Option<Seen>, adjust: Adjust, now: Timestamp) -> Option<Seen> {
        let Adjust::Change(change) = adjust else {
            // A heartbeat tells what the store should know already.
            return state;
        };
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => bucket.settle(level_of(state.as_ref()), change, now).map(State::Level),
            Algorithm::InFlight(limit) => limit.settle(held_of(state.as_ref()), change).map(State::Held),
        }
    }

    /// The state behind the integers a server sent; `None` when they cannot be one.
    pub(crate) fn seen(&self, numbers: &[i64]) -> Option<Seen> {
        match (self.kind(), numbers) {
            (TOKEN_BUCKET, &[level, at]) => {
                Some(State::Level(Level { level, at: Timestamp::from_micros(u64::try_from(at).ok()?) }))
            }
            (IN_FLIGHT, &[units]) => Some(State::Held(Held { units: u64::try_from(units).ok()? })),
            _ => None,
        }
    }
}

fn told<S: Copy>(
    judged: Judged<S>,
    state: Option<S>,
    report: impl Fn(Option<S>) -> Report,
    wrap: impl Fn(S) -> State,
) -> (Standing, Option<Seen>) {
    let verdict = Verdict::from(&judged);
    match judged {
        Ok(Granted { next, .. }) => (Standing::new(verdict, report(Some(next))), Some(wrap(next))),
        Err(_) => (Standing::new(verdict, report(state)), None),
    }
}

fn level_of(state: Option<&Seen>) -> Option<Level> {
    match state {
        Some(State::Level(level)) => Some(*level),
        _ => None,
    }
}

fn held_of(state: Option<&Seen>) -> Option<Held> {
    match state {
        Some(State::Held(held)) => Some(*held),
        _ => None,
    }
}

/// For numbers that a limit of a shared store keeps below 2^53.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Names buckets and keeps the shapes of the limits seen.
#[derive(Debug)]
pub(crate) struct Names {
    secret: (u64, u64),
    shapes: RwLock<Vec<Option<Known>>>,
}

#[derive(Debug)]
struct Known {
    name: Arc<str>,
    role: Role,
    algorithm: Algorithm,
    refundable: bool,
    on_failover: OnFailover,
    shape: Arc<Shape>,
}

impl Known {
    fn is(&self, limit: &Limit) -> bool {
        self.role == limit.role
            && self.refundable == limit.refundable
            && self.on_failover == limit.on_failover
            && (Arc::ptr_eq(&self.name, &limit.name) || self.name == limit.name)
            && self.algorithm == limit.algorithm
    }
}

impl Names {
    /// Names keyed by `secret`, which all gateways of one store must share.
    pub(crate) fn new(secret: &[u8]) -> Self {
        // Any length of secret makes a key: hashed under two fixed keys.
        let word = |key| {
            let mut hasher = siphasher::sip::SipHasher13::new_with_keys(key, !key);
            hasher.write(secret);
            hasher.finish()
        };
        Self { secret: (word(0x746f_6c6c_6761_7465), word(0x6b65_7920_7365_6372)), shapes: RwLock::default() }
    }

    /// The name of the bucket of `limit` that `key` selects.
    pub(crate) fn name(&self, limit: &Limit, key: &[u8]) -> Name {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(key);
        #[expect(clippy::cast_possible_truncation, reason = "a tag is 32 bits of a hash")]
        let tag = hasher.finish128().h1 as u32;
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        // Version, role and the name's length: no two lists of parts share bytes.
        hasher.write(&[1, u8::from(limit.role == Role::Candidate)]);
        hasher.write(&limit.name.len().to_le_bytes());
        hasher.write(limit.name.as_bytes());
        hasher.write(key);
        Name { tag, hash: hasher.finish128().as_u128() }
    }

    /// The shape of `limit`, made once per set of numbers.
    pub(crate) fn shape(&self, limit: &Limit) -> Result<Arc<Shape>, StoreError> {
        if let Some(Some(known)) = self.shapes.read().get(limit.index)
            && known.is(limit)
        {
            return Ok(known.shape.clone());
        }
        let shape = Arc::new(Shape::new(limit)?);
        let mut shapes = self.shapes.write();
        if limit.index >= shapes.len() {
            shapes.resize_with(limit.index + 1, || None);
        }
        shapes[limit.index] = Some(Known {
            name: limit.name.clone(),
            role: limit.role,
            algorithm: limit.algorithm.clone(),
            refundable: limit.refundable,
            on_failover: limit.on_failover,
            shape: shape.clone(),
        });
        Ok(shape)
    }
}
