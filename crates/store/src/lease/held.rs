//! One leased bucket in the process: its leases, its demand, and the request for the next lease.

mod pending;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::slot::{LEFT_MAX, Slot, Turn};
use super::{Errand, Leases, Returned};
use crate::clock::Clock;
use crate::wire_form::{Name, WireForm, signed};
pub(crate) use pending::Pending;
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::lease::{GRACE, Request, Return, Terms, UNITS_LEAST};
use tollgate_limit::{Micros, Standing, Timestamp, Verdict};

/// The origin of units that a request holds while another limit decides: the slot and its turn, until
/// when the store counts them, and until when a return is in time by our clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    place: usize,
    turn: Turn,
    until: Timestamp,
    in_time: Timestamp,
}

/// At most two leases of a bucket, given back.
pub(super) type Back = SmallVec<[Returned; 2]>;

#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(super) terms: Terms,
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
    /// Requests that wait for units, and the number of units for each. They are notified of the response.
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    /// Units of each lease that requests hold while another limit decides. The store goes on counting
    /// them when the lease is returned.
    in_hand: [u64; 2],
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

    /// The moment at which the store last answered about the bucket, by its clock.
    pub(super) fn heard_of(&self) -> Timestamp {
        Timestamp::from_micros(self.at.load(Ordering::Relaxed))
    }

    /// Counts the demand of one request.
    pub(super) fn count(&self, cost: u64, now: Timestamp) {
        self.demand.count(cost, now, self.terms.life);
    }

    /// Takes `cost` units from a lease, preferably from the one that ends first, for a request that
    /// nothing else can refuse. Returns the slot.
    pub(super) fn take(&self, cost: u64, clock: &Clock) -> Option<usize> {
        let now = || clock.boot().as_micros();
        let first = self.ends_first();
        [first, 1 - first]
            .into_iter()
            .find(|slot| self.slots[*slot].take_at(cost, now).is_some())
    }

    /// The slot of the lease that ends first, or one without a lease.
    fn ends_first(&self) -> usize {
        usize::from(self.slots[1].deadline() < self.slots[0].deadline())
    }

    /// Like [`Held::take`], for a request that is decided later.
    pub(super) fn take_in_hand(&self, cost: u64, clock: &Clock) -> Option<Origin> {
        let mut asking = self.asking.lock();
        let place = self.take(cost, clock)?;
        asking.in_hand[place] += cost;
        let (turn, until) = self.slots[place].turn();
        let in_time = self.slots[place].deadline().after(GRACE);
        Some(Origin {
            place,
            turn,
            until,
            in_time,
        })
    }

    /// A request that has taken units in hand is decided. If it was not granted, they are put back into
    /// their lease; if that has been returned, they are returned by themselves. The result says whether
    /// there is a message for the store now.
    pub(super) fn decided(
        &self,
        origin: Origin,
        cost: u64,
        is_granted: bool,
        leases: &Leases,
    ) -> bool {
        let mut asking = self.asking.lock();
        let slot = &self.slots[origin.place];
        let is_here = slot.turn().0 == origin.turn;
        if is_here {
            asking.in_hand[origin.place] -= cost;
            if !is_granted {
                slot.put_back(origin.turn, cost);
            }
        } else if !is_granted {
            let back = Return {
                until: origin.until,
                units: cost,
                left: cost,
            };
            leases.give_back(self.returned(back, origin.in_time));
        }
        !is_here && !is_granted
    }

    fn returned(&self, back: Return, in_time: Timestamp) -> Returned {
        let (name, shape) = (self.name, self.shape.clone());
        Returned {
            name,
            shape,
            back,
            in_time,
        }
    }

    /// Whether the next lease should be requested now; `share` is the most that it may have.
    pub(super) fn is_low(&self, now: Timestamp, least: u64, share: u64) -> bool {
        self.pays(now, least, share) && self.usable(now) <= self.low.load(Ordering::Relaxed)
    }

    /// Whether the next lease may be requested together with that of another bucket: half is used.
    pub(super) fn is_half_used(&self, now: Timestamp, least: u64, share: u64) -> bool {
        self.pays(now, least, share) && self.usable(now) <= 2 * self.low.load(Ordering::Relaxed)
    }

    /// Whether a lease saves more calls than it costs: the demand in its life, and what the store can
    /// lease, are enough.
    fn pays(&self, now: Timestamp, least: u64, share: u64) -> bool {
        now.as_micros() >= self.not_before.load(Ordering::Relaxed)
            && share >= UNITS_LEAST
            && self.demand.in_a_life() >= least
    }

    /// Units of leases that are not about to end.
    fn usable(&self, now: Timestamp) -> u64 {
        let soon = now.after(Micros(self.terms.life.0 / 4));
        let usable = self.slots.iter().filter(|slot| slot.deadline() > soon);
        usable.map(Slot::left).sum()
    }

    /// Queues a request for a lease unless one is queued or in flight; returns whether it did.
    pub(super) fn renew(self: &Arc<Self>, leases: &Leases) -> bool {
        let mut asking = self.asking.lock();
        self.queue(&mut asking, leases)
    }

    /// Like [`Held::renew`], for a request that waits for `cost` units; it is notified of the response.
    pub(super) fn wait(self: &Arc<Self>, cost: u64, leases: &Leases) -> oneshot::Receiver<()> {
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
        leases.tasks.lock().push(Errand::Renew(self.clone()));
        true
    }

    /// The request for a lease that leaves now, and the used-up leases that are returned with it.
    pub(crate) fn depart(self: &Arc<Self>, leases: &Arc<Leases>) -> (Pending, Back) {
        let mut asking = self.asking.lock();
        let back = self.empty_if(&mut asking, |slot| slot.left() == 0);
        let mut waiting = std::mem::take(&mut asking.waiting);
        // A request that is gone or out of time needs no units; units leased for it would stay unused.
        waiting.retain(|(_, tell)| !tell.is_closed());
        let needed = waiting
            .iter()
            .fold(0, |sum: u64, (cost, _)| sum.saturating_add(*cost))
            .min(LEFT_MAX);
        let share = leases.share(&self.terms);
        let units = self.demand.in_a_life().min(share).max(needed);
        let pending = Pending {
            held: self.clone(),
            leases: leases.clone(),
            request: Request { units, needed },
            waiting,
            is_answered: false,
        };
        (pending, back)
    }

    /// Empties the slots that are `so`. The units in hand are not returned.
    fn empty_if(&self, asking: &mut Asking, so: impl Fn(&Slot) -> bool) -> Back {
        let slots = self.slots.iter().zip(&mut asking.in_hand);
        let slots = slots.filter(|(slot, _)| so(slot));
        let empty = |(slot, in_hand): (&Slot, &mut u64)| {
            // By our clock the store counts it for this long at least.
            let in_time = slot.deadline().after(GRACE);
            let mut back = slot.empty()?;
            back.units -= std::mem::take(in_hand);
            Some(self.returned(back, in_time))
        };
        slots.filter_map(empty).collect()
    }

    /// Empties all leases.
    pub(super) fn empty(&self) -> Back {
        self.empty_if(&mut self.asking.lock(), |_| true)
    }

    /// Empties the leases that have ended at `now`.
    pub(super) fn empty_ended(&self, now: Timestamp) -> Back {
        self.empty_if(&mut self.asking.lock(), |slot| slot.deadline() <= now)
    }

    pub(super) fn leases(&self) -> u64 {
        let held = self.slots.iter().map(|slot| u64::from(slot.is_held()));
        held.sum()
    }

    /// Whether nothing is held and there was no demand for a while.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let asking = self.asking.lock();
        self.leases() == 0
            && now.since(self.demand.since()) > Micros(10 * self.terms.life.0)
            && !asking.busy
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
