//! One leased bucket in the process: its leases, its demand, and the request for the next lease.

mod wishing;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::slot::{LEFT_MAX, Slot};
use super::units_out::{Decided, Hands, Leaving, Origin};
use super::{Errand, Leases, Return};
use crate::clock::Clock;
use crate::wire_form::{Name, WireForm};
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::lease::{GRACE, Terms, Wish};
use tollgate_limit::{Micros, Standing, Timestamp, Verdict};
pub(crate) use wishing::Wishing;

pub(super) type Left = SmallVec<[Leaving; 2]>;

/// How long before the store stops counting it a lease is returned, even if requests still hold
/// units of it: the call takes time, also on a busy machine.
const ON_ITS_WAY: Micros = Micros(GRACE.0 / 2);

#[derive(Debug)]
pub(crate) struct Held {
    name: Name,
    shape: Arc<WireForm>,
    terms: Terms,
    /// Two slots, so that one lease is used while the next is being requested.
    slots: [Slot; 2],
    demand: Demand,
    /// When this many units are left, the next lease is requested.
    low: AtomicU64,
    /// No request before this moment, because the store had nothing to lease.
    not_before: AtomicU64,
    asking: Mutex<Asking>,
    /// The bucket's state in the store, for the numbers reported to callers: level, the store's
    /// time, and ours. (Read one by one; the worst case is a mixed number.)
    level: AtomicI64,
    at: AtomicU64,
    heard: AtomicU64,
    /// When that was received, by our clock.
    received: AtomicU64,
}

#[derive(Debug, Default)]
struct Asking {
    /// Whether a request for a lease is queued or in flight.
    busy: bool,
    /// Requests that wait for units, and the number of units for each.
    waiting: Vec<(u64, oneshot::Sender<Had>)>,
    /// Whether the bucket is in the list of those that hold leases.
    listed: bool,
    /// Units taken by requests that are not decided yet.
    units_out: Hands,
}

/// The result of a request for a lease, for the requests that wait for units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Had {
    /// The store responded: there are units now, or the bucket is known to be empty.
    Answer,
    /// The store had units but leased none.
    Nothing,
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

    /// The moment at which the store last answered about the bucket, by its clock.
    pub(super) fn heard_of(&self) -> Timestamp {
        Timestamp::from_micros(self.at.load(Ordering::Relaxed))
    }

    /// Counts the demand of one request.
    pub(super) fn count(&self, cost: u64, now: Timestamp) {
        self.demand.count(cost, now, self.terms.life);
    }

    /// Takes `cost` units from a lease, preferably from the one that ends first, for a request that
    /// nothing else can refuse.
    pub(super) fn take(&self, cost: u64, clock: &Clock) -> bool {
        self.take_by(cost, clock).is_some()
    }

    /// Like [`Held::take`], for a request that is decided later; returns the origin of the units.
    pub(super) fn take_in_hand(&self, cost: u64, clock: &Clock) -> Option<Origin> {
        let mut asking = self.asking.lock();
        let origin = self.take_by(cost, clock)?;
        asking.units_out.take(origin);
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

    /// Reports the decision on a request that took units in hand; `back` units were not granted and
    /// are returned. The result says whether there is a message for the store now.
    pub(super) fn decided(&self, origin: Origin, back: u64, leases: &Leases) -> bool {
        let mut asking = self.asking.lock();
        match asking.units_out.decide(origin, back) {
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

    /// Whether the next lease should be requested now; a lease must be of at least `least` units.
    pub(super) fn is_low(&self, now: Timestamp, least: u64) -> bool {
        if now.as_micros() < self.not_before.load(Ordering::Relaxed)
            || self.demand.in_a_life() < least
        {
            return false;
        }
        // Units of a lease that is about to end do not count.
        let soon = now.after(Micros(self.terms.life.0 / 4));
        let usable = self
            .slots
            .iter()
            .filter(|slot| slot.deadline() > soon)
            .map(Slot::left)
            .sum::<u64>();
        usable <= self.low.load(Ordering::Relaxed)
    }

    /// Queues a request for a lease unless one is queued or in flight; returns whether it did.
    pub(super) fn wish(self: &Arc<Self>, leases: &Leases) -> bool {
        let mut asking = self.asking.lock();
        self.queue(&mut asking, leases)
    }

    /// Like [`Held::wish`], for a request that waits for `cost` units; it is notified of the
    /// response.
    pub(super) fn wait(self: &Arc<Self>, cost: u64, leases: &Leases) -> oneshot::Receiver<Had> {
        let (tell, receiver) = oneshot::channel();
        let mut asking = self.asking.lock();
        asking.waiting.push((cost, tell));
        self.queue(&mut asking, leases);
        receiver
    }

    /// Records that the request for a lease is no longer in flight or could not be sent. It is
    /// queued again if requests wait.
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
        leases.tasks.lock().push(Errand::Wish(self.clone()));
        true
    }

    /// The request for a lease that leaves now, and the used-up leases that are returned with it.
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
        // A request that is gone or out of time needs no units; units leased for it would stay
        // unused.
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

    /// Removes a lease from its slot; `None`: there is none, or it waits for requests that hold
    /// units of it.
    fn vacate(&self, asking: &mut Asking, place: usize) -> Option<Leaving> {
        let slot = &self.slots[place];
        let (turn, until) = (slot.turn(), slot.deadline().after(GRACE));
        let (id, left) = slot.empty()?;
        asking
            .units_out
            .leave((place, turn), Leaving { id, left, until })
    }

    /// The message to the store for a lease that is returned.
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

    /// Empties all leases; those with units in hand follow later.
    pub(super) fn empty(&self) -> Left {
        let mut asking = self.asking.lock();
        (0..self.slots.len())
            .filter_map(|place| self.vacate(&mut asking, place))
            .collect()
    }

    /// Empties all leases without waiting for units in hand.
    pub(super) fn empty_at_once(&self) -> Left {
        let mut left = self.empty();
        left.extend(
            self.asking
                .lock()
                .units_out
                .let_go(Timestamp::from_micros(u64::MAX)),
        );
        left
    }

    /// Empties the leases that have ended at `now`, and releases those that can no longer wait for
    /// units in hand.
    pub(super) fn empty_ended(&self, now: Timestamp) -> Left {
        let mut asking = self.asking.lock();
        let ended = (0..self.slots.len()).filter(|place| self.slots[*place].deadline() <= now);
        let mut left: Left = ended
            .filter_map(|place| self.vacate(&mut asking, place))
            .collect();
        left.extend(asking.units_out.let_go(now.after(ON_ITS_WAY)));
        left
    }

    pub(super) fn leases(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| u64::from(slot.is_held()))
            .sum()
    }

    /// Leases held, including those that wait for requests. Without any, the bucket is removed from
    /// the list of those that hold leases.
    pub(super) fn count_or_unlist(&self) -> u64 {
        let mut asking = self.asking.lock();
        let held = self.leases() + asking.units_out.leaving();
        asking.listed = held > 0;
        held
    }

    /// Whether nothing is held and there was no demand for a while.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let asking = self.asking.lock();
        self.leases() == 0
            && now.since(self.demand.since()) > Micros(10 * self.terms.life.0)
            && !asking.busy
            && asking.units_out.are_empty()
    }

    /// The bucket's standing for a request of `cost`: the store's last state advanced by our clock,
    /// and the units left here.
    pub(super) fn standing(&self, cost: u64, granted: bool, now: Timestamp) -> Standing {
        let level = self.level.load(Ordering::Relaxed);
        let heard = Timestamp::from_micros(self.heard.load(Ordering::Relaxed));
        let at = Timestamp::from_micros(self.at.load(Ordering::Relaxed));
        let state = (level != i64::MAX).then_some(State::Level(Level { level, at }));
        let mut standing = self
            .shape
            .standing(state.as_ref(), cost, at.after(now.since(heard)));
        let here = self.slots.iter().map(Slot::left).sum::<u64>();
        let signed = |units| i64::try_from(units).unwrap_or(i64::MAX);
        let burst = self.shape.algorithm().burst();
        standing.left = standing
            .left
            .saturating_add(signed(here))
            .min(signed(burst));
        if granted {
            standing.verdict = Verdict::Allow { wait: Micros::ZERO };
        }
        standing
    }

    /// Whether a recent response of the store shows that it did not have this many units. (Other
    /// gateways give units back, so this is used only briefly. It counts from the response: counted
    /// from the call, a slow response would never be used.)
    pub(super) fn is_known_empty(&self, cost: u64, now: Timestamp) -> bool {
        let received = Timestamp::from_micros(self.received.load(Ordering::Relaxed));
        now.since(received) < BELIEVED
            && matches!(
                self.standing(cost, false, now).verdict,
                Verdict::Deny { .. }
            )
    }
}

/// How long an empty bucket is assumed to gain only what its rate gives.
const BELIEVED: Micros = Micros(50_000);

#[derive(Debug)]
struct Demand {
    since: AtomicU64,
    /// In the current life of a lease, and in the last one.
    units: AtomicU64,
    before: AtomicU64,
}

impl Demand {
    fn new(now: Timestamp) -> Self {
        Self {
            since: AtomicU64::new(now.as_micros()),
            units: AtomicU64::new(0),
            before: AtomicU64::new(0),
        }
    }

    fn count(&self, units: u64, now: Timestamp, life: Micros) {
        self.units.fetch_add(units, Ordering::Relaxed);
        let since = self.since();
        let passed = now.since(since);
        if passed < life {
            return;
        }
        let mine = self.since.compare_exchange(
            since.as_micros(),
            now.as_micros(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if mine.is_ok() {
            let units = u128::from(self.units.swap(0, Ordering::Relaxed)) * u128::from(life.0)
                / u128::from(passed.0);
            self.before
                .store(u64::try_from(units).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    fn in_a_life(&self) -> u64 {
        self.units
            .load(Ordering::Relaxed)
            .max(self.before.load(Ordering::Relaxed))
    }

    fn since(&self) -> Timestamp {
        Timestamp::from_micros(self.since.load(Ordering::Relaxed))
    }
}
