//! Runs a scene: gateways with the shipped limiter and store on one simulated server, in virtual time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::{Builder, RngSeed};
use tokio::task::{AbortHandle, LocalSet};
use tollgate_limit::{Claim, Micros, Timestamp};
use tollgate_limiter::{By, Decision, Limiter};
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;
use tollgate_store::{Deadline, RemoteOptions, RemoteStore, Store, simulated};

use crate::record::{Answer, Bucket, Decided, Record, Request, Sums};
use crate::scene::{Fault, MILLISECOND, SECOND, Scene, Story, Time, Without};
use crate::world::{Event, Line, START, World};

pub const ANSWER_WITHIN: Micros = Micros(20_000);

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    pub sums: Sums,
    pub violations: Vec<String>,
    /// The greatest share of its burst that a bucket must have had, of a thousand.
    pub worst: i64,
    /// Two runs of one seed have the same.
    pub hash: u64,
    pub story: Story,
}

/// Runs the scene of a seed.
pub fn run(seed: u64, without: Without) -> Outcome {
    run_scene(Scene::of(seed), without, false)
}

pub fn run_scene(scene: Scene, without: Without, trace: bool) -> Outcome {
    fastrand::seed(scene.seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&scene.seed.to_le_bytes()))
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(async { Fleet::new(scene, without, trace).run().await })
}

/// What callers do.
enum Caller {
    /// The next request of all callers together.
    Next,
    Leaves(AbortHandle),
    /// A caller alone asks.
    Alone(usize),
    Starts(usize),
    /// The buckets are looked at.
    Looks,
}

/// A caller alone: when it was refused, and what it expects of its next request.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    refused_at: Time,
    /// Until when it waits; zero: it was not refused.
    until: Time,
    /// Whether its next request comes before that.
    is_early: bool,
    /// Whether a request was not answered: the store may give units back at any time.
    is_unsure: bool,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One gateway's process.
struct Process {
    id: u64,
    local: LocalSet,
    woken: Arc<Woken>,
    limiter: Rc<Limiter<RemoteStore>>,
    clock: Clock,
    started: Time,
    /// The microseconds that its clock has counted.
    ran: Cell<Time>,
    /// The microseconds that its clock counts in a million.
    speed: u64,
    stopped_until: Time,
}

struct Fleet {
    scene: Rc<Scene>,
    world: Rc<RefCell<World<Caller>>>,
    record: Rc<RefCell<Record>>,
    processes: Vec<Option<Process>>,
    alone: Rc<RefCell<Vec<Alone>>>,
    random: Rng,
    next_id: u64,
    next_number: u64,
    /// The weights of the keys, added up.
    weights: Vec<f64>,
    counted: Option<u64>,
}

impl Fleet {
    fn new(scene: Scene, without: Without, trace: bool) -> Self {
        let scene = Rc::new(scene);
        let world = Rc::new(RefCell::new(World::new(scene.clone(), without)));
        let mut sum = 0.0;
        let weights = (1..=scene.keys).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        let mut fleet = Self {
            weights: weights.collect(),
            world,
            record: Rc::new(RefCell::new(Record::new(trace))),
            processes: (0..scene.gateways).map(|_| None).collect(),
            alone: Rc::new(RefCell::new(vec![Alone::default(); scene.lone])),
            random: Rng::with_seed(scene.seed ^ 0xF1EE7),
            next_id: 0,
            next_number: 0,
            counted: None,
            scene,
        };
        for gateway in 0..fleet.scene.gateways {
            fleet.start(gateway);
        }
        // Callers come when the gateways are connected.
        fleet.schedule(50 * MILLISECOND, Caller::Next);
        if fleet.scene.story == Story::Late {
            fleet.schedule(
                fleet.scene.lasts + fleet.scene.quiet - SECOND,
                Caller::Looks,
            );
        }
        for lone in 0..fleet.scene.lone {
            fleet.schedule(50 * MILLISECOND, Caller::Alone(lone));
        }
        fleet
    }

    fn schedule(&self, at: Time, caller: Caller) {
        self.world.borrow_mut().at(at, Event::Other(caller));
    }

    fn start(&mut self, gateway: usize) {
        let (scene, now) = (self.scene.clone(), self.world.borrow().now);
        let speed = 1_000_000 + self.random.u64(0..2_000) - 1_000;
        // Gateways do not agree on what time it is.
        let clock = Clock::manual(Timestamp::from_micros(
            START + self.random.u64(..60 * SECOND),
        ));
        let options = RemoteOptions::new(ANSWER_WITHIN, "a secret of this fleet", clock.clone());
        let line = Line {
            world: self.world.clone(),
            gateway,
        };
        self.next_id += 1;
        let (store, lane) = simulated::start(scene.kind, self.next_id, line, options);
        let replicas = u32::try_from(scene.gateways).expect("few");
        let store = Arc::new(store.with_replicas(Some(replicas)));
        let limiter = Limiter::new(&scene.limits, store, clock.clone(), ColdStart::default());
        let local = LocalSet::new();
        local.spawn_local(lane);
        self.processes[gateway] = Some(Process {
            id: self.next_id,
            local,
            woken: Arc::new(Woken(AtomicBool::new(true))),
            limiter: Rc::new(limiter),
            clock,
            started: now,
            ran: Cell::new(0),
            speed,
            stopped_until: 0,
        });
    }

    async fn run(mut self) -> Outcome {
        let end = self.scene.lasts + self.scene.quiet;
        loop {
            while let Some(event) = { self.world.borrow_mut().due() } {
                self.happen(event);
            }
            self.poll();
            let now = self.world.borrow().now;
            if now >= end {
                break;
            }
            // Timers of gateways are counted in milliseconds.
            let tick = (now / MILLISECOND + 1) * MILLISECOND;
            let next = self.world.borrow().next().max(now).min(tick);
            tokio::time::advance(Duration::from_micros(next - now)).await;
            self.world.borrow_mut().now = next;
            for process in self.processes.iter().flatten() {
                process.set_clock(next);
            }
        }
        self.finish()
    }

    /// Lets every gateway do what it can do now.
    fn poll(&mut self) {
        let now = self.world.borrow().now;
        loop {
            let mut is_idle = true;
            for process in self.processes.iter_mut().flatten() {
                if now < process.stopped_until || !process.woken.0.swap(false, Ordering::Relaxed) {
                    continue;
                }
                is_idle = false;
                let waker = Waker::from(process.woken.clone());
                let polled = Pin::new(&mut process.local).poll(&mut Context::from_waker(&waker));
                debug_assert!(matches!(polled, Poll::Pending), "a lane does not end");
            }
            if is_idle {
                return;
            }
        }
    }

    fn happen(&mut self, event: Event<Caller>) {
        match event {
            Event::Fault(Fault::Crash { gateway, back }) => {
                self.disturb();
                self.processes[gateway] = None;
                self.schedule(back, Caller::Starts(gateway));
            }
            Event::Fault(Fault::Stop { gateway, until }) => {
                self.disturb();
                if let Some(process) = &mut self.processes[gateway] {
                    process.stopped_until = until;
                }
            }
            Event::Other(Caller::Starts(gateway)) => self.start(gateway),
            Event::Other(Caller::Next) => self.next(),
            Event::Other(Caller::Looks) => self.look(),
            Event::Other(Caller::Leaves(task)) => task.abort(),
            Event::Other(Caller::Alone(lone)) => self.ask_alone(lone),
            event => self.world.borrow_mut().happen(event),
        }
    }

    fn disturb(&self) {
        let mut world = self.world.borrow_mut();
        world.disturbed = world.disturbed.max(world.now);
    }

    fn next(&mut self) {
        let now = self.world.borrow().now;
        if now >= self.scene.from && self.counted.is_none() {
            self.counted = Some(self.world.borrow().messages);
        }
        if now >= self.scene.lasts {
            return;
        }
        let times = match now.checked_div(self.scene.wave) {
            None => 1.0,
            Some(span) if span % 2 == 0 => 0.5,
            Some(_) => 4.0,
        };
        let pause = -self.random.f64().max(1e-9).ln() / (self.scene.requests_per_second * times);
        self.schedule(
            now + (pause * SECOND as f64).min(1e12) as Time,
            Caller::Next,
        );
        if self.scene.requests_per_second == 0.0 {
            return;
        }
        let place = self.random.f64() * self.weights.last().copied().unwrap_or(0.0);
        let key = self.weights.partition_point(|sum| *sum < place);
        let mut buckets = vec![(0, key)];
        if self.scene.limits.len() > 1 {
            buckets.push((1, 0));
        }
        let cost = self.random.u64(1..=self.scene.cost_most);
        if let Some(task) = self.ask(buckets, cost, None)
            && self.random.u64(..1000) < self.scene.leave
        {
            let leaves = now + self.random.u64(..30 * MILLISECOND);
            self.schedule(leaves, Caller::Leaves(task));
        }
    }

    fn ask_alone(&mut self, lone: usize) {
        let now = self.world.borrow().now;
        if now < self.scene.lasts
            && self
                .ask(vec![(0, self.scene.keys + lone)], 1, Some(lone))
                .is_none()
        {
            self.schedule(now + 10 * MILLISECOND, Caller::Alone(lone));
        }
    }

    /// Sends a request to some gateway; `None`: it is not there.
    fn ask(&mut self, buckets: Vec<Bucket>, cost: u64, lone: Option<usize>) -> Option<AbortHandle> {
        let gateway = self.random.usize(..self.processes.len());
        let process = self.processes[gateway].as_ref()?;
        self.next_number += 1;
        let request = Request {
            buckets,
            cost,
            number: self.next_number,
        };
        let asking = Asking {
            gateway: process.id,
            limiter: process.limiter.clone(),
            clock: process.clock.clone(),
            scene: self.scene.clone(),
            world: self.world.clone(),
            record: self.record.clone(),
            alone: self.alone.clone(),
            asked: self.world.borrow().passed(),
            counts: self.counted.is_some(),
            is_decided: false,
            request,
        };
        let Asking {
            request,
            asked,
            counts,
            ..
        } = &asking;
        self.record
            .borrow_mut()
            .asked(request, *asked, *counts, &self.scene);
        Some(process.local.spawn_local(asking.run(lone)).abort_handle())
    }

    fn finish(self) -> Outcome {
        let world = self.world.borrow();
        let mut record = self.record.borrow_mut();
        let hash = record.judge(&self.scene);
        record.sums.messages = world.messages - self.counted.unwrap_or(0);
        if self.scene.story == Story::Late {
            let most = self.scene.cost_most * self.scene.limits.len() as u64;
            let known_lost = |process: &Process| process.known_lost(most);
            record.check_missing(self.processes.iter().flatten().map(known_lost).sum());
        }
        let calm = self.scene.story == Story::Calm && !self.scene.are_leased();
        if calm && record.sums.refused_wrongly > 0 {
            let wrong = record.sums.refused_wrongly;
            record.violations.push(format!(
                "{wrong} refusals although the bucket had the units"
            ));
        }
        Outcome {
            sums: record.sums.clone(),
            violations: std::mem::take(&mut record.violations),
            worst: record.worst,
            hash,
            story: self.scene.story,
        }
    }

    /// Looks at every bucket after the last request.
    fn look(&mut self) {
        let Some(process) = self.processes.iter().flatten().next() else {
            return;
        };
        for bucket in self.record.borrow().buckets() {
            let (scene, store) = (self.scene.clone(), process.limiter.shared().clone());
            let (world, record) = (self.world.clone(), self.record.clone());
            process.local.spawn_local(async move {
                let (asked, key) = (world.borrow().passed(), name(bucket));
                let limit = &scene.limits[bucket.0];
                let looked = store.peek(&[Claim::new(limit, &key, 0)]).await;
                let left = looked.map(|standings| standings[0].left);
                record.borrow_mut().looked(bucket, left.ok(), asked, limit);
            });
        }
    }
}

impl Process {
    /// The units that it has counted as lost, where a request has `most`.
    fn known_lost(&self, most: u64) -> u64 {
        let store = self.limiter.shared();
        let counters = store.counters();
        let requests = [
            &counters.draws_unknown,
            &counters.corrections_dropped,
            &counters.corrections_unconfirmed,
        ];
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let forfeited = store
            .lease_counters()
            .map(|leases| count(&leases.forfeited));
        requests.map(count).iter().sum::<u64>() * most + forfeited.unwrap_or(0)
    }

    fn set_clock(&self, now: Time) {
        let ran = (u128::from(now - self.started) * u128::from(self.speed) / 1_000_000) as u64;
        let behind = ran.saturating_sub(self.ran.get());
        self.ran.set(ran);
        self.clock.advance(Micros(behind));
    }
}

/// The key of a bucket.
fn name(bucket: Bucket) -> Vec<u8> {
    format!("key {}", bucket.1).into_bytes()
}

/// A request on its way through a gateway. Dropped before it is decided, its client has left.
struct Asking {
    gateway: u64,
    limiter: Rc<Limiter<RemoteStore>>,
    clock: Clock,
    scene: Rc<Scene>,
    world: Rc<RefCell<World<Caller>>>,
    record: Rc<RefCell<Record>>,
    alone: Rc<RefCell<Vec<Alone>>>,
    asked: Time,
    counts: bool,
    is_decided: bool,
    request: Request,
}

impl Asking {
    async fn run(mut self, lone: Option<usize>) {
        let keys: Vec<Vec<u8>> = self.request.buckets.iter().copied().map(name).collect();
        let limits = self
            .request
            .buckets
            .iter()
            .map(|(limit, _)| &*self.scene.limits[*limit]);
        let claims: Vec<Claim<'_>> = limits
            .zip(&keys)
            .map(|(limit, key)| Claim::new(limit, key, self.request.cost))
            .collect();
        let (limiter, deadline) = (self.limiter.clone(), Deadline::default());
        let deciding = limiter.decide(&claims, self.clock.now());
        let decided = match deciding.finish(&deadline).await {
            Decision::Allow(permit) => {
                let is_share = |by| matches!(by, By::LocalShare { .. });
                if permit.outcomes().iter().any(|outcome| is_share(outcome.by)) {
                    self.granted_by_share();
                    Decided::Shared
                } else {
                    Decided::Granted
                }
            }
            Decision::Deny(denied) => {
                let is_share = denied
                    .outcomes()
                    .iter()
                    .any(|outcome| outcome.is_without_store());
                Decided::Refused(denied.retry_after().filter(|_| !is_share))
            }
            Decision::Unavailable(_) => Decided::Unavailable,
        };
        self.close(decided);
        if let Some(lone) = lone {
            self.wait(lone, decided);
        }
    }

    fn granted_by_share(&self) {
        let replicas = u32::try_from(self.scene.gateways).expect("few");
        let mut record = self.record.borrow_mut();
        for bucket in &self.request.buckets {
            let share = self.scene.limits[bucket.0].algorithm.share(replicas);
            let now = self.clock.now().as_micros() - START;
            record.granted_by_share(self.gateway, *bucket, &share, now, self.request.cost);
        }
    }

    fn close(&mut self, decided: Decided) {
        self.is_decided = true;
        let answer = Answer {
            decided,
            asked: self.asked,
            now: self.world.borrow().passed(),
            gateway: self.gateway,
            counts: self.counts,
        };
        self.record
            .borrow_mut()
            .decided(&self.request, answer, &self.scene);
    }

    /// What a caller alone makes of its answer, and when it asks again.
    fn wait(&self, lone: usize, decided: Decided) {
        let mut world = self.world.borrow_mut();
        let (now, mut random) = (world.now, Rng::with_seed(self.request.number));
        let mut alone = self.alone.borrow_mut();
        let last = &mut alone[lone];
        let was_promised = last.until > 0 && world.disturbed < last.refused_at && !last.is_unsure;
        let is_granted = decided == Decided::Granted;
        // (A share keeps no promise of the store.)
        if was_promised && matches!(decided, Decided::Granted | Decided::Refused(Some(_))) {
            let words = || {
                format!(
                    "caller alone {lone}, refused at {} until {}, at {now}: {decided:?}",
                    last.refused_at, last.until
                )
            };
            self.record
                .borrow_mut()
                .waited(words, is_granted, last.is_early);
        }
        let again = match decided {
            Decided::Refused(Some(_)) if last.is_early => {
                last.is_early = false;
                last.until
            }
            Decided::Refused(Some(wait)) => {
                (last.refused_at, last.until) = (now, now + wait.0);
                // Its wait may be as much too long as messages take and clocks differ.
                let too_long = 4 * self.scene.delay.1 + wait.0 / 500 + 2 * MILLISECOND;
                let is_exact = self.scene.story == Story::Calm && !self.scene.are_leased();
                let early = last.until.saturating_sub(too_long);
                last.is_early = is_exact && early > now && random.bool();
                if last.is_early { early } else { last.until }
            }
            Decided::Granted => {
                last.until = 0;
                now + random.u64(..3 * MILLISECOND)
            }
            _ => {
                // Units may come back, or be charged, at any time from now on.
                (last.until, last.is_unsure) = (0, true);
                now + random.u64(..100 * MILLISECOND)
            }
        };
        world.at(again, Event::Other(Caller::Alone(lone)));
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.is_decided {
            self.close(Decided::Left);
        }
    }
}
