//! One leased bucket in the process: its leases, what is asked of it, and the wish for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::demand::Demand;
use super::hands::{Decided, Hands, Leaving, Origin};
use super::slot::{LEFT_MAX, Slot};
use super::{Errand, Leases, Return};
use crate::clock::Clock;
use crate::wire_form::{Name, StoredState, WireForm};
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::lease::{GRACE, Terms, Wish};
use tollgate_limit::{Micros, Standing, Timestamp, Verdict};

/// Leases that have left their places.
pub(super) type Left = SmallVec<[Leaving; 2]>;

/// A lease goes back so long before the store stops counting it, whoever holds units of it: the call takes its time, on a busy
/// machine too.
const ON_ITS_WAY: Micros = Micros(GRACE.0 / 2);

/// A leased bucket.
#[derive(Debug)]
pub(crate) struct Held {
    name: Name,
    shape: Arc<WireForm>,
    terms: Terms,
    /// Two, so that one is used while the next is on its way.
    slots: [Slot; 2],
    demand: Demand,
    /// At this many units left the next lease is asked for.
    low: AtomicU64,
    /// Not before this moment, as the store had nothing to lease.
    not_before: AtomicU64,
    asking: Mutex<Asking>,
    /// How the bucket stood in the store, for what callers are told of it: level, the store's moment, and ours. (Read one
    /// by one: a number between two is told at worst.)
    level: AtomicI64,
    at: AtomicU64,
    heard: AtomicU64,
    /// When that was received, by our clock.
    received: AtomicU64,
}

#[derive(Debug, Default)]
struct Asking {
    /// In the queue, or under way.
    busy: bool,
    /// Requests that wait for units, and for how many each.
    waiting: Vec<(u64, oneshot::Sender<Had>)>,
    /// Whether it is in the list of those that hold leases.
    listed: bool,
    /// Units taken by requests that are not decided yet.
    hands: Hands,
}

/// What came of a wish, as those who wait for units are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Had {
    /// It was answered: there are units now, or the bucket is known to be empty.
    Answer,
    /// The store had units, and leases none of them.
    Nothing,
}

/// A wish on its way. Dropped without an answer it counts as failed.
#[derive(Debug)]
pub(crate) struct Wishing {
    held: Arc<Held>,
    leases: Arc<Leases>,
    wish: Wish,
    /// When it left, by the clock of leases.
    departed: Timestamp,
    waiting: Vec<(u64, oneshot::Sender<Had>)>,
    answered: Option<Had>,
}

impl Held {
    pub(super) fn new(name: Name, shape: Arc<WireForm>, terms: Terms, now: Timestamp) -> Self {
        let demand = Demand::new(now);
        Self {
            name,
            shape,
            terms,
            slots: Default::default(),
            demand,
            low: AtomicU64::new(0),
            not_before: AtomicU64::new(0),
            asking: Mutex::default(),
            level: AtomicI64::new(i64::MAX),
            at: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn shape(&self) -> &Arc<WireForm> {
        &self.shape
    }

    /// Counts the demand of a request.
    pub(super) fn count(&self, cost: u64, now: Timestamp) {
        self.demand.count(cost, now, self.terms.life);
    }

    /// Takes `cost` units from a lease, that which ends first before the other, for a request that nothing else can refuse.
    pub(super) fn take(&self, cost: u64, clock: &Clock) -> bool {
        self.take_by(cost, clock).is_some()
    }

    /// As [`Held::take`], for a request that is decided later: where from.
    pub(super) fn take_in_hand(&self, cost: u64, clock: &Clock) -> Option<Origin> {
        let mut asking = self.asking.lock();
        let origin = self.take_by(cost, clock)?;
        asking.hands.take(origin);
        Some(origin)
    }

    fn take_by(&self, cost: u64, clock: &Clock) -> Option<Origin> {
        let now = || clock.boot().as_micros();
        let first = usize::from(
            self.slots[1].is_held() && self.slots[1].deadline() < self.slots[0].deadline(),
        );
        [first, 1 - first]
            .into_iter()
            .find_map(|slot| Some((slot, self.slots[slot].take_at(cost, now)?)))
    }

    /// A request that took units in hand is decided; those that were not granted go `back`. Whether that is to be told to the
    /// store now.
    pub(super) fn decided(&self, origin: Origin, back: u64, leases: &Leases) -> bool {
        let mut asking = self.asking.lock();
        match asking.hands.decide(origin, back) {
            Decided::PutBack => self.slots[origin.0].put_back(origin.1, back),
            Decided::Waits => {}
            Decided::GiveBack(leaving) => {
                drop(asking);
                leases.give_back(self, leaving);
                return true;
            }
            Decided::TooLate => {
                leases.counters.forfeited.fetch_add(back, Ordering::Relaxed);
            }
        }
        false
    }

    /// Whether the next lease should be asked for now: one of `least` units is worth it.
    pub(super) fn is_low(&self, now: Timestamp, least: u64) -> bool {
        if now.as_micros() < self.not_before.load(Ordering::Relaxed)
            || self.demand.in_a_life() < least
        {
            return false;
        }
        // Units of a lease about to end are as good as gone.
        let soon = now.after(Micros(self.terms.life.0 / 4));
        let usable = self
            .slots
            .iter()
            .filter(|slot| slot.deadline() > soon)
            .map(Slot::left)
            .sum::<u64>();
        usable <= self.low.load(Ordering::Relaxed)
    }

    /// Queues a wish unless one is queued or under way; whether it did.
    pub(super) fn wish(self: &Arc<Self>, leases: &Leases) -> bool {
        let mut asking = self.asking.lock();
        self.queue(&mut asking, leases)
    }

    /// As [`Held::wish`], for a request that waits for `cost` units; told when an answer has come.
    pub(super) fn wait(self: &Arc<Self>, cost: u64, leases: &Leases) -> oneshot::Receiver<Had> {
        let (tell, told) = oneshot::channel();
        let mut asking = self.asking.lock();
        asking.waiting.push((cost, tell));
        self.queue(&mut asking, leases);
        told
    }

    /// The wish is not under way any more, or could not be sent: it is queued anew where requests wait.
    pub(crate) fn not_sent(self: &Arc<Self>, leases: &Leases) {
        let mut asking = self.asking.lock();
        asking.busy = false;
        if !asking.waiting.is_empty() {
            self.queue(&mut asking, leases);
        }
    }

    fn queue(self: &Arc<Self>, asking: &mut Asking, leases: &Leases) -> bool {
        if std::mem::replace(&mut asking.busy, true) {
            return false;
        }
        leases.errands.lock().push(Errand::Wish(self.clone()));
        true
    }

    /// The wish, which leaves now, and the leases that are used up, which go back with it.
    pub(crate) fn depart(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
    ) -> (Wishing, SmallVec<[Return; 2]>) {
        let (mut asking, mut used_up) = (self.asking.lock(), SmallVec::new());
        for place in 0..self.slots.len() {
            if self.slots[place].left() == 0
                && let Some(leaving) = self.vacate(&mut asking, place)
            {
                leases
                    .counters
                    .given_back
                    .fetch_add(leaving.left, Ordering::Relaxed);
                used_up.push(self.returning(leaving));
            }
        }
        let mut waiting = std::mem::take(&mut asking.waiting);
        // Whoever has gone, or had no time left, needs nothing any more: units for it would lie idle.
        waiting.retain(|(_, tell)| !tell.is_closed());
        let needed = waiting
            .iter()
            .fold(0, |sum: u64, (cost, _)| sum.saturating_add(*cost))
            .min(LEFT_MAX);
        let units = self.demand.in_a_life().clamp(needed, LEFT_MAX.max(needed));
        let wish = Wish {
            id: fastrand::u64(1..1 << 52),
            units,
            needed,
        };
        let departed = leases.clock.boot();
        (
            Wishing {
                held: self.clone(),
                leases: leases.clone(),
                wish,
                departed,
                waiting,
                answered: None,
            },
            used_up,
        )
    }

    /// Has a lease leave its place; `None`: there is none, or it waits for requests that hold units of it.
    fn vacate(&self, asking: &mut Asking, place: usize) -> Option<Leaving> {
        let slot = &self.slots[place];
        let (turn, until) = (slot.turn(), slot.deadline().after(GRACE));
        let (id, left) = slot.empty()?;
        asking
            .hands
            .leave((place, turn), Leaving { id, left, until })
    }

    /// What is told to the store of a lease that goes back.
    pub(super) fn returning(&self, leaving: Leaving) -> Return {
        let Leaving { id, left, until } = leaving;
        Return {
            name: self.name,
            shape: self.shape.clone(),
            id,
            left: Some(left),
            until,
        }
    }

    /// Empties all leases; those of which units are out follow.
    pub(super) fn empty(&self) -> Left {
        let mut asking = self.asking.lock();
        (0..self.slots.len())
            .filter_map(|place| self.vacate(&mut asking, place))
            .collect()
    }

    /// Empties all leases, and waits for nobody.
    pub(super) fn empty_at_once(&self) -> Left {
        let mut left = self.empty();
        left.extend(
            self.asking
                .lock()
                .hands
                .let_go(Timestamp::from_micros(u64::MAX)),
        );
        left
    }

    /// Empties the leases that have ended at `now`, and lets those go that can wait for nobody any more.
    pub(super) fn empty_ended(&self, now: Timestamp) -> Left {
        let mut asking = self.asking.lock();
        let ended = (0..self.slots.len()).filter(|place| self.slots[*place].deadline() <= now);
        let mut left: Left = ended
            .filter_map(|place| self.vacate(&mut asking, place))
            .collect();
        left.extend(asking.hands.let_go(now.after(ON_ITS_WAY)));
        left
    }

    /// Leases in their places.
    pub(super) fn leases(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| u64::from(slot.is_held()))
            .sum()
    }

    /// Leases held, with those that wait for requests. Without any it is not in the list of those that hold some any more.
    pub(super) fn count_or_unlist(&self) -> u64 {
        let mut asking = self.asking.lock();
        let held = self.leases() + asking.hands.leaving();
        asking.listed = held > 0;
        held
    }

    /// Whether nothing is held and nobody has asked for a while.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let asking = self.asking.lock();
        self.leases() == 0
            && now.since(self.demand.since()) > Micros(10 * self.terms.life.0)
            && !asking.busy
            && asking.hands.are_empty()
    }

    /// How the bucket stands to a request of `cost`: what the store last said, moved on by our clock, and what is left
    /// here.
    pub(super) fn standing(&self, cost: u64, granted: bool, now: Timestamp) -> Standing {
        let level = self.level.load(Ordering::Relaxed);
        let heard = Timestamp::from_micros(self.heard.load(Ordering::Relaxed));
        let at = Timestamp::from_micros(self.at.load(Ordering::Relaxed));
        let state = (level != i64::MAX).then_some(State::Level(Level { level, at }));
        let mut standing = self
            .shape
            .standing(state.as_ref(), cost, at.after(now.since(heard)));
        let here = self.slots.iter().map(Slot::left).sum::<u64>();
        standing.remaining = standing
            .remaining
            .saturating_add(here)
            .min(self.shape.most_units());
        if granted {
            standing.verdict = Verdict::Allow { wait: Micros::ZERO };
        }
        standing
    }

    /// Whether the store, by an answer received less than a moment ago, had not so many units. (Others give units back, so
    /// it is not believed for long; counted from the question, an answer that took as long would never be.)
    pub(super) fn is_known_empty(&self, cost: u64, now: Timestamp) -> bool {
        let received = Timestamp::from_micros(self.received.load(Ordering::Relaxed));
        now.since(received) < BELIEVED
            && matches!(
                self.standing(cost, false, now).verdict,
                Verdict::Deny { .. }
            )
    }
}

/// How long an empty bucket is believed to gain no more than its rate gives.
const BELIEVED: Micros = Micros(50_000);

impl Wishing {
    /// What is wished for.
    pub(crate) fn wish(&self) -> Wish {
        self.wish
    }

    /// Keeps what the store gave at `now` by its clock, having been asked at `sent` by ours; `state`: the bucket before.
    pub(crate) fn answered(
        mut self,
        units: u64,
        state: Option<&StoredState>,
        now: Timestamp,
        sent: Timestamp,
    ) {
        let (held, leases) = (self.held.clone(), self.leases.clone());
        let clock = &leases.clock;
        held.heard.store(sent.as_micros(), Ordering::Relaxed);
        held.received
            .store(clock.boot().as_micros(), Ordering::Relaxed);
        held.at.store(now.as_micros(), Ordering::Relaxed);
        let level = match state {
            Some(State::Level(Level { level, .. })) => *level,
            _ => held.shape.full_level(),
        };
        held.level.store(
            level.saturating_sub(held.shape.scaled(units)),
            Ordering::Relaxed,
        );
        if units > 0 {
            let mut asking = held.asking.lock();
            let place = match held.slots.iter().position(|slot| !slot.is_held()) {
                Some(free) => free,
                None => {
                    let earlier = usize::from(held.slots[1].deadline() < held.slots[0].deadline());
                    if let Some(leaving) = held.vacate(&mut asking, earlier) {
                        leases.counters.out.fetch_sub(1, Ordering::Relaxed);
                        leases.give_back(&held, leaving);
                    }
                    earlier
                }
            };
            held.slots[place].fill(self.wish.id, units, held.terms.deadline(sent));
            held.low.store(units / 4, Ordering::Relaxed);
            let first = !std::mem::replace(&mut asking.listed, true);
            drop(asking);
            leases.installed(&held, units, first, !self.waiting.is_empty());
        } else {
            let later = clock.boot().after(Micros(held.terms.life.0 / 4));
            held.not_before.store(later.as_micros(), Ordering::Relaxed);
        }
        // (What is needed together may be more than there is, and what each needs not.)
        let one = self.waiting.iter().map(|(cost, _)| *cost).min();
        let there = one.is_some_and(|cost| level >= held.shape.scaled(cost));
        self.answered = Some(if units == 0 && there {
            Had::Nothing
        } else {
            Had::Answer
        });
    }
}

impl Drop for Wishing {
    fn drop(&mut self) {
        if self.answered.is_none() {
            // The store may have leased units that nobody here knows of: they go back, if they are there.
            let until = self.departed.after(self.held.terms.counted());
            let (name, shape) = (self.held.name, self.held.shape.clone());
            self.leases.again([Return {
                name,
                shape,
                id: self.wish.id,
                left: None,
                until,
            }]);
        }
        self.held.not_sent(&self.leases);
        for (_, waiting) in self.waiting.drain(..) {
            if let Some(had) = self.answered {
                // Who has gone needs no word.
                let _ = waiting.send(had);
            }
        }
    }
}
