//! The limiters side by side, each used as its documentation says.

use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use governor::clock::{DefaultClock, FakeRelativeClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use tollgate_store::clock::Clock;
use tollgate_limit::{
    Algorithm, Align, Claim, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, Timestamp, WhenDown,
};
use tollgate_store::local::{ColdStart, LocalStore};

use crate::keys::KEY;

/// One way of limiting many keys.
pub trait Limiter: Sync {
    /// What the table calls it.
    const NAME: &'static str;
    /// How much less work it is given, being slower.
    const PACE: usize = 1;
    /// The form it wants keys in.
    type Key: Sync;
    /// A key in that form; made before the clock starts.
    fn key(bytes: &[u8; KEY]) -> Self::Key;
    /// For about `keys` keys; `plenty`: every request is allowed, otherwise all but each key's first are refused.
    fn new(keys: usize, plenty: bool) -> Self;
    /// Whether the request is allowed.
    fn check(&self, key: &Self::Key) -> bool;
}

/// One a second with a burst that no key uses up: every bucket is active and every request allowed.
const PLENTY: u32 = 4_000_000_000;

pub struct Tollgate {
    store: LocalStore,
    limit: Arc<Limit>,
}

/// A token bucket of `amount` per `period`, in a table of `memory` bytes.
pub fn limit(index: usize, amount: u64, period: Micros, burst: u64, memory: usize) -> Arc<Limit> {
    let terms = Terms {
        kind: Kind::TokenBucket,
        amount,
        period,
        burst: Some(burst),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: false,
    };
    Arc::new(Limit {
        name: format!("limit {index}").into(),
        index,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(&terms).expect("representable"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::LocalShare,
        on_failover: OnFailover::Keep,
        lease: false,
        memory,
        refundable: false,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    })
}

/// 34.5 bytes a place, 72 places in a hundred used.
pub fn memory(keys: usize) -> usize {
    keys * 48
}

pub const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

impl Limiter for Tollgate {
    const NAME: &'static str = "**tollgate**";
    type Key = [u8; KEY];

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        *bytes
    }

    fn new(keys: usize, plenty: bool) -> Self {
        let (period, burst) = if plenty { (1, u64::from(PLENTY)) } else { (86_400, 1) };
        let limit = limit(0, 1, Micros::from_secs(period), burst, memory(keys));
        Self { store: LocalStore::new(std::slice::from_ref(&limit), Clock::manual(NOW), ColdStart::Full), limit }
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        self.store.draw_at(&[Claim::new(&self.limit, key, 1)], NOW).granted
    }
}

pub struct TollgateOwnClock(Tollgate, Clock);

impl Limiter for TollgateOwnClock {
    const NAME: &'static str = "**tollgate**, reading the clock";
    type Key = [u8; KEY];

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        *bytes
    }

    fn new(keys: usize, plenty: bool) -> Self {
        Self(Tollgate::new(keys, plenty), Clock::system())
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        let claim = Claim::new(&self.0.limit, key, 1);
        self.0.store.draw_at(&[claim], self.1.now()).granted
    }
}

fn quota(plenty: bool) -> governor::Quota {
    if plenty {
        governor::Quota::per_second(NonZeroU32::MIN).allow_burst(NonZeroU32::new(PLENTY).expect("not zero"))
    } else {
        governor::Quota::with_period(Duration::from_secs(86_400)).expect("not zero")
    }
}

/// As its documentation shows it: `String` keys in a dashmap.
pub struct Governor(
    governor::RateLimiter<String, DashMapStateStore<String>, FakeRelativeClock, NoOpMiddleware<GivenInstant>>,
);

type GivenInstant = <FakeRelativeClock as governor::clock::Clock>::Instant;

impl Limiter for Governor {
    const NAME: &'static str = "governor";
    type Key = String;

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn new(_keys: usize, plenty: bool) -> Self {
        Self(governor::RateLimiter::new(quota(plenty), DashMapStateStore::default(), FakeRelativeClock::default()))
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// With keys stored inline instead of behind a pointer.
pub struct GovernorInline(
    governor::RateLimiter<[u8; KEY], DashMapStateStore<[u8; KEY]>, FakeRelativeClock, NoOpMiddleware<GivenInstant>>,
);

impl Limiter for GovernorInline {
    const NAME: &'static str = "governor, inline keys";
    type Key = [u8; KEY];

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        *bytes
    }

    fn new(_keys: usize, plenty: bool) -> Self {
        Self(governor::RateLimiter::new(quota(plenty), DashMapStateStore::default(), FakeRelativeClock::default()))
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        self.0.check_key(key).is_ok()
    }
}

pub struct GovernorOwnClock(governor::DefaultKeyedRateLimiter<String>);

impl Limiter for GovernorOwnClock {
    const NAME: &'static str = "governor, reading the clock";
    type Key = String;

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        Governor::key(bytes)
    }

    fn new(_keys: usize, plenty: bool) -> Self {
        Self(governor::RateLimiter::new(quota(plenty), DashMapStateStore::default(), DefaultClock::default()))
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// It is single-threaded by itself: sixty-four of them behind mutexes.
pub struct Throttlecrab {
    shards: Vec<Mutex<throttlecrab::RateLimiter<throttlecrab::AdaptiveStore>>>,
    burst: i64,
    period: i64,
    hasher: std::hash::RandomState,
}

impl Limiter for Throttlecrab {
    const NAME: &'static str = "throttlecrab, 64 mutexed shards";
    const PACE: usize = 8;
    type Key = String;

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        Governor::key(bytes)
    }

    fn new(keys: usize, plenty: bool) -> Self {
        let shard = || {
            let store = throttlecrab::AdaptiveStore::with_capacity(keys / 48 + 16);
            Mutex::new(throttlecrab::RateLimiter::new(store))
        };
        let (burst, period) = if plenty { (1_000_000_000, 1) } else { (1, 86_400) };
        Self { shards: (0..64).map(|_| shard()).collect(), burst, period, hasher: std::hash::RandomState::new() }
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        use std::hash::BuildHasher;
        let shard = self.hasher.hash_one(key) as usize % self.shards.len();
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(NOW.as_micros());
        let mut limiter = self.shards[shard].lock().expect("not poisoned");
        limiter.rate_limit(key, self.burst, 1, self.period, 1, now).is_ok_and(|(allowed, _)| allowed)
    }
}

/// Its in-memory storage, one limit by one variable.
pub struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: limitador::limit::Namespace,
}

impl Limiter for Limitador {
    const NAME: &'static str = "limitador, in memory";
    const PACE: usize = 64;
    type Key = String;

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        Governor::key(bytes)
    }

    fn new(keys: usize, plenty: bool) -> Self {
        let limiter = limitador::RateLimiter::new(keys as u64 * 2);
        let (most, period) = if plenty { (u64::from(PLENTY), 3600) } else { (1, 86_400) };
        let variable = "key".try_into().expect("an expression");
        limiter.add_limit(limitador::limit::Limit::new("bench", most, period, vec![], vec![variable]));
        Self { limiter, namespace: "bench".into() }
    }

    fn check(&self, key: &Self::Key) -> bool {
        let values = HashMap::from([("key".to_owned(), key.clone())]);
        let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &values.into(), 1);
        answer.is_ok_and(|answer| !answer.limited)
    }
}

/// What one writes by hand.
pub struct MutexedDashmap {
    buckets: DashMap<String, Mutex<u64>>,
    interval: u64,
    room: u64,
}

impl Limiter for MutexedDashmap {
    const NAME: &'static str = "dashmap of mutexed buckets";
    const PACE: usize = 2;
    type Key = String;

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        Governor::key(bytes)
    }

    fn new(_keys: usize, plenty: bool) -> Self {
        let (interval, burst) = if plenty { (1_000_000, u64::from(PLENTY)) } else { (86_400_000_000, 1) };
        Self { buckets: DashMap::new(), interval, room: interval * (burst - 1) }
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        let now = NOW.as_micros();
        let draw = |arrival: &Mutex<u64>| {
            let mut arrival = arrival.lock().expect("not poisoned");
            let from = (*arrival).max(now);
            let allowed = from - now <= self.room;
            if allowed {
                *arrival = from + self.interval;
            }
            allowed
        };
        match self.buckets.get(key) {
            Some(arrival) => draw(&arrival),
            None => draw(&self.buckets.entry(key.clone()).or_default()),
        }
    }
}

/// The floor: hash the key, add to one line.
pub struct OneMiss {
    lines: Box<[[AtomicU64; 8]]>,
    hasher: foldhash::quality::RandomState,
}

impl Limiter for OneMiss {
    const NAME: &'static str = "(the floor: a hash and an atomic add on one line)";
    type Key = [u8; KEY];

    fn key(bytes: &[u8; KEY]) -> Self::Key {
        *bytes
    }

    fn new(keys: usize, _plenty: bool) -> Self {
        let lines = Box::<[[AtomicU64; 8]]>::new_zeroed_slice((memory(keys) / 64).max(1));
        // Zeroed by the system as it is touched, as a table's memory is: the order of first touch decides which pages of the
        // machine it gets, and with that what a miss costs.
        // SAFETY: zero is a value of an atomic integer.
        let lines = unsafe { lines.assume_init() };
        Self { lines, hasher: foldhash::quality::RandomState::default() }
    }

    #[inline]
    fn check(&self, key: &Self::Key) -> bool {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        let line = ((u128::from(hasher.finish()) * self.lines.len() as u128) >> 64) as usize;
        self.lines[line][0].fetch_add(1, Ordering::Relaxed) < u64::MAX
    }
}

/// Three limits a request.
pub struct ThreeLimits {
    store: LocalStore,
    limits: [Arc<Limit>; 3],
}

impl ThreeLimits {
    pub fn new(keys: usize) -> Self {
        let limits =
            std::array::from_fn(|index| limit(index, 1, Micros::from_secs(1), u64::from(PLENTY), memory(keys)));
        Self { store: LocalStore::new(&limits, Clock::manual(NOW), ColdStart::Full), limits }
    }

    /// The answers are used whole, as a gateway uses them: what is left of each limit goes into its headers.
    pub fn together(&self, key: &[u8; KEY]) -> bool {
        let claim = |limit| Claim::new(limit, key, 1);
        let claims = [claim(&*self.limits[0]), claim(&self.limits[1]), claim(&self.limits[2])];
        black_box(self.store.draw_at(&claims, NOW)).granted
    }

    pub fn apart(&self, key: &[u8; KEY]) -> bool {
        let claim = |limit| Claim::new(limit, key, 1);
        self.limits.iter().all(|limit| black_box(self.store.draw_at(&[claim(limit)], NOW)).granted)
    }
}
