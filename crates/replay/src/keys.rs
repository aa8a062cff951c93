//! What each key of one limit asked for: requests, peaks, and the burst it needs at every rate.

use crate::events::{ByClass, Events, Merged};
use crate::hull::{Need, Stream};
use crate::outcome::Window;
use crate::replay::Traffic;

/// One key.
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
    pub(crate) keys: Vec<KeyFacts>,
    /// All requests that draw from the limit.
    pub(crate) requests: u64,
    /// The most units in any second, over all keys together.
    pub(crate) busiest: u64,
    /// Whether all cost the same.
    pub(crate) equal_costs: bool,
}

/// Takes the requests of rule number `rule` out of the traffic: its events then carry keys and costs.
pub(crate) fn by_key<'t>(traffic: &'t mut Traffic<'_>, rule: usize) -> ByKey<'t> {
    let classes = &traffic.classes;
    let keys = traffic.subjects[0].keys[rule].len();
    let charge = |class: u32| {
        let class = classes.get_index(class as usize)?;
        let mut charges = class.sides[0].charges.iter();
        charges.find(|charge| charge.rule as usize == rule)
    };
    traffic.events.relabel(|event| {
        let charge = charge(event.class)?;
        Some((charge.key, u32::try_from(charge.cost).unwrap_or(u32::MAX)))
    });
    traffic.events.sort(ByClass);
    let mut by_key = ByKey {
        events: &traffic.events,
        keys: vec![KeyFacts::default(); keys],
        requests: 0,
        busiest: 0,
        equal_costs: true,
    };
    by_key.gather();
    by_key
}

impl ByKey<'_> {
    fn gather(&mut self) {
        let mut stream = Stream::default();
        let (mut second, mut minute, mut units) =
            (Window::default(), Window::default(), Window::default());
        let mut first_cost = None;
        let mut current = None;
        for event in self.events.merged(ByClass) {
            let key = event.class as usize;
            if current != Some(key) {
                if let Some(done) = current.replace(key) {
                    self.keys[done].finish(&mut stream, &mut second, &mut minute);
                }
                self.busiest = self.busiest.max(std::mem::take(&mut units).most);
            }
            let cost = u64::from(event.lasting);
            self.equal_costs &= *first_cost.get_or_insert(cost) == cost;
            self.requests += 1;
            self.keys[key].requests += 1;
            stream.push(event.at, cost);
            second.add(event.at, 1, SECOND);
            minute.add(event.at, 1, 60 * SECOND);
            units.add(event.at, cost, SECOND);
        }
        if let Some(done) = current {
            self.keys[done].finish(&mut stream, &mut second, &mut minute);
            self.busiest = self.busiest.max(units.most);
        }
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
        for event in self.merged().filter(|event| above[event.class as usize]) {
            if event.class != current {
                (level, at, current) = (full, event.at, event.class);
            }
            level = full.min(level + u128::from(event.at - at) * amount);
            at = event.at;
            let price = u128::from(event.lasting) * u128::from(period);
            match level.checked_sub(price) {
                Some(left) => level = left,
                None => refused += 1,
            }
        }
        (keys, refused)
    }

    fn merged(&self) -> Merged<'_, ByClass> {
        self.events.merged(ByClass)
    }
}

impl KeyFacts {
    fn finish(&mut self, stream: &mut Stream, second: &mut Window, minute: &mut Window) {
        self.need = stream.take().need();
        self.per_second = std::mem::take(second).most;
        self.per_minute = std::mem::take(minute).most;
    }
}

const SECOND: u64 = 1_000_000;
