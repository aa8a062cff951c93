//! What a run has seen: every grant, and what was said to callers that wait.

use std::collections::BTreeMap;
use std::hash::Hasher;

use tollgate_limit::lease::PARTS;
use tollgate_limit::{Algorithm, Limit, Micros};

use crate::fleet::ANSWER_WITHIN;
use crate::judge::{Grant, Numbers, Reference};
use crate::scene::{MILLISECOND, SECOND, Scene, Story, Time};

/// A bucket: the index of its limit, and its key.
pub type Bucket = (usize, usize);

/// One request of a caller.
#[derive(Clone, Debug)]
pub struct Request {
    pub buckets: Vec<Bucket>,
    pub cost: u64,
    /// Which one it is, for the record.
    pub number: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    Granted,
    /// Granted by the gateway's share, without the store.
    Shared,
    Refused(Option<Micros>),
    Unavailable,
    /// Its client left.
    Left,
}

/// When a request was asked and decided, by the clock of the store with every step forward.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub decided: Decided,
    pub asked: Time,
    pub now: Time,
    /// The process of a gateway.
    pub gateway: u64,
    /// Whether it is one of the decisions that the sums are of.
    pub counts: bool,
}

/// The sums of a run, or of many.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    pub decisions: u64,
    pub granted: u64,
    /// What one exact bucket in one place would have granted.
    pub exact: u64,
    pub shared: u64,
    pub refused: u64,
    pub unavailable: u64,
    /// Refusals although the bucket had the units all the time.
    pub refused_wrongly: u64,
    /// Callers alone that waited as long as they should, and those of them that were admitted.
    pub waited: u64,
    pub kept: u64,
    pub messages: u64,
}

impl Sums {
    pub fn add(&mut self, other: &Self) {
        self.decisions += other.decisions;
        self.granted += other.granted;
        self.exact += other.exact;
        self.shared += other.shared;
        self.refused += other.refused;
        self.unavailable += other.unavailable;
        self.refused_wrongly += other.refused_wrongly;
        self.waited += other.waited;
        self.kept += other.kept;
        self.messages += other.messages;
    }
}

struct Key {
    numbers: Numbers,
    reference: Reference,
    /// An exact bucket in one place.
    exact: Reference,
    granted: Vec<Grant>,
    all: Vec<Grant>,
    /// Units of requests that were not answered: what of them the store charges comes back.
    may_return: i64,
}

pub struct Record {
    pub sums: Sums,
    pub violations: Vec<String>,
    keys: BTreeMap<Bucket, Key>,
    /// The grants of the shares of each gateway, and their numbers.
    shares: BTreeMap<(u64, Bucket), (Numbers, Vec<Grant>)>,
    hash: std::hash::DefaultHasher,
    /// The greatest needed level, of a thousand of the bucket's.
    pub worst: i64,
    /// Units that are missing in the end.
    missing: i64,
    trace: bool,
}

impl Record {
    pub fn new(trace: bool) -> Self {
        Self {
            sums: Sums::default(),
            violations: Vec::new(),
            keys: BTreeMap::new(),
            shares: BTreeMap::new(),
            hash: std::hash::DefaultHasher::new(),
            worst: 0,
            missing: 0,
            trace,
        }
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        if self.trace {
            println!("{}", words());
        }
    }

    fn key(&mut self, bucket: Bucket, scene: &Scene) -> &mut Key {
        self.keys.entry(bucket).or_insert_with(|| {
            let numbers = Numbers::of(&scene.limits[bucket.0]);
            let reference = Reference::new(numbers);
            Key {
                numbers,
                exact: reference.clone(),
                reference,
                granted: Vec::new(),
                all: Vec::new(),
                may_return: 0,
            }
        })
    }

    pub fn asked(&mut self, request: &Request, now: Time, counts: bool, scene: &Scene) {
        let mut is_exact = true;
        for bucket in &request.buckets {
            let key = self.key(*bucket, scene);
            key.reference.ask(request.cost);
            is_exact &= key.exact.could_pay(request.cost, now, now);
        }
        for bucket in &request.buckets {
            let exact = &mut self.key(*bucket, scene).exact;
            exact.ask(request.cost);
            exact.close(request.cost, is_exact, now);
        }
        self.sums.exact += u64::from(counts && is_exact);
    }

    pub fn decided(&mut self, request: &Request, answer: Answer, scene: &Scene) {
        let Answer {
            decided,
            asked,
            now,
            gateway,
            counts,
        } = answer;
        self.say(|| format!("{now:>9} gateway {gateway} {request:?} asked {asked} {decided:?}"));
        self.hash.write_u64(now);
        self.hash.write_u64(request.number);
        self.hash.write(format!("{decided:?}").as_bytes());
        let (cost, is_granted) = (
            request.cost,
            matches!(decided, Decided::Granted | Decided::Shared),
        );
        if let Decided::Refused(Some(wait)) = decided
            && scene.story == Story::Calm
            && wait.0 > longest_wait(request, scene)
        {
            let words = format!("{request:?} is to wait {} us", wait.0);
            self.violations.push(words);
        }
        // (Timers tick in milliseconds, and a lane without a connection looks at its queue every 5 ms.)
        if scene.answers_in_time() && now - asked > ANSWER_WITHIN.0 + 10 * MILLISECOND {
            let words = format!("{request:?} was decided after {} us", now - asked);
            self.violations.push(words);
        }
        let mut could_pay = true;
        for bucket in &request.buckets {
            let key = self.key(*bucket, scene);
            if matches!(decided, Decided::Left | Decided::Unavailable) {
                key.may_return += cost as i64 * key.numbers.p;
            }
            if decided == Decided::Left {
                // Whether it is charged is not known: it stays open.
                continue;
            }
            key.reference.close(cost, is_granted, now);
            could_pay &= key.reference.could_pay(cost, asked, now);
            let grant = Grant {
                asked,
                answered: now,
                cost,
            };
            if is_granted {
                key.all.push(grant);
            }
            if decided == Decided::Granted {
                key.granted.push(grant);
            }
        }
        if !counts {
            return;
        }
        let sums = &mut self.sums;
        sums.decisions += u64::from(decided != Decided::Left);
        match decided {
            Decided::Granted => sums.granted += 1,
            Decided::Shared => sums.shared += 1,
            Decided::Refused(_) => {
                sums.refused += 1;
                sums.refused_wrongly += u64::from(could_pay);
            }
            Decided::Unavailable => sums.unavailable += 1,
            Decided::Left => {}
        }
    }

    /// A grant of the share of a gateway in a bucket, at `now` by its own clock.
    pub fn granted_by_share(
        &mut self,
        gateway: u64,
        bucket: Bucket,
        share: &Algorithm,
        now: Time,
        cost: u64,
    ) {
        let new = || (Numbers::of_algorithm(share), Vec::new());
        let (_, grants) = self.shares.entry((gateway, bucket)).or_insert_with(new);
        grants.push(Grant {
            asked: now,
            answered: now,
            cost,
        });
    }

    /// A caller alone has waited as long as it should; `earlier`: less than that.
    pub fn waited(&mut self, words: impl FnOnce() -> String, granted: bool, earlier: bool) {
        if !earlier {
            self.sums.waited += 1;
            self.sums.kept += u64::from(granted);
        }
        if granted == earlier {
            self.violations.push(words());
        }
    }

    /// The store was looked at, by a call that left at `asked`.
    pub fn looked(&mut self, bucket: Bucket, left: Option<i64>, asked: Time, limit: &Limit) {
        let Some(key) = self.keys.get(&bucket) else {
            return;
        };
        let exact = key.reference.level_at(asked).div_euclid(key.numbers.p);
        // Beside leases a bucket refills only up to the room that they leave.
        let parts = if limit.lease { PARTS as i64 } else { i64::MAX };
        let not_refilled = key.numbers.full / key.numbers.p / parts;
        match left {
            Some(left) => self.missing += (exact - left - not_refilled).max(0),
            None => self
                .violations
                .push(format!("{bucket:?} cannot be looked at")),
        }
    }

    /// No message was lost: what was charged for no grant has come back, but for what is counted as lost.
    pub fn check_missing(&mut self, known_lost: u64) {
        let missing = self.missing;
        if missing > known_lost as i64 {
            self.violations.push(format!(
                "{missing} units are missing, {known_lost} are counted as lost"
            ));
        }
    }

    pub fn buckets(&self) -> Vec<Bucket> {
        self.keys.keys().copied().collect()
    }

    /// Judges all grants; returns what identifies the run.
    pub fn judge(&mut self, scene: &Scene) -> u64 {
        for (bucket, key) in &mut self.keys {
            let Numbers { full, n, p } = key.numbers;
            let needed = key.numbers.needed(&mut key.granted);
            self.worst = self.worst.max(needed * 1000 / full);
            // What the book says: units that come back late count on top, and where the clock of the store is set
            // forward, so do those in leases.
            let returned = if scene.is_late() { key.may_return } else { 0 };
            let is_leased = scene.limits[bucket.0].lease;
            let leased = if is_leased && scene.story == Story::Steps {
                full / 10
            } else {
                0
            };
            if needed > full + returned + leased {
                let (needed, burst) = (key.numbers.units(needed), key.numbers.units(full));
                self.violations.push(format!(
                    "{bucket:?}: grants of a bucket of {needed:.3}, its burst is {burst}"
                ));
            }
            if scene.story == Story::Outage {
                // One burst more, of each gateway one unit at least, and for a second its share beside the store's grants.
                let most = 2 * full + 1_000_000 * n + scene.gateways as i64 * p;
                let needed = key.numbers.needed(&mut key.all);
                if needed > most {
                    let (needed, most) = (key.numbers.units(needed), key.numbers.units(most));
                    self.violations.push(format!("{bucket:?}: grants of a bucket of {needed:.3}, in an outage it may be {most}"));
                }
            }
        }
        for ((gateway, bucket), (numbers, grants)) in &mut self.shares {
            let needed = numbers.needed(grants);
            if needed > numbers.full {
                let (needed, burst) = (numbers.units(needed), numbers.units(numbers.full));
                self.violations.push(format!("the share of gateway {gateway} in {bucket:?}: grants of a bucket of {needed:.3}, its burst is {burst}"));
            }
        }
        self.hash.finish()
    }
}

/// The longest wait that a refusal may state: until an empty bucket can pay, and a second more for a leased one.
fn longest_wait(request: &Request, scene: &Scene) -> Time {
    let of = |bucket: &Bucket| {
        let limit = &scene.limits[bucket.0];
        let Numbers { n, p, .. } = Numbers::of(limit);
        // Until a leased bucket is asked again for a costlier request, all are refused.
        let cost = if limit.lease {
            scene.cost_most
        } else {
            request.cost
        };
        let own = (cost as i64 * p / n) as Time;
        // It counts from the moment that a message came, by a clock that drifts.
        let inexact = 2 * scene.delay.1 + own / 500 + MILLISECOND;
        own + inexact + if limit.lease { SECOND } else { 0 }
    };
    request.buckets.iter().map(of).max().unwrap_or(0)
}
