//! The form of limits and buckets in a shared store: names, numbers, states.
//!
//! The pure core stays the specification. A [`WireForm`] contains the algorithm, to replay a
//! server's decisions, and the same algorithm as integers, for the scripts and statements that
//! decide on the server.

mod names;

use tollgate_limit::bucket::{Held, Level, Pair, State, Steps};
use tollgate_limit::lease::Terms;
use tollgate_limit::sliding_log::{Entry, Log};
use tollgate_limit::stepped::Stepped;
use tollgate_limit::{Algorithm, Align, Limit, Micros, OnFailover, Standing, Timestamp, Verdict};

pub(crate) use names::{Name, Names};

/// A bucket's state as a server returned it, in the numbers of its current limit.
pub(crate) type StoredState = State;

/// The numbers of the kinds, which are stored with every bucket, so never renumbered.
pub(crate) const TOKEN_BUCKET: i64 = 1;
pub(crate) const INTERVAL: i64 = 2;
pub(crate) const FIXED_WINDOW: i64 = 3;
pub(crate) const SLIDING_WINDOW: i64 = 4;
pub(crate) const SLIDING_LOG: i64 = 5;
const IN_FLIGHT: i64 = 8;

/// How long a gateway's places in a concurrency limit last without a heartbeat: after that a dead
/// gateway's places are free.
pub(crate) const HOLD: Micros = Micros(5_000_000);
/// How long they last on a test's clock, which heartbeats do not follow.
pub(crate) const HOLD_PINNED: Micros = Micros::from_secs(86_400);
/// The count of numbers sent for a limit: kind, drain, and ten of its own.
pub(crate) const NUMBERS: usize = 12;

/// One limit in the form sent to a shared store.
#[derive(Debug)]
pub(crate) struct WireForm {
    algorithm: Algorithm,
    drain: bool,
    refundable: bool,
    lease: Option<Terms>,
}

impl WireForm {
    fn new(limit: &Limit) -> Self {
        Self {
            algorithm: limit.algorithm.clone(),
            drain: limit.on_failover == OnFailover::Drain,
            // Units that other gateways give back also raise the bucket, and so does an operator.
            refundable: limit.refundable || limit.lease || limit.resettable,
            lease: if limit.lease {
                Terms::of(&limit.algorithm).ok()
            } else {
                None
            },
        }
    }

    /// How its units are leased; `None`: not at all.
    pub(crate) fn lease(&self) -> Option<&Terms> {
        self.lease.as_ref()
    }

    pub(crate) fn full_level(&self) -> i64 {
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => bucket.full(),
            _ => 0,
        }
    }

    /// Units of a token bucket, scaled to its level.
    pub(crate) fn scaled(&self, units: u64) -> i64 {
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => bucket.scaled(units),
            _ => 0,
        }
    }

    pub(crate) fn kind(&self) -> i64 {
        kind_of(&self.algorithm)
    }

    /// The numbers sent to scripts and statements: kind, whether a fail-over drains, and the kind's
    /// own numbers. `now` is approximately the server's time: only four calendar boundaries around
    /// it are sent. They are always enough for a limit without debt. If they are not enough, the
    /// receiver must report that and do nothing: the function of PostgreSQL leaves the request to
    /// the transaction, and Redis's script receives [`WireForm::boundaries`] and asks for more.
    pub(crate) fn numbers(&self, now: Timestamp) -> [i64; NUMBERS] {
        let own = match &self.algorithm {
            Algorithm::TokenBucket(bucket) => {
                let (quota, debt) = (bucket.quota(), bucket.debt());
                let p = signed(quota.p);
                let (owed, most) = (
                    signed(debt).saturating_mul(p),
                    signed(quota.burst.saturating_add(debt)),
                );
                let (n, wait) = (signed(quota.n), signed(bucket.max_wait().0));
                let (full, floor) = (bucket.full(), bucket.floor());
                let (leasable, counted) = self.lease.map_or((0, 0), |terms| {
                    (signed(terms.most), signed(terms.counted().0))
                });
                filled([n, p, full, owed, wait, floor, most, leasable, counted])
            }
            Algorithm::Interval(bucket) | Algorithm::FixedWindow(bucket) => stepped(bucket, now),
            Algorithm::SlidingWindow(window) => {
                let (most, ahead) = (signed(window.most()), signed(window.ahead()));
                let quota = window.quota();
                filled([signed(quota.amount), signed(quota.period.0), most, ahead])
            }
            Algorithm::SlidingLog(log) => {
                let (wait, reach) = (signed(log.max_wait().0), signed(log.reach().0));
                let quota = log.quota();
                filled([signed(quota.amount), signed(quota.period.0), wait, reach])
            }
            Algorithm::InFlight(limit) => filled([signed(limit.most()), signed(HOLD.0)]),
        };
        let mut numbers = [self.kind(); NUMBERS];
        numbers[1] = i64::from(self.drain);
        numbers[2..].copy_from_slice(&own);
        numbers
    }

    /// For a limit with calendar windows, the boundaries around `now`: as many as buckets can need
    /// in its own numbers, or `each_way` if others have left a bucket deeper in debt. `None`: the
    /// limit has no calendar windows.
    pub(crate) fn boundaries(&self, now: Timestamp, each_way: Option<u64>) -> Option<Vec<i64>> {
        let Algorithm::FixedWindow(bucket) = &self.algorithm else {
            return None;
        };
        let Align::Calendar(calendar) = bucket.align() else {
            return None;
        };
        let (position, each_way) = (
            calendar.position(now),
            each_way.unwrap_or_else(|| bucket.steps_most()),
        );
        let places = (position + 1).saturating_sub(each_way)..=position.saturating_add(each_way);
        Some(
            places
                .map(|place| signed(calendar.boundary(place).as_micros()))
                .collect(),
        )
    }

    /// The lowest level that a settlement may give a bucket refilled in steps.
    pub(crate) fn floor_of_steps(&self) -> Option<i64> {
        match &self.algorithm {
            Algorithm::Interval(bucket) | Algorithm::FixedWindow(bucket) => Some(bucket.floor()),
            _ => None,
        }
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    pub(crate) fn drains(&self) -> bool {
        self.drain
    }

    pub(crate) fn refundable(&self) -> bool {
        self.refundable
    }

    /// Whether its places must be confirmed by heartbeats.
    pub(crate) fn holds(&self) -> bool {
        self.algorithm.holds_places()
    }

    /// The bucket's standing, and its verdict on `cost`, without drawing.
    pub(crate) fn standing(
        &self,
        state: Option<&StoredState>,
        cost: u64,
        now: Timestamp,
    ) -> Standing {
        let verdict = Verdict::from(&self.algorithm.judge(state, cost, now));
        Standing::new(verdict, self.algorithm.report(state, now))
    }

    /// The state from the integers a server sent; `None` if they are invalid.
    pub(crate) fn seen(&self, numbers: &[i64]) -> Option<StoredState> {
        state_of(self.kind(), numbers)
    }
}

/// The state of a bucket of this kind from its integers; `None` if they are invalid.
pub(crate) fn state_of(kind: i64, numbers: &[i64]) -> Option<StoredState> {
    let units = |number: i64| u64::try_from(number).ok();
    Some(match (kind, numbers) {
        (TOKEN_BUCKET, &[level, at]) => {
            let at = moment(at)?;
            State::Level(Level { level, at })
        }
        (INTERVAL | FIXED_WINDOW, &[amount, used, since]) => State::Steps(Steps {
            used: units(used)?,
            since: moment(since)?,
            amount: units(amount)?,
        }),
        (SLIDING_WINDOW, &[start, previous, current]) => State::Pair(Pair {
            start: moment(start)?,
            previous: units(previous)?,
            current: units(current)?,
        }),
        (SLIDING_LOG, entries) if entries.len() % 2 == 0 => {
            let entry = |pair: &[i64]| {
                let (at, units) = (moment(pair[0])?, units(pair[1])?);
                Some(Entry { at, units })
            };
            let entries: Option<Vec<_>> = entries.chunks_exact(2).map(entry).collect();
            State::Log(Log::from_entries(entries?))
        }
        (IN_FLIGHT, &[held]) => State::Held(Held {
            units: units(held)?,
        }),
        _ => return None,
    })
}

pub(crate) fn kind_of(algorithm: &Algorithm) -> i64 {
    match algorithm {
        Algorithm::TokenBucket(_) => TOKEN_BUCKET,
        Algorithm::Interval(_) => INTERVAL,
        Algorithm::FixedWindow(_) => FIXED_WINDOW,
        Algorithm::SlidingWindow(_) => SLIDING_WINDOW,
        Algorithm::SlidingLog(_) => SLIDING_LOG,
        Algorithm::InFlight(_) => IN_FLIGHT,
    }
}

/// A kind's own numbers; zeros follow.
fn filled<const N: usize>(own: [i64; N]) -> [i64; NUMBERS - 2] {
    let mut numbers = [0; NUMBERS - 2];
    numbers[..N].copy_from_slice(&own);
    numbers
}

fn stepped(bucket: &Stepped, now: Timestamp) -> [i64; NUMBERS - 2] {
    let quota = bucket.quota();
    let (align, edges) = match bucket.align() {
        Align::FirstHit => (0, [0; 4]),
        Align::Clock => (1, [0; 4]),
        Align::Calendar(calendar) => {
            let position = calendar.position(now);
            let edge = |place: u64| signed(calendar.boundary(place).as_micros());
            let around = [
                position.saturating_sub(1),
                position,
                position + 1,
                position + 2,
            ];
            (2, around.map(edge))
        }
    };
    let [before, start, end, after] = edges;
    let (amount, burst, period) = (
        signed(quota.amount),
        signed(quota.burst),
        signed(quota.period.0),
    );
    let (debt, max_wait) = (signed(bucket.debt()), signed(bucket.max_wait().0));
    [
        amount, burst, period, align, debt, max_wait, before, start, end, after,
    ]
}

/// A moment from a server's integer; `None` if it is invalid.
pub(crate) fn moment(micros: i64) -> Option<Timestamp> {
    u64::try_from(micros).ok().map(Timestamp::from_micros)
}

pub(crate) fn count(items: usize) -> i64 {
    i64::try_from(items).expect("a batch is bounded")
}

/// For numbers that a limit of a shared store keeps below 2^53.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
