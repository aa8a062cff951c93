//! What a seed means: how many gateways, which limits, which traffic, and what goes wrong when.

use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{Limit, Micros, OnFailover, Placement, Terms, WhenDown, fixtures};
use tollgate_store::simulated::Kind;

/// Microseconds of virtual time.
pub type Time = u64;

pub const MILLISECOND: Time = 1_000;
pub const SECOND: Time = 1_000_000;

/// A guard that a run is without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    Nothing,
    /// The server forgets leases at once, so that buckets refill beside them.
    Count,
    /// A promoted replica keeps the mark of its data.
    Mark,
    /// What was charged for a request that was refused, or whose client left, is not given back.
    GiveBack,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// Nothing but drifting clocks: no refusal is wrong.
    Calm,
    /// Messages are late, none is lost: in the end no unit is missing.
    Late,
    /// Messages are lost, gateways are cut off, crash and stand still, the store goes down.
    Rough,
    /// As [`Story::Rough`], and the store fails over to a replica that is behind.
    FailOver,
    /// As [`Story::Rough`], where gateways decide by their shares.
    Shares,
    /// One outage of the store for all gateways, which decide by their shares.
    Outage,
    /// The store's clock is set forward and back.
    Steps,
}

const STORIES: [Story; 7] = [
    Story::Calm,
    Story::Late,
    Story::Rough,
    Story::FailOver,
    Story::Shares,
    Story::Outage,
    Story::Steps,
];

#[derive(Clone, Debug)]
pub enum Fault {
    /// A gateway and the store do not reach each other. `held`: messages arrive afterwards.
    Cut {
        gateway: usize,
        until: Time,
        held: bool,
    },
    /// The store refuses connections, and has ended those that there were.
    Down {
        until: Time,
    },
    /// The store stands still.
    Freeze {
        until: Time,
    },
    /// The replica receives what the store has.
    Copy,
    FailOver {
        step: i64,
    },
    Crash {
        gateway: usize,
        back: Time,
    },
    Stop {
        gateway: usize,
        until: Time,
    },
    /// The store's clock is set.
    Step(i64),
}

#[derive(Clone, Debug)]
pub struct Scene {
    pub seed: u64,
    pub story: Story,
    pub kind: Kind,
    pub gateways: usize,
    /// The limit of each key; if there are two, the second one is for all keys together.
    pub limits: Vec<Arc<Limit>>,
    pub keys: usize,
    /// Keys with one caller each that waits as long as it should.
    pub lone: usize,
    /// Requests of all gateways together.
    pub requests_per_second: f64,
    /// Requests come in waves: half as many in the first of two such spans, in which buckets fill, and
    /// four times as many in the second; zero: there are no waves.
    pub wave: Time,
    pub lasts: Time,
    /// How long a run goes on after its last request: the last corrections arrive.
    pub quiet: Time,
    /// From here on decisions count.
    pub from: Time,
    pub cost_most: u64,
    /// The time that a message takes, at least and at most.
    pub delay: (Time, Time),
    /// Of a thousand messages: how many take up to [`TAIL`] more, and how many are lost.
    pub tail: u64,
    pub loss: u64,
    /// Of a thousand clients: how many leave before their answer.
    pub leave: u64,
    pub faults: Vec<(Time, Fault)>,
}

/// The longest that a late message takes.
pub const TAIL: Time = 400 * MILLISECOND;

impl Scene {
    pub fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let story = STORIES[random.usize(..STORIES.len())];
        let gateways = *random
            .choice([1, 2, 2, 3, 4, 4, 8, 8, 16, 64].iter())
            .expect("some");
        let shares = matches!(story, Story::Shares | Story::Outage);
        // A correction that is sent again after a fail-over may be made twice: the book says it.
        let sql = random.bool() && story != Story::FailOver;
        // One bucket that all share, which is full between the waves of its callers.
        let is_hot = random.u8(..3) == 0;
        let burst = random.u64(20..if is_hot { 400 } else { 200 });
        let refill = match story {
            Story::Late => random.u64(60..600),
            _ if is_hot => random.u64(1..4),
            _ => random.u64(1..20),
        };
        let period = Micros(refill * SECOND);
        let each = limit("each", &terms(burst, burst, period), shares, random.bool());
        let mut limits = vec![Arc::new(each)];
        let keys = if is_hot { 1 } else { random.usize(1..20) };
        if random.u8(..3) == 0 {
            let burst = burst * keys as u64;
            let terms = terms(burst / 2, burst, period);
            let total = limit("total", &terms, shares, random.bool());
            limits.push(Arc::new(Limit { index: 1, ..total }));
        }
        let lasts = random.u64(2..4) * SECOND;
        // All together ask for up to eight times what there is.
        let asked = (burst * keys as u64 / 2).clamp(200, 1500) * random.u64(1..8) / 2;
        let mut scene = Self {
            seed,
            story,
            kind: if sql { Kind::Sql } else { Kind::Redis },
            gateways,
            limits,
            keys,
            lone: if story == Story::Late { 0 } else { 2 },
            requests_per_second: asked as f64 / 3.0,
            wave: if random.bool() {
                random.u64(SECOND / 4..SECOND)
            } else {
                0
            },
            lasts,
            quiet: if story == Story::Late { 3 * SECOND } else { 0 },
            from: 0,
            cost_most: *random.choice([1, 1, 3].iter()).expect("some"),
            delay: (random.u64(50..500), random.u64(500..4_000)),
            tail: 0,
            loss: 0,
            leave: 0,
            faults: Vec::new(),
        };
        scene.add_faults(&mut random);
        scene
    }

    fn add_faults(&mut self, random: &mut Rng) {
        let rough = matches!(self.story, Story::Rough | Story::FailOver | Story::Shares);
        if self.story == Story::Late || (rough && random.bool()) {
            self.tail = random.u64(1..80);
            self.leave = random.u64(0..80);
            for _ in 0..random.usize(..3) {
                self.fault(random, 0..3);
            }
        }
        if rough {
            self.loss = random.u64(0..40);
            for _ in 0..random.usize(..4) {
                self.fault(random, 2..6);
            }
        }
        let at = random.u64(self.lasts / 4..self.lasts / 2);
        match self.story {
            Story::FailOver => {
                let step = random.i64(-300_000..300_000);
                let lag = random.u64(0..500 * MILLISECOND);
                self.faults.push((at - lag, Fault::Copy));
                self.faults.push((at, Fault::FailOver { step }));
            }
            Story::Outage => {
                let until = at + random.u64(50 * MILLISECOND..SECOND);
                let fault = if random.bool() {
                    Fault::Down { until }
                } else {
                    Fault::Freeze { until }
                };
                self.faults.push((at, fault));
            }
            Story::Steps => {
                for _ in 0..random.u8(1..4) {
                    let by = *random
                        .choice([2_000, 400_000, 3_000_000].iter())
                        .expect("some");
                    let step = random.i64(-by..by);
                    self.faults
                        .push((random.u64(..self.lasts), Fault::Step(step)));
                }
            }
            _ => {}
        }
    }

    fn fault(&mut self, random: &mut Rng, kinds: Range<u8>) {
        let (at, gateway) = (random.u64(..self.lasts), random.usize(..self.gateways));
        let until = at + random.u64(5 * MILLISECOND..700 * MILLISECOND);
        let fault = match random.u8(kinds) {
            0 => Fault::Cut {
                gateway,
                until,
                held: true,
            },
            1 => Fault::Freeze { until },
            2 => Fault::Stop { gateway, until },
            3 => Fault::Cut {
                gateway,
                until,
                held: false,
            },
            4 => Fault::Crash {
                gateway,
                back: until,
            },
            _ => Fault::Down { until },
        };
        self.faults.push((at, fault));
    }

    /// Whether units may come back long after they were drawn, because an answer was late or its client gone.
    pub fn is_late(&self) -> bool {
        self.tail > 0
    }

    /// Whether every request is decided in time: no gateway stands still, and time makes no steps.
    pub fn answers_in_time(&self) -> bool {
        let stops = |(_, fault): &(Time, Fault)| {
            matches!(
                fault,
                Fault::Stop { .. } | Fault::Step(_) | Fault::FailOver { .. }
            )
        };
        !self.faults.iter().any(stops)
    }

    pub fn are_leased(&self) -> bool {
        self.limits.iter().any(|limit| limit.lease)
    }
}

/// The numbers of a token bucket in a store.
pub fn terms(amount: u64, burst: u64, period: Micros) -> Terms {
    Terms {
        burst: Some(burst),
        shared: true,
        ..fixtures::terms(tollgate_limit::Kind::TokenBucket, amount, period)
    }
}

/// A limit that a fleet shares.
pub fn limit(name: &str, terms: &Terms, shares: bool, lease: bool) -> Limit {
    let when_down = match shares {
        true => WhenDown::LocalShare,
        false => WhenDown::Refuse,
    };
    Limit {
        placement: Placement::Shared,
        when_down,
        on_failover: OnFailover::Drain,
        lease,
        ..fixtures::limit(name, terms)
    }
}
