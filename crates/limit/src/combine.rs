//! Builds buckets that bounded tables and store outages need: the join of two buckets, an empty
//! bucket, and a gateway's share of a limit.

use super::algorithm::Algorithm;
use super::bucket::{Held, Level, Pair, State, Steps};
use super::in_flight::InFlight;
use super::limit_spec::{Kind, Terms};
use super::quota::QuotaError;
use super::sliding_log::{Entry, Log};
use super::time::{Micros, Timestamp};

impl Algorithm {
    /// A bucket that never grants more than either of two: the state a new key inherits when a
    /// table is full. A state of another algorithm counts as none.
    pub fn join(&self, a: &State, b: &State) -> State {
        match (self, a, b) {
            (Self::TokenBucket(bucket), State::Level(a), State::Level(b)) => {
                let at = a.at.max(b.at);
                State::Level(Level {
                    level: bucket.level(Some(*a), at).min(bucket.level(Some(*b), at)),
                    at,
                })
            }
            (
                Self::Interval(bucket) | Self::FixedWindow(bucket),
                State::Steps(a),
                State::Steps(b),
            ) => {
                let at = a.since.max(b.since);
                let (a, b) = (bucket.current(Some(*a), at), bucket.current(Some(*b), at));
                // The later start also has the later boundaries.
                State::Steps(Steps {
                    used: a.used.max(b.used),
                    since: a.since.max(b.since),
                    amount: a.amount.min(b.amount),
                })
            }
            (Self::SlidingWindow(window), State::Pair(a), State::Pair(b)) => {
                let at = a.start.max(b.start);
                let (a, b) = (window.current(Some(*a), at), window.current(Some(*b), at));
                State::Pair(Pair {
                    start: at,
                    previous: a.previous.max(b.previous),
                    current: a.current.max(b.current),
                })
            }
            (Self::SlidingLog(_), State::Log(a), State::Log(b)) => State::Log(join_logs(a, b)),
            (Self::InFlight(_), State::Held(a), State::Held(b)) => State::Held(Held {
                units: a.units.max(b.units),
            }),
            _ => a.clone(),
        }
    }

    /// A bucket with no units left at `now`; `None` for a concurrency limit: without requests in
    /// flight all of its places are free.
    pub fn drained(&self, now: Timestamp) -> Option<State> {
        match self {
            Self::TokenBucket(_) => Some(State::Level(Level { level: 0, at: now })),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => Some(State::Steps(Steps {
                used: bucket.quota().burst,
                since: bucket.start_of(now),
                amount: bucket.quota().amount,
            })),
            Self::SlidingWindow(window) => Some(State::Pair(Pair {
                current: window.quota().amount,
                ..window.current(None, now)
            })),
            Self::SlidingLog(log) => Some(State::Log(Log::from_entries([Entry {
                at: now,
                units: log.quota().amount,
            }]))),
            Self::InFlight(_) => None,
        }
    }

    /// One of `replicas` equal shares, kept in the process. A token bucket's rate is divided
    /// exactly; whole units are rounded down, to at least one. A share that cannot be counted
    /// exactly becomes the whole limit.
    pub fn share(&self, replicas: u32) -> Self {
        let share = self.try_share(u64::from(replicas.max(1)));
        // The cost of a response does not depend on how many gateways share the limit.
        share
            .and_then(|share| share.settling(self.settled(), false))
            .unwrap_or_else(|_| self.clone())
    }

    fn try_share(&self, replicas: u64) -> Result<Self, Vec<QuotaError>> {
        let part = |units: u64| (units / replicas).max(1);
        let Some(whole) = self.terms(false) else {
            return match self {
                Self::InFlight(limit) if !limit.is_adaptive() => {
                    InFlight::new(part(limit.most())).map(Self::InFlight)
                }
                _ => Ok(self.clone()),
            };
        };
        let mut share = Terms {
            burst: whole.burst.map(part),
            debt: whole.debt / replicas,
            ..whole
        };
        match share.kind {
            Kind::TokenBucket => share.period = Micros(share.period.0.saturating_mul(replicas)),
            _ => share.amount = part(share.amount),
        }
        Self::new(&share)
    }
}

/// From the newest grant backwards: as many units since each moment as the larger log has.
fn join_logs(a: &Log, b: &Log) -> Log {
    let mut newest_first = Vec::with_capacity(a.entries().len() + b.entries().len());
    let (mut a, mut b) = (a.entries().rev().peekable(), b.entries().rev().peekable());
    let (mut since_a, mut since_b, mut joined) = (0u64, 0u64, 0u64);
    while let Some(at) = a
        .peek()
        .map(|entry| entry.at)
        .max(b.peek().map(|entry| entry.at))
    {
        while let Some(entry) = a.next_if(|entry| entry.at == at) {
            since_a += entry.units;
        }
        while let Some(entry) = b.next_if(|entry| entry.at == at) {
            since_b += entry.units;
        }
        let most = since_a.max(since_b);
        if most > joined {
            newest_first.push(Entry {
                at,
                units: most - joined,
            });
            joined = most;
        }
    }
    Log::from_entries(newest_first.into_iter().rev())
}
