//! What each key of one limit asked for: requests, peaks, and the burst it needs at every rate.

use foldhash::fast::FixedState;
use indexmap::IndexSet;

use crate::classes::Classes;
use crate::events::{Event, Events, Order};
use crate::hull::{Need, Stream};
use crate::outcome::Window;

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFacts {
    pub(crate) need: Need,
    pub(crate) requests: u64,
    /// The most requests in any second and any minute.
    pub(crate) per_second: u64,
    pub(crate) per_minute: u64,
}

/// The requests of one limit, by key and time.
#[derive(Debug)]
pub(crate) struct ByKey<'t> {
    events: &'t Events,
    /// Costs by number; an event's `lasting` is that number, doubled, plus one where a limiter had
    /// refused the request.
    costs: IndexSet<u64, FixedState>,
    pub(crate) keys: Vec<KeyFacts>,
    /// What all keys together need when only the requests count that a limiter had admitted; `None`:
    /// it had refused none.
    pub(crate) admitted: Option<Need>,
    /// All requests that draw from the limit.
    pub(crate) requests: u64,
    /// The most units in any second, over all keys together.
    pub(crate) busiest: u64,
    /// Whether all cost the same.
    pub(crate) equal_costs: bool,
}

pub(crate) struct Requests<'t> {
    pub(crate) events: &'t mut Events,
    pub(crate) classes: &'t Classes,
    pub(crate) keys: usize,
    /// Whether a limiter had refused some of them.
    pub(crate) is_censored: bool,
}

/// Takes the requests of rule number `rule` out of the traffic: its events then carry keys and costs.
///
/// # Errors
/// When the costs of one key add up to more than can be counted.
pub(crate) fn by_key<'t>(traffic: Requests<'t>, rule: usize) -> Result<ByKey<'t>, String> {
    let Requests {
        events,
        classes,
        keys,
        is_censored,
    } = traffic;
    let mut costs: IndexSet<u64, FixedState> = IndexSet::default();
    let mut last = (u64::MAX, 0);
    events.relabel(Order::Class, |event| {
        let class = classes.get(event.class)?;
        let mut charges = class.charges(0).iter();
        let charge = charges.find(|charge| charge.rule as usize == rule)?;
        if last.0 != charge.cost {
            last = (charge.cost, costs.insert_full(charge.cost).0);
        }
        let number = u32::try_from(last.1).ok().filter(|number| *number < HALF)?;
        Some((charge.key, number << 1 | u32::from(class.was_refused())))
    });
    let mut by_key = ByKey {
        events,
        equal_costs: costs.len() < 2,
        costs,
        keys: vec![KeyFacts::default(); keys],
        admitted: is_censored.then(Need::default),
        requests: 0,
        busiest: 0,
    };
    by_key.gather()?;
    Ok(by_key)
}

/// One key's requests while they are gathered.
#[derive(Default)]
struct Gathered {
    stream: Stream,
    admitted: Stream,
    second: Window,
    minute: Window,
    units: Window,
    sum: u64,
}

impl ByKey<'_> {
    fn cost(&self, event: Event) -> u64 {
        let number = (event.lasting >> 1) as usize;
        self.costs.get_index(number).copied().unwrap_or_default()
    }

    fn gather(&mut self) -> Result<(), String> {
        let mut gathered = Gathered::default();
        let mut current = None;
        for event in self.events.sorted() {
            let key = event.class as usize;
            if current != Some(key)
                && let Some(done) = current.replace(key)
            {
                self.finish(done, &mut gathered);
            }
            let cost = self.cost(event);
            self.requests += 1;
            self.keys[key].requests += 1;
            gathered.sum = gathered.sum.saturating_add(cost);
            if gathered.sum > SUM_MAX {
                return Err(format!(
                    "the costs of one key add up to more than {SUM_MAX} units: are they units at all?"
                ));
            }
            gathered.stream.push(event.at, cost);
            if self.admitted.is_some() && event.lasting & 1 == 0 {
                gathered.admitted.push(event.at, cost);
            }
            gathered.second.add(event.at, 1, SECOND);
            gathered.minute.add(event.at, 1, 60 * SECOND);
            gathered.units.add(event.at, cost, SECOND);
        }
        if let Some(done) = current {
            self.finish(done, &mut gathered);
        }
        Ok(())
    }

    fn finish(&mut self, key: usize, gathered: &mut Gathered) {
        let facts = &mut self.keys[key];
        facts.need = gathered.stream.take().need();
        facts.per_second = std::mem::take(&mut gathered.second).most;
        facts.per_minute = std::mem::take(&mut gathered.minute).most;
        self.busiest = self.busiest.max(std::mem::take(&mut gathered.units).most);
        if let Some(admitted) = &mut self.admitted {
            admitted.join(&gathered.admitted.take().need());
        }
        gathered.sum = 0;
    }

    /// How many keys and requests a bucket of `amount` per `period` with `burst` refuses. Only keys above the line are
    /// looked at again.
    pub(crate) fn refused(&self, amount: u64, period: u64, burst: u64) -> (u64, u64) {
        let above: Vec<bool> = self
            .keys
            .iter()
            .map(|key| key.requests > 0 && key.need.burst(amount, period) > burst)
            .collect();
        let keys = above.iter().filter(|above| **above).count() as u64;
        if keys == 0 {
            return (0, 0);
        }
        let (amount, full) = (u128::from(amount), u128::from(burst) * u128::from(period));
        let (mut level, mut at, mut current, mut refused) = (full, 0, u32::MAX, 0);
        for event in self
            .events
            .sorted()
            .filter(|event| above[event.class as usize])
        {
            if event.class != current {
                (level, at, current) = (full, event.at, event.class);
            }
            level = full.min(level + u128::from(event.at - at) * amount);
            at = event.at;
            let price = u128::from(self.cost(event)) * u128::from(period);
            match level.checked_sub(price) {
                Some(left) => level = left,
                None => refused += 1,
            }
        }
        (keys, refused)
    }
}

const SECOND: u64 = 1_000_000;
/// Half of the numbers of 32 bits.
const HALF: u32 = 1 << 31;
/// The hulls add costs up as signed numbers of 64 bits.
const SUM_MAX: u64 = 1 << 62;
