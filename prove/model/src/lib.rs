//! A model of three gateways and one store that is explored on every path (stateright): calls whose replies are lost, late or doubled,
//! gateways that crash, a store that fails over to a replica which is behind. Each step of the store is the crate's own [`Leased`].
//!
//! The property: an exact bucket that pays for every grant at its moment, and gets back every unit that is given back, never falls below
//! zero. Then every span of T grants at most `burst + rate x T`. A grant of the store counts from its decision, a grant of a
//! lease when the gateway makes it.
//!
//! Bounded: five moments and one doubled message, in two scenes, because all together are more paths than a test can walk. A message
//! that is never delivered is lost. Corrections under way are lost in a fail-over, and what was granted before it is not given back after it:
//! that would fill the bucket while leases of before are used that the store has forgotten (the book says by how much). A return is sent
//! once, and never doubled.

use std::hash::{Hash, Hasher};

use stateright::{Model, Property};
use tollgate_limit::bucket::Level;
use tollgate_limit::lease::{Leased, Request, Return, Terms};
use tollgate_limit::{Algorithm, Change, Kind, Micros, Timestamp, TokenBucket};

const BOUND: &str = "no span grants more than burst and rate";
const BEGIN: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);
const GATEWAYS: usize = 3;
/// The moments at which something happens, in microseconds. The life of a lease ends between the second and the third, and the store
/// stops to count it before the fourth.
const MOMENTS: [u64; 5] = [0, 50_000, 500_000, 750_000, 800_000];
const BURST: u64 = 20;
/// Units of a request that asks the store.
const COST: u64 = 10;

/// What goes wrong besides messages that are lost, late or doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Two leases; a gateway crashes.
    Leases,
    /// One lease; a grant is given back; the store fails over, once, to a replica that has copied it once.
    Corrections,
}

/// A guard that the model runs without: each must be found missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    Nothing,
    Count,
    /// A promoted server counts every bucket as empty.
    Mark,
    /// A correction that comes twice is made once.
    Receipt,
    /// A lease ends for its gateway before the store stops to count it, from when it was asked for.
    Deadline,
    /// A reply that comes twice is taken once.
    Awaiting,
    /// A return is sent once and comes once.
    Once,
}

pub struct Fleet {
    scene: Scene,
    without: Without,
    bucket: TokenBucket,
    terms: Terms,
}

impl Fleet {
    /// A fleet on one bucket of 20 units, two more each 50 ms.
    pub fn new(scene: Scene, without: Without) -> Self {
        let mut numbers = tollgate_limit::Terms::new(Kind::TokenBucket, 2, Micros(50_000));
        numbers.burst = Some(BURST);
        let algorithm = Algorithm::new(&numbers).expect("representable");
        let terms = Terms::of(&algorithm).expect("units can be leased");
        let Algorithm::TokenBucket(bucket) = algorithm else { unreachable!("the kind asked for") };
        Self { scene, without, bucket, terms }
    }

    fn has(&self, guard: Without) -> bool {
        self.without != guard
    }
}

/// What the store keeps: the bucket, and the corrections that it has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    leased: Leased,
    receipts: Vec<u64>,
}

impl Hash for Store {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Level { level, at } = self.leased.level;
        (level, at, &self.receipts).hash(state);
        for slot in &self.leased.ledger {
            (slot.until, slot.units).hash(state);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gateway {
    awaiting: Option<u64>,
    lease: Option<Held>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    units: u64,
    until: Timestamp,
    deadline: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    Ask { gateway: usize, id: u64, sent: Timestamp },
    Lease { gateway: usize, id: u64, units: u64, until: Timestamp, sent: Timestamp },
    Return { units: u64, until: Timestamp },
    Refund { id: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    moment: usize,
    now: Timestamp,
    store: Store,
    replica: Store,
    gateways: Vec<Gateway>,
    network: Vec<Message>,
    /// The bucket that pays for every grant: its level, and the moment of that.
    paid: i64,
    paid_at: Timestamp,
    next_id: u64,
    asked: u64,
    /// Whether a grant of the store may turn out to be unused; none twice.
    refundable: bool,
    refunded: bool,
    doubled: bool,
    crashed: bool,
    replicated: bool,
    failed_over: bool,
}

impl State {
    fn paid(&self) -> Option<Level> {
        Some(Level { level: self.paid, at: self.paid_at })
    }

    fn set_paid(&mut self, level: i64) {
        (self.paid, self.paid_at) = (level, self.now);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Draw,
    Refund,
    Ask(usize),
    /// A gateway grants all that it holds.
    Use(usize),
    GiveBack(usize),
    Crash(usize),
    Deliver(Message),
    /// Delivered, and still under way.
    Double(Message),
    Replicate,
    FailOver,
}

impl Fleet {
    fn grant(&self, state: &mut State, units: u64) {
        state.set_paid(self.bucket.level(state.paid(), state.now) - self.bucket.scaled(units));
    }

    fn leased(&self, state: &mut State, gateway: usize, id: u64, sent: Timestamp) {
        let now = state.now;
        state.store.leased.refill(&self.bucket, now);
        let before = state.store.leased.level;
        let request = Request { units: 2, needed: 0 };
        let units = state.store.leased.lease(&self.bucket, &self.terms, request, now);
        let until = self.terms.until(before.at);
        if !self.has(Without::Count) {
            state.store.leased.ledger.clear();
        }
        debug_assert!(state.store.leased.level.level <= before.level, "a lease takes what it gives");
        state.network.push(Message::Lease { gateway, id, units, until, sent });
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let now = state.now;
        match message {
            Message::Ask { gateway, id, sent } => self.leased(state, gateway, id, sent),
            Message::Lease { gateway, id, units, until, sent } => {
                let receiver = &mut state.gateways[gateway];
                if self.has(Without::Awaiting) && receiver.awaiting != Some(id) {
                    return;
                }
                receiver.awaiting = None;
                let from = if self.has(Without::Deadline) { sent } else { now };
                receiver.lease = Some(Held { units, until, deadline: self.terms.deadline(from) });
            }
            Message::Return { units, until } => {
                state.store.leased.give_back(&self.bucket, Return { until, units, left: units }, now);
            }
            Message::Refund { id } => {
                let is_new = !state.store.receipts.contains(&id);
                if is_new || !self.has(Without::Receipt) {
                    state.store.leased.settle(&self.bucket, Change::Refund { units: COST }, now);
                }
                if is_new {
                    state.store.receipts.push(id);
                    let back = self.bucket.settle(state.paid(), Change::Refund { units: COST }, now);
                    state.set_paid(back.map_or(self.bucket.full(), |level| level.level));
                }
            }
        }
    }
}

impl Model for Fleet {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let now = BEGIN;
        let store = Store { leased: Leased::full(&self.bucket, now), receipts: Vec::new() };
        vec![State {
            moment: 0,
            now,
            paid: self.bucket.full(),
            paid_at: now,
            replica: store.clone(),
            store,
            gateways: vec![Gateway::default(); GATEWAYS],
            network: Vec::new(),
            next_id: 0,
            asked: 0,
            refundable: false,
            refunded: false,
            replicated: false,
            doubled: false,
            crashed: false,
            failed_over: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Tick, Action::Draw]);
        if self.scene == Scene::Corrections {
            actions.extend([Action::Refund, Action::Replicate, Action::FailOver]);
        }
        for gateway in 0..GATEWAYS {
            actions.extend([Action::Ask(gateway), Action::Use(gateway), Action::GiveBack(gateway)]);
            actions.extend((self.scene == Scene::Leases).then_some(Action::Crash(gateway)));
        }
        for message in &state.network {
            actions.push(Action::Deliver(message.clone()));
            if !self.has(Without::Once) || !matches!(message, Message::Return { .. }) {
                actions.push(Action::Double(message.clone()));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => {
                state.moment += 1;
                state.now = BEGIN.after(Micros(*MOMENTS.get(state.moment)?));
            }
            Action::Draw => {
                state.store.leased.draw(&self.bucket, COST, last.now).then_some(())?;
                self.grant(&mut state, COST);
                state.refundable = self.scene == Scene::Corrections && !state.refunded;
            }
            Action::Refund => {
                state.refundable.then_some(())?;
                (state.refundable, state.refunded) = (false, true);
                state.network.push(Message::Refund { id: state.next_id });
                state.next_id += 1;
            }
            Action::Ask(gateway) => {
                // Those at rest are all alike: the first one asks.
                let first = state.gateways.iter().position(|other| *other == Gateway::default());
                let most = if self.scene == Scene::Leases { 2 } else { 1 };
                (state.asked < most && first == Some(gateway)).then_some(())?;
                state.gateways[gateway].awaiting = Some(state.next_id);
                state.network.push(Message::Ask { gateway, id: state.next_id, sent: last.now });
                state.next_id += 1;
                state.asked += 1;
            }
            Action::Use(gateway) => {
                let held = state.gateways[gateway].lease.take()?;
                (held.units > 0 && last.now < held.deadline).then_some(())?;
                self.grant(&mut state, held.units);
            }
            Action::GiveBack(gateway) => {
                let held = state.gateways[gateway].lease.take()?;
                state.network.push(Message::Return { units: held.units, until: held.until });
            }
            Action::Crash(gateway) => {
                (!state.crashed && state.gateways[gateway] != Gateway::default()).then_some(())?;
                state.crashed = true;
                state.gateways[gateway] = Gateway::default();
            }
            Action::Deliver(message) => {
                let place = state.network.iter().position(|other| *other == message)?;
                state.network.remove(place);
                self.deliver(&mut state, message);
            }
            Action::Double(message) => {
                (!state.doubled).then_some(())?;
                state.doubled = true;
                self.deliver(&mut state, message);
            }
            Action::Replicate => {
                (!state.replicated && !state.failed_over).then_some(())?;
                state.replicated = true;
                state.replica = state.store.clone();
            }
            Action::FailOver => {
                (!state.failed_over).then_some(())?;
                (state.failed_over, state.replicated) = (true, true);
                state.store = state.replica.clone();
                if self.has(Without::Mark) {
                    state.store.leased = Leased { level: Level { level: 0, at: last.now }, ledger: Vec::new() };
                }
                state.network.retain(|message| !matches!(message, Message::Refund { .. }));
                state.refundable = false;
            }
        }
        // The order of messages under way says nothing.
        state.network.sort();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(BOUND, |_, state: &State| state.paid >= 0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stateright::Checker;

    #[test]
    fn fleet_with_all_guards_never_grants_above_the_bound() {
        for scene in [Scene::Leases, Scene::Corrections] {
            let checker = Fleet::new(scene, Without::Nothing).checker().threads(2).spawn_bfs().join();
            println!("{scene:?}: {} different states", checker.unique_state_count());
            assert!(checker.discovery(BOUND).is_none(), "{:?}", checker.discovery(BOUND));
            assert!(checker.unique_state_count() > 100_000, "the model is no model");
        }
    }

    #[test]
    fn fleet_without_one_guard_is_found_to_grant_above_it() {
        use Without::{Awaiting, Count, Deadline, Mark, Once, Receipt};
        let leases = [Count, Deadline, Awaiting, Once].map(|without| (Scene::Leases, without));
        let corrections = [Mark, Receipt].map(|without| (Scene::Corrections, without));
        for (scene, without) in leases.into_iter().chain(corrections) {
            let model = Fleet::new(scene, without).checker().threads(2);
            let checker = model.finish_when(stateright::HasDiscoveries::AnyFailures).spawn_bfs().join();
            let path = checker.discovery(BOUND).unwrap_or_else(|| panic!("{without:?}: no path above the bound"));
            println!("without {without:?}: {:?}", path.into_actions());
        }
    }
}
