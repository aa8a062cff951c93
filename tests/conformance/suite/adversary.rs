//! A caller who does what he can: he chooses between tiers, has overrides set and lifted, asks gateways with two files, waits,
//! drains, and has his own grants given back. In no span he gets more than the largest burst and the highest rate.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{Algorithm, Change, Kind, Limit, Micros, Rate, Settlement, Terms, Timestamp};
use tollgate_store::Store;

use crate::random::{self, START};
use crate::subject::{Subject, caller, claim, limit, terms};

const SECOND: u64 = 1_000_000;
/// A unit, so that every rate here yields whole parts of it in a microsecond.
const UNIT: u64 = 4 * SECOND;

fn numbers<S: Subject>(rng: &mut Rng, kind: Kind) -> Terms {
    let has_burst = matches!(kind, Kind::TokenBucket | Kind::Interval);
    let period = match kind {
        Kind::TokenBucket => random::pick(rng, &[SECOND, 2 * SECOND, 4 * SECOND]),
        _ => SECOND,
    };
    Terms {
        burst: has_burst.then(|| random::pick(rng, &[1, 2, 9, 30])),
        ..terms::<S>(kind, random::pick(rng, &[1, 2, 7, 20]), Micros(period))
    }
}

/// A file: the limit's own numbers, and those of two tiers.
fn file<S: Subject>(rng: &mut Rng, kind: Kind) -> Vec<Arc<Limit>> {
    (0..3)
        .map(|index| {
            let algorithm = Algorithm::new(&numbers::<S>(rng, kind)).expect("representable");
            Arc::new(Limit {
                index,
                tier: (index > 0).then(|| format!("tier-{index}").into()),
                refundable: true,
                ..Limit::clone(&limit::<S>(0, algorithm))
            })
        })
        .collect()
}

/// What he may have, and what he has had.
struct Bound {
    kind: Kind,
    burst: u64,
    /// Parts of a unit in a microsecond.
    rate: u64,
    /// What a bucket of the largest numbers still holds, in parts of a unit, that pays for all.
    held: u64,
    at: Timestamp,
    /// Grants, for the algorithms whose bound is one of windows.
    grants: Vec<(Timestamp, u64)>,
}

impl Bound {
    fn of(kind: Kind, all: &[Limit]) -> Self {
        let quotas = || all.iter().filter_map(|limit| limit.algorithm.quota());
        // Refilled at once at each step's end, an interval bucket is a step ahead at most.
        let ahead = match kind {
            Kind::Interval => quotas().map(|quota| quota.amount).max().unwrap_or(0),
            _ => 0,
        };
        let burst = quotas().map(|quota| quota.burst).max().unwrap_or(0);
        let rate = quotas().map(|quota| quota.amount * UNIT / quota.period.0);
        Self {
            kind,
            burst: burst + ahead,
            rate: rate.max().unwrap_or(0),
            held: (burst + ahead) * UNIT,
            at: Timestamp::from_micros(START),
            grants: Vec::new(),
        }
    }

    fn pass(&mut self, now: Timestamp) {
        let gained = now.since(self.at).0 * self.rate;
        self.held = (self.held + gained).min(self.burst * UNIT);
        self.at = now;
    }

    fn pay(&mut self, cost: u64, now: Timestamp, what: &str) {
        if matches!(self.kind, Kind::TokenBucket | Kind::Interval) {
            let left = self.held.checked_sub(cost * UNIT);
            self.held = left.unwrap_or_else(|| panic!("{cost} of {} / {UNIT}: {what}", self.held));
            return;
        }
        self.grants.push((now, cost));
        let grants = self.grants.iter();
        let within = grants.filter(|(at, _)| now.since(*at).0 < SECOND);
        let granted: u64 = within.map(|(_, cost)| cost).sum();
        // Two windows meet in one period.
        let windows = if self.kind == Kind::SlidingLog { 1 } else { 2 };
        assert!(
            granted <= windows * self.burst,
            "{granted} in a period: {what}"
        );
    }

    /// The last grant is given back, if that is of this moment: then it lies in one window with all that is now.
    fn refund(&mut self, now: Timestamp) -> Option<u64> {
        let (at, cost) = self.grants.last_mut()?;
        (*at == now).then(|| std::mem::take(cost))
    }
}

pub(crate) async fn adversary_gets_no_more_than_the_largest_numbers<S: Subject>() {
    for kind in RATES {
        for seed in 0..2 * S::RUNS {
            attack::<S>(kind, seed).await;
        }
    }
}

async fn attack<S: Subject>(kind: Kind, seed: u64) {
    let mut rng = Rng::with_seed(seed ^ 0xadef);
    let files = [(); 2].map(|()| file::<S>(&mut rng, kind));
    let mut all: Vec<Limit> = files
        .iter()
        .flatten()
        .map(|one| Limit::clone(one))
        .collect();
    for place in 0..all.len() {
        let other = numbers::<S>(&mut rng, kind);
        let rate = Some(Rate::new(other.amount, other.period));
        let overridden = all[place].with_numbers(rate, other.burst);
        all.push(overridden.expect("good numbers"));
    }
    let mut bound = Bound::of(kind, &all);
    let mut now = Timestamp::from_micros(START);
    let Some(mut subject) = S::new(&files[0], now).await else {
        return;
    };
    let (key, mut in_force) = (caller("greedy"), 0);
    let mut last: Option<(usize, u64)> = None;
    let mut history = Vec::new();
    for _ in 0..60 {
        let pause = match rng.u8(..6) {
            0..2 => 0,
            2 => rng.u64(..SECOND / 3),
            3 => rng.u64(..2 * SECOND),
            // As long as one of the numbers takes to be full, and a moment less.
            4 => full_in(&all[rng.usize(..all.len())]),
            _ => full_in(&all[rng.usize(..all.len())]).saturating_sub(1),
        };
        now = now.after(Micros(pause));
        subject.set_time(now);
        bound.pass(now);
        if rng.u8(..6) == 0 {
            in_force = 1 - in_force;
            subject.reload(&files[in_force], rng.bool());
        }
        // In a process one file is in force at a time; a store has gateways with both.
        let place = loop {
            let place = rng.usize(..all.len());
            if S::SHARED || place % 6 / 3 == in_force {
                break place;
            }
        };
        let limit = &all[place];
        if let (0, Some((by, cost))) = (rng.u8(..4), last.take()) {
            let is_level = matches!(kind, Kind::TokenBucket | Kind::Interval);
            let units = if is_level {
                Some(cost)
            } else {
                bound.refund(now)
            };
            if let Some(units) = units.filter(|units| *units > 0) {
                if is_level {
                    bound.held = (bound.held + units * UNIT).min(bound.burst * UNIT);
                }
                let back = Settlement::new(&all[by], &key, Change::Refund { units });
                subject.store().settle(&[back]);
                subject.settled().await;
                history.push(format!("{now:?}: {units} given back to {by}"));
            }
        }
        let cost = random::pick(&mut rng, &[1, 1, 2, 5]).min(limit.algorithm.burst());
        let most = if rng.bool() { 100 } else { 1 };
        let mut granted = 0;
        while granted < most {
            let claims = [claim(limit, &key, cost)];
            let drawn = subject.store().draw(&claims).await.expect("it answers");
            if !drawn.granted {
                break;
            }
            granted += 1;
            last = Some((place, cost));
            let what = format!("{kind:?}, seed {seed}, {place} of {all:#?} after {history:#?}");
            bound.pay(cost, now, &what);
        }
        history.push(format!("{now:?}: {granted} times {cost} by {place}"));
    }
}

fn full_in(limit: &Limit) -> u64 {
    let quota = limit.algorithm.quota();
    quota.map_or(0, |quota| quota.time_for(quota.burst).0)
}
