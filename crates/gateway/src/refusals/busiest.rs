//! Counts events by key in bounded memory: the Space-Saving sketch (Metwally, Agrawal, El Abbadi:
//! "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005).
//!
//! A key that finds no room takes the place of the key with the smallest count, and inherits that
//! count as its error. So a count is never too small and at most its error too large, and every key
//! with more events than the smallest count is present.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use tollgate_limit::{KeyBytes, Limit, Micros, Timestamp};

/// One key of one limit, and its events.
#[derive(Clone, Debug)]
pub struct Busy {
    /// The limit, with the numbers of the last event.
    pub limit: Arc<Limit>,
    pub key: KeyBytes,
    /// The number of events, never too small.
    pub count: u64,
    /// By how much the number may be too large.
    pub error: u64,
    /// The first event since there was none for ten seconds.
    pub since: Timestamp,
    pub last: Timestamp,
    /// The moment from which the key is admitted again, as of the last event; `None`: it is not known.
    pub until: Option<Timestamp>,
    pub cost: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'e> {
    pub(crate) limit: &'e Arc<Limit>,
    pub(crate) key: &'e [u8],
    pub(crate) at: Timestamp,
    pub(crate) until: Option<Timestamp>,
    pub(crate) cost: u64,
}

impl Event<'_> {
    fn is_of(&self, busy: &Busy) -> bool {
        busy.key[..] == *self.key && busy.limit.name == self.limit.name
    }
}

/// The keys with the most events of the last one or two [`PERIOD`]s.
#[derive(Clone, Debug, Default)]
pub(super) struct Busiest {
    current: Sketch,
    /// Shared with readers, because it does not change any more.
    previous: Arc<Sketch>,
}

#[derive(Clone, Debug, Default)]
struct Sketch {
    begun: Timestamp,
    busy: Vec<Busy>,
    /// The counts once more, so that the smallest is found in few cache lines.
    counts: Vec<u64>,
    /// The smallest count when it was last looked for, and the first place that may have it. Counts
    /// only grow, so a flood of new keys looks at each place once for each count, not at all places
    /// for each key.
    least: (u64, usize),
    places: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl Busiest {
    /// Counts an event; at most `room` keys are kept for each period.
    pub(super) fn count(&mut self, event: Event<'_>, room: usize) {
        if event.at.since(self.current.begun) >= PERIOD {
            let next = Sketch {
                begun: event.at,
                ..Sketch::default()
            };
            self.previous = Arc::new(std::mem::replace(&mut self.current, next));
        }
        self.current.count(event, room);
    }

    /// Passes every key that is not too old at `now` to `visit`. Returns the beginning of the
    /// counted time, and the most events that a key which is not there can have had.
    pub(super) fn visit(
        &self,
        now: Timestamp,
        room: usize,
        visit: &mut impl FnMut(&Busy),
    ) -> (Timestamp, u64) {
        let mut from = now;
        let mut unseen = 0;
        for sketch in [&*self.previous, &self.current] {
            if sketch.busy.is_empty() || now.since(sketch.begun) >= Micros(2 * PERIOD.0) {
                continue;
            }
            from = from.min(sketch.begun);
            if sketch.busy.len() >= room {
                unseen += sketch.counts.iter().copied().min().unwrap_or(0);
            }
            sketch.busy.iter().for_each(&mut *visit);
        }
        (from, unseen)
    }
}

impl Sketch {
    fn count(&mut self, event: Event<'_>, room: usize) {
        let hash = self.hash(event.limit, event.key);
        let known = self
            .places
            .find(hash, |place| event.is_of(&self.busy[*place]));
        if let Some(&place) = known {
            let busy = &mut self.busy[place];
            if event.at.since(busy.last) >= PAUSE {
                busy.since = event.at;
            }
            if !Arc::ptr_eq(&busy.limit, event.limit) {
                busy.limit = Arc::clone(event.limit);
            }
            busy.count += 1;
            busy.last = event.at;
            busy.until = event.until;
            busy.cost = event.cost;
            self.counts[place] += 1;
            return;
        }
        let fresh = |error| Busy {
            limit: Arc::clone(event.limit),
            key: KeyBytes::from_slice(event.key),
            count: error + 1,
            error,
            since: event.at,
            last: event.at,
            until: event.until,
            cost: event.cost,
        };
        let place = if self.busy.len() < room {
            self.busy.push(fresh(0));
            self.counts.push(1);
            self.busy.len() - 1
        } else {
            let (place, error) = self.smallest();
            let gone = &self.busy[place];
            let old = self.hash(&gone.limit, &gone.key);
            if let Ok(entry) = self.places.find_entry(old, |known| *known == place) {
                entry.remove();
            }
            self.busy[place] = fresh(error);
            self.counts[place] = error + 1;
            place
        };
        let Self {
            places,
            busy,
            hasher,
            ..
        } = self;
        let hash_of = |place: &usize| hash_with(hasher, &busy[*place].limit, &busy[*place].key);
        places.insert_unique(hash, place, hash_of);
    }

    fn smallest(&mut self) -> (usize, u64) {
        let (least, first) = self.least;
        let from = |first: usize, least: u64| {
            let mut rest = self.counts.iter().skip(first);
            Some(first + rest.position(|count| *count == least)?)
        };
        let (least, place) = match from(first, least) {
            Some(place) => (least, place),
            None => {
                let least = self.counts.iter().copied().min().unwrap_or(0);
                (least, from(0, least).unwrap_or(0))
            }
        };
        self.least = (least, place);
        (place, least)
    }

    fn hash(&self, limit: &Limit, key: &[u8]) -> u64 {
        hash_with(&self.hasher, limit, key)
    }
}

fn hash_with(hasher: &DefaultHashBuilder, limit: &Limit, key: &[u8]) -> u64 {
    hasher.hash_one((&*limit.name, key))
}

/// After this long without events, the next one begins a new time of events.
pub const PAUSE: Micros = Micros::from_secs(10);

pub const PERIOD: Micros = Micros::from_secs(600);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use tollgate_limit::fixtures;

    const ROOM: usize = 32;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
    }

    fn found(busiest: &Busiest, now: Timestamp) -> (HashMap<u32, Busy>, u64) {
        let mut found = HashMap::new();
        let (_, unseen) = busiest.visit(now, ROOM, &mut |busy| {
            let key = u32::from_be_bytes(busy.key[..].try_into().expect("four bytes"));
            found.insert(key, busy.clone());
        });
        (found, unseen)
    }

    #[test]
    fn busiest_counts_are_never_too_small_and_carry_their_error() {
        let limit = Arc::new(fixtures::per_minute("search", 10, 10));
        let mut busiest = Busiest::default();
        let mut truth: HashMap<u32, u64> = HashMap::new();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            // Few keys with many events among a thousand with few.
            let key = if random.bool() {
                random.u32(0..5)
            } else {
                random.u32(5..1_000)
            };
            *truth.entry(key).or_default() += 1;
            let event = Event {
                limit: &limit,
                key: &key.to_be_bytes(),
                at: at(1),
                until: None,
                cost: 1,
            };
            busiest.count(event, ROOM);
        }
        let (found, unseen) = found(&busiest, at(2));
        assert_eq!(found.len(), ROOM);
        assert!(unseen <= 20_000 / ROOM as u64);
        for (key, count) in &truth {
            match found.get(key) {
                Some(busy) => {
                    assert!(busy.count >= *count, "{key}");
                    assert!(busy.count - busy.error <= *count, "{key}");
                }
                None => assert!(*count <= unseen, "{key}: {count}"),
            }
        }
        assert!((0..5).all(|key| found.contains_key(&key)));
    }

    #[test]
    fn busiest_keys_have_the_time_of_their_events_and_go_after_two_periods() {
        let limit = Arc::new(fixtures::per_minute("search", 10, 10));
        let mut busiest = Busiest::default();
        let mut count = |seconds: u64| {
            let event = Event {
                limit: &limit,
                key: &1_u32.to_be_bytes(),
                at: at(seconds),
                until: Some(at(seconds + 3)),
                cost: 1,
            };
            busiest.count(event, ROOM);
        };
        count(0);
        count(5);
        count(20);
        count(21);
        let (keys, _) = found(&busiest, at(22));
        let busy = &keys[&1];
        assert_eq!((busy.count, busy.error), (4, 0));
        assert_eq!((busy.since, busy.last), (at(20), at(21)), "a pause since 5");
        assert_eq!(busy.until, Some(at(24)));
        assert!(found(&busiest, at(1_000)).0.contains_key(&1));
        assert!(found(&busiest, at(1_300)).0.is_empty());
    }
}
