//! The closed set of algorithms, each with the same functions. [`Algorithm::judge`] is the specification
//! that every store translates.

use super::bucket::{Granted, Judged, Next, Report, State};
use super::claim::Change;
use super::conditions::Following;
use super::in_flight::InFlight;
use super::limit_spec::{Align, Kind, Terms};
use super::quota::{Quota, QuotaError, Rate, UNITS_MAX};
use super::sliding_log::{Log, SlidingLog};
use super::sliding_window::SlidingWindow;
use super::stepped::Stepped;
use super::time::{Micros, Timestamp};
use super::token_bucket::TokenBucket;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Continuous refill: `burst + rate x T` in every span T.
    TokenBucket(TokenBucket),
    /// Adds the whole amount at once, after each whole period since first use.
    Interval(Stepped),
    FixedWindow(Stepped),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    /// At most this many units in flight.
    InFlight(InFlight),
}

impl Algorithm {
    /// Checks `terms`.
    ///
    /// # Errors
    /// Every reason why the limit cannot be represented exactly, and every setting that has no
    /// meaning for this algorithm.
    pub fn new(terms: &Terms) -> Result<Self, Vec<QuotaError>> {
        let mut errors = terms.meaningless();
        match Self::with(terms) {
            Ok(algorithm) if errors.is_empty() => return Ok(algorithm),
            Ok(_) => {}
            Err(more) => errors.extend(more),
        }
        Err(errors)
    }

    fn with(terms: &Terms) -> Result<Self, Vec<QuotaError>> {
        let &Terms {
            debt,
            max_wait,
            shared,
            ..
        } = terms;
        let quota = || {
            let rate = Rate::new(terms.amount, terms.period);
            Quota::new(rate, terms.burst.unwrap_or(terms.amount))
        };
        let stepped = |align| Stepped::new(quota()?, align, debt, max_wait, shared);
        Ok(match terms.kind {
            Kind::TokenBucket => {
                Self::TokenBucket(TokenBucket::new(quota()?, debt, max_wait, shared)?)
            }
            Kind::Interval => Self::Interval(stepped(Align::FirstHit)?),
            Kind::FixedWindow => Self::FixedWindow(stepped(terms.align.clone())?),
            Kind::SlidingWindow => {
                Self::SlidingWindow(SlidingWindow::new(quota()?, max_wait, shared)?)
            }
            Kind::SlidingLog => Self::SlidingLog(SlidingLog::new(quota()?, max_wait)?),
            Kind::InFlight => Self::InFlight(InFlight::new(terms.amount)?),
        })
    }

    /// The same algorithm with a rate that follows the upstream's health, down to `least`.
    ///
    /// # Errors
    /// When the algorithm is not a token bucket, or the minimum is above the rate or too low
    /// to be counted.
    pub fn following(self, least: Rate) -> Result<Self, Vec<QuotaError>> {
        match self {
            Self::TokenBucket(bucket) => bucket.following(least).map(Self::TokenBucket),
            _ => Err(vec![QuotaError::new(
                "follow_upstream",
                "only token_bucket can follow the upstream's health",
            )]),
        }
    }

    /// The same algorithm; if it follows the upstream's health, it also obeys its quota.
    pub fn obeying_quota(self) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.obeying_quota()),
            other => other,
        }
    }

    /// How far the rate may fall, if it follows the upstream's health.
    pub fn follows(&self) -> Option<&Following> {
        match self {
            Self::TokenBucket(bucket) => bucket.follows(),
            _ => None,
        }
    }

    /// Whether a refusal sheds load for an overloaded upstream, whatever the caller's use.
    pub fn sheds_load(&self) -> bool {
        matches!(self, Self::InFlight(limit) if limit.is_adaptive())
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::TokenBucket(_) => Kind::TokenBucket,
            Self::Interval(_) => Kind::Interval,
            Self::FixedWindow(_) => Kind::FixedWindow,
            Self::SlidingWindow(_) => Kind::SlidingWindow,
            Self::SlidingLog(_) => Kind::SlidingLog,
            Self::InFlight(_) => Kind::InFlight,
        }
    }

    /// The most units that a bucket can grant at once.
    pub fn capacity(&self) -> u64 {
        match self {
            Self::InFlight(limit) => limit.most(),
            _ => self.burst(),
        }
    }

    /// At least the units that a bucket of this limit can lack, so that a refund of as many fills it.
    /// `None`: places of a concurrency limit are held by requests, and only their ends free them.
    pub fn depth(&self) -> Option<u64> {
        let quota = self.quota()?;
        // Units that waiting requests were promised, and a settlement's floor of one burst.
        let periods = self.max_wait().0 / quota.period.0.max(1) + 2;
        let promised = quota.amount.saturating_mul(periods);
        let bursts = quota.burst.saturating_mul(2);
        let depth = [promised, bursts, self.debt(), self.settled()]
            .into_iter()
            .fold(0, u64::saturating_add);
        Some(depth.min(UNITS_MAX))
    }

    /// The limit's rate; a concurrency limit has none.
    pub fn quota(&self) -> Option<&Quota> {
        match self {
            Self::TokenBucket(bucket) => Some(bucket.quota()),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => Some(bucket.quota()),
            Self::SlidingWindow(window) => Some(window.quota()),
            Self::SlidingLog(log) => Some(log.quota()),
            Self::InFlight(_) => None,
        }
    }

    /// The greatest cost that can ever be drawn. A greater constant cost is a configuration error;
    /// a greater cost computed from a request is refused without a retry time.
    pub fn greatest_cost(&self) -> u64 {
        match self {
            Self::InFlight(limit) => limit.most(),
            _ => self.burst().saturating_add(self.debt()),
        }
    }

    /// Whether `cost` can be drawn at `now` from the bucket in `state` (`None`: a full bucket).
    /// Draws nothing. A state of another algorithm counts as `None`.
    pub fn judge(&self, state: Option<&State>, cost: u64, now: Timestamp) -> Judged<Next> {
        fn lift<S>(judged: Judged<S>, next: fn(S) -> Next) -> Judged<Next> {
            judged.map(|granted| Granted {
                wait: granted.wait,
                next: next(granted.next),
            })
        }
        match self {
            Self::TokenBucket(bucket) => {
                lift(bucket.judge(State::level(state), cost, now), Next::Level)
            }
            Self::Interval(bucket) | Self::FixedWindow(bucket) => {
                lift(bucket.judge(State::steps(state), cost, now), Next::Steps)
            }
            Self::SlidingWindow(window) => {
                lift(window.judge(State::pair(state), cost, now), Next::Pair)
            }
            Self::SlidingLog(log) => lift(log.judge(State::log(state), cost, now), Next::Entry),
            Self::InFlight(limit) => lift(limit.judge(State::held(state), cost), Next::Held),
        }
    }

    /// Whether its units belong to a window that ends: a later refund would land in another one.
    pub fn is_windowed(&self) -> bool {
        !matches!(self, Self::TokenBucket(_) | Self::InFlight(_))
    }

    /// The refund of units that a draw took. Units come back only to the window that they were taken
    /// from, which ends at `window_end`; zero: it is not known.
    pub fn refund(&self, units: u64, window_end: Timestamp) -> Change {
        if self.is_windowed() && window_end != Timestamp::default() {
            Change::RefundWithin { units, window_end }
        } else {
            Change::Refund { units }
        }
    }

    /// Writes a grant into `state`.
    pub fn apply(&self, state: &mut Option<State>, next: Next) {
        *state = Some(match next {
            Next::Level(level) => State::Level(level),
            Next::Steps(steps) => State::Steps(steps),
            Next::Pair(pair) => State::Pair(pair),
            Next::Held(held) => State::Held(held),
            Next::Entry(entry) => {
                let mut log = Log::taken(state);
                if let Self::SlidingLog(algorithm) = self {
                    algorithm.take(&mut log, entry);
                }
                State::Log(log)
            }
        });
    }

    /// The bucket's numbers at `now`.
    pub fn report(&self, state: Option<&State>, now: Timestamp) -> Report {
        match self {
            Self::TokenBucket(bucket) => bucket.report(State::level(state), now),
            Self::Interval(bucket) => bucket.report(State::steps(state), now, false),
            Self::FixedWindow(bucket) => bucket.report(State::steps(state), now, true),
            Self::SlidingWindow(window) => window.report(State::pair(state), now),
            Self::SlidingLog(log) => log.report(State::log(state), now),
            Self::InFlight(limit) => limit.report(State::held(state)),
        }
    }

    pub fn settle(&self, state: &mut Option<State>, change: Change, now: Timestamp) {
        *state = match self {
            Self::TokenBucket(bucket) => bucket
                .settle(State::level(state.as_ref()), change, now)
                .map(State::Level),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => bucket
                .settle(State::steps(state.as_ref()), change, now)
                .map(State::Steps),
            Self::SlidingWindow(window) => window
                .settle(State::pair(state.as_ref()), change, now)
                .map(State::Pair),
            Self::InFlight(limit) => limit
                .settle(State::held(state.as_ref()), change)
                .map(State::Held),
            Self::SlidingLog(algorithm) => {
                let mut log = Log::taken(state);
                algorithm.settle(&mut log, change, now);
                (!log.is_empty()).then_some(State::Log(log))
            }
        };
    }

    /// The moment from which the bucket equals no bucket, if nothing else happens; `None` for units
    /// in flight, which do not expire.
    pub fn expiry(&self, state: &State) -> Option<Timestamp> {
        match (self, state) {
            (Self::TokenBucket(bucket), State::Level(level)) => Some(bucket.expiry(*level)),
            (Self::Interval(bucket) | Self::FixedWindow(bucket), State::Steps(steps)) => {
                Some(bucket.expiry(*steps))
            }
            (Self::SlidingWindow(window), State::Pair(pair)) => Some(window.expiry(*pair)),
            (Self::SlidingLog(algorithm), State::Log(log)) => Some(algorithm.expiry(log)),
            (Self::InFlight(_), State::Held(held)) => (held.units == 0).then(Timestamp::default),
            // A state of another algorithm already counts as none.
            _ => Some(Timestamp::default()),
        }
    }

    /// Whether its units are places, which requests hold until they end.
    pub const fn holds_places(&self) -> bool {
        matches!(self, Self::InFlight(_))
    }
}

impl Algorithm {
    /// The most units at once; a concurrency limit has none.
    pub fn burst(&self) -> u64 {
        self.quota().map_or(0, |quota| quota.burst)
    }

    /// The time in which an empty bucket fills, or a window passes; a concurrency limit has none.
    pub fn fill_time(&self) -> Option<Micros> {
        let quota = self.quota()?;
        Some(match self {
            Self::TokenBucket(_) => quota.time_for(quota.burst),
            _ => quota.period,
        })
    }

    /// Units that a bucket may go below zero at admission.
    pub fn debt(&self) -> u64 {
        match self {
            Self::TokenBucket(bucket) => bucket.debt(),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => bucket.debt(),
            Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::InFlight(_) => 0,
        }
    }

    /// The boundaries at which its windows begin.
    pub fn align(&self) -> &Align {
        match self {
            Self::Interval(bucket) | Self::FixedWindow(bucket) => bucket.align(),
            _ => &Align::FirstHit,
        }
    }

    /// What it was made from, apart from what responses may cost; `None`: a concurrency limit.
    pub(super) fn terms(&self, shared: bool) -> Option<Terms> {
        let quota = self.quota()?;
        let bursts = matches!(self.kind(), Kind::TokenBucket | Kind::Interval);
        Some(Terms {
            burst: bursts.then_some(quota.burst),
            align: self.align().clone(),
            debt: self.debt(),
            max_wait: self.max_wait(),
            shared,
            ..Terms::new(self.kind(), quota.amount, quota.period)
        })
    }

    /// The longest a request may wait.
    pub fn max_wait(&self) -> Micros {
        match self {
            Self::TokenBucket(bucket) => bucket.max_wait(),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => bucket.max_wait(),
            Self::SlidingWindow(window) => window.max_wait(),
            Self::SlidingLog(log) => log.max_wait(),
            Self::InFlight(_) => Micros::ZERO,
        }
    }
}
