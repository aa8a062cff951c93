//! The network and the server in virtual time: messages that take their time, are lost or wait, and a
//! server that stands still, goes down or fails over.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use fastrand::Rng;
use tokio::sync::{Notify, oneshot};
use tollgate_limit::Timestamp;
use tollgate_store::simulated::{Call, Failure, Network, Reply, Server};

use crate::scene::{Fault, Scene, TAIL, Time, Without};

/// The moment at which every run begins, by the store's clock.
pub const START: u64 = 1_760_000_000_000_000;
const DAY: u64 = 86_400_000_000;

/// What happens at a moment.
pub enum Event<T> {
    Arrives(Message),
    Returns(Rc<Wire>, oneshot::Sender<Answer>, Answer),
    Fault(Fault),
    /// What callers do.
    Other(T),
}

pub struct Message {
    wire: Rc<Wire>,
    content: Content,
    reply: oneshot::Sender<Answer>,
}

enum Content {
    Connect,
    Call(Call),
    Other,
}

pub enum Answer {
    Connected(bool),
    Reply(Reply),
    Now(Timestamp),
}

/// A connection. What it carries in one direction keeps its order.
pub struct Wire {
    gateway: usize,
    is_broken: Cell<bool>,
    broken: Notify,
    there: Cell<Time>,
    back: Cell<Time>,
}

pub struct World<T> {
    pub now: Time,
    events: BTreeMap<(Time, u64), Event<T>>,
    scheduled: u64,
    random: Rng,
    scene: Rc<Scene>,
    without: Without,
    server: Server,
    replica: Server,
    /// What the store's clock shows beside [`World::now`], and how far it was set forward in all.
    offset: i64,
    forward: u64,
    down_until: Time,
    frozen_until: Time,
    /// Until when a gateway is cut off, and whether what it sends meanwhile arrives afterwards.
    cuts: Vec<(Time, bool)>,
    wires: Vec<Rc<Wire>>,
    /// Messages that get no answer while their connection stands.
    unanswered: Vec<(Rc<Wire>, oneshot::Sender<Answer>)>,
    /// The messages that the server has received.
    pub messages: u64,
    /// When something happened last after which a promised wait need not be kept.
    pub disturbed: Time,
}

impl<T> World<T> {
    pub fn new(scene: Rc<Scene>, without: Without) -> Self {
        let server = Server::new(Timestamp::from_micros(START - DAY));
        let mut world = Self {
            now: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            random: Rng::with_seed(scene.seed ^ 0x5EED),
            without,
            replica: server.clone(),
            server,
            offset: 0,
            forward: 0,
            down_until: 0,
            frozen_until: 0,
            cuts: vec![(0, false); scene.gateways],
            wires: Vec::new(),
            unanswered: Vec::new(),
            messages: 0,
            disturbed: 0,
            scene: scene.clone(),
        };
        for (at, fault) in &scene.faults {
            world.at(*at, Event::Fault(fault.clone()));
        }
        world
    }

    pub fn at(&mut self, at: Time, event: Event<T>) {
        self.scheduled += 1;
        self.events
            .insert((at.max(self.now), self.scheduled), event);
    }

    /// The next event, if its time has come.
    pub fn due(&mut self) -> Option<Event<T>> {
        let next = self.events.first_entry()?;
        (next.key().0 <= self.now).then(|| next.remove())
    }

    pub fn next(&self) -> Time {
        self.events.keys().next().map_or(Time::MAX, |(at, _)| *at)
    }

    /// The time that has passed by the store's clock, with every step forward.
    pub fn passed(&self) -> Time {
        self.now + self.forward
    }

    fn server_now(&self) -> Timestamp {
        Timestamp::from_micros((START + self.now).saturating_add_signed(self.offset))
    }

    fn step(&mut self, step: i64) {
        self.offset += step;
        self.forward += u64::try_from(step).unwrap_or(0);
    }

    pub fn happen(&mut self, event: Event<T>) {
        match event {
            Event::Arrives(message) => self.arrive(message),
            Event::Returns(wire, reply, answer) => {
                if !wire.is_broken.get() {
                    let _ = reply.send(answer);
                }
            }
            Event::Fault(fault) => self.befall(fault),
            Event::Other(_) => unreachable!("the callers' own"),
        }
    }

    fn befall(&mut self, fault: Fault) {
        match fault.clone() {
            Fault::Cut {
                gateway,
                until,
                held,
            } => self.cuts[gateway] = (until, held),
            Fault::Down { until } => {
                self.down_until = until;
                self.break_wires();
            }
            Fault::Freeze { until } => self.frozen_until = until,
            Fault::Copy => self.replica = self.server.clone(),
            Fault::FailOver { step } => {
                self.server = self.replica.clone();
                self.step(step);
                if self.without != Without::Mark {
                    self.server.promote(self.server_now());
                }
                self.break_wires();
            }
            Fault::Step(step) => self.step(step),
            Fault::Crash { .. } | Fault::Stop { .. } => unreachable!("of gateways"),
        }
        // After a step back buckets refuse for a second longer at most.
        let lasts = match fault {
            Fault::Step(_) | Fault::FailOver { .. } => 1_100_000,
            _ => 0,
        };
        self.disturbed = self.disturbed.max(self.now + lasts);
    }

    fn break_wires(&mut self) {
        for wire in self.wires.drain(..) {
            wire.is_broken.set(true);
            wire.broken.notify_waiters();
        }
        self.unanswered.clear();
    }

    /// When a message that leaves now over `wire` arrives; `None`: it is lost.
    fn arrival(&mut self, wire: &Wire, last: &Cell<Time>) -> Option<Time> {
        let (least, most) = self.scene.delay;
        // After the last request messages are in time: what is missing then stays so.
        let is_over = self.now >= self.scene.lasts;
        let (loss, tail) = if is_over {
            (0, 0)
        } else {
            (self.scene.loss, self.scene.tail)
        };
        let mut takes = self.random.u64(least..=most.max(least));
        if self.random.u64(..1000) < tail {
            takes += self.random.u64(..TAIL);
        }
        let (cut, held) = self.cuts[wire.gateway];
        let is_cut = self.now < cut;
        if self.random.u64(..1000) < loss || (is_cut && !held) {
            return None;
        }
        let leaves = if is_cut { cut } else { self.now };
        let at = (leaves + takes).max(last.get());
        last.set(at);
        Some(at)
    }

    fn send(&mut self, wire: &Rc<Wire>, content: Content, reply: oneshot::Sender<Answer>) {
        let wire = wire.clone();
        match self.arrival(&wire, &wire.there) {
            Some(at) => self.at(
                at,
                Event::Arrives(Message {
                    wire,
                    content,
                    reply,
                }),
            ),
            None => self.unanswered.push((wire, reply)),
        }
    }

    fn arrive(&mut self, message: Message) {
        let Message {
            wire,
            content,
            reply,
        } = message;
        if wire.is_broken.get() {
            return;
        }
        if self.now < self.frozen_until {
            return self.at(
                self.frozen_until,
                Event::Arrives(Message {
                    wire,
                    content,
                    reply,
                }),
            );
        }
        self.messages += 1;
        let now = self.server_now();
        let answer = match content {
            Content::Connect => {
                let accepts = self.now >= self.down_until;
                if accepts {
                    self.wires.push(wire.clone());
                }
                Answer::Connected(accepts)
            }
            Content::Other => Answer::Now(now),
            Content::Call(mut call) => {
                if self.without == Without::GiveBack {
                    call.drop_refunds();
                }
                let decided = self.server.decide(&call, now);
                if self.without == Without::Count {
                    self.server.forget_leases();
                }
                Answer::Reply(decided)
            }
        };
        match self.arrival(&wire, &wire.back) {
            Some(at) => self.at(at, Event::Returns(wire, reply, answer)),
            None => self.unanswered.push((wire, reply)),
        }
    }
}

/// The network of one gateway.
pub struct Line<T> {
    pub world: Rc<RefCell<World<T>>>,
    pub gateway: usize,
}

impl<T> Line<T> {
    async fn ask(&self, wire: &Rc<Wire>, content: Content) -> Result<Answer, Failure> {
        if wire.is_broken.get() {
            return Err(Failure::NotSent);
        }
        let (reply, answer) = oneshot::channel();
        self.world.borrow_mut().send(wire, content, reply);
        answer.await.map_err(|_| Failure::Lost)
    }
}

impl<T: 'static> Network for Line<T> {
    type Connection = Rc<Wire>;

    async fn connect(&self) -> Option<Rc<Wire>> {
        let wire = Rc::new(Wire {
            gateway: self.gateway,
            is_broken: Cell::new(false),
            broken: Notify::new(),
            there: Cell::new(0),
            back: Cell::new(0),
        });
        let answer = self.ask(&wire, Content::Connect).await;
        matches!(answer, Ok(Answer::Connected(true))).then_some(wire)
    }

    async fn call(&self, wire: &Rc<Wire>, call: Call) -> Result<Reply, Failure> {
        match self.ask(wire, Content::Call(call)).await? {
            Answer::Reply(reply) => Ok(reply),
            _ => unreachable!("a call has a reply"),
        }
    }

    async fn other(&self, wire: &Rc<Wire>) -> Result<Timestamp, Failure> {
        match self.ask(wire, Content::Other).await? {
            Answer::Now(now) => Ok(now),
            _ => unreachable!("it has the time"),
        }
    }

    async fn ended(&self, wire: &Rc<Wire>) {
        let mut broken = std::pin::pin!(wire.broken.notified());
        broken.as_mut().enable();
        if !wire.is_broken.get() {
            broken.await;
        }
    }
}
