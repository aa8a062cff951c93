//! Penalties by their definition: after so many refusals by a gateway in a span it blocks a key for a time.
//! While penalties begin, end and are lifted, overrides hold, and gateways start again, every response is the one that the
//! definition gives, and no blocked key is charged.

use std::io::Cursor;
use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{Algorithm, Claim, Limit, Micros, Penalty, Placement, Timestamp, Verdict};
use tollgate_limiter::{Deadline, Decision, Effect, Limiter, Override};
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

use crate::algorithms::Pair;
use crate::gateways::{BOTH, SHARED, place};
use crate::invariants::{bucket, limit};
use crate::random::{self, START};
use crate::server::Server;

const KEY: &[u8] = b"k";
const SECOND: u64 = 1_000_000;

/// The refusals that a gateway has counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    until: Timestamp,
    refusals: u32,
}

/// A block that a gateway knows.
#[derive(Clone, Copy, Debug)]
struct Known {
    until: Timestamp,
    admits: Timestamp,
}

/// What a gateway knows of the key under each limit.
#[derive(Clone, Copy, Debug, Default)]
struct Knows {
    counted: [Option<Counted>; 2],
    block: [Option<Known>; 2],
}

struct World {
    clock: Clock,
    server: Arc<Server>,
    limits: Vec<Arc<Limit>>,
    penalty: Penalty,
    gateways: [Limiter<Server>; 2],
    knows: [Knows; 2],
    /// The shared bucket, and that of each gateway.
    buckets: [Pair; 3],
    /// The override of the shared limit and of each gateway's own, and its end.
    overrides: [Option<(Effect, Timestamp)>; 3],
    runtime: tokio::runtime::Runtime,
    history: Vec<String>,
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        let span = |rng: &mut Rng| Micros(random::pick(rng, &[1, 3, 20]) * SECOND);
        let penalty = Penalty {
            refusals: rng.u32(1..5),
            span: span(rng),
            block: span(rng),
        };
        let period = Micros(random::pick(rng, &[SECOND / 2, 2 * SECOND, 10 * SECOND]));
        let terms = |index: usize| tollgate_limit::Terms {
            shared: index == SHARED,
            ..bucket(1, period, 2)
        };
        let made = |index: usize| {
            let algorithm = Algorithm::new(&terms(index)).expect("representable");
            Arc::new(Limit {
                placement: [Placement::Shared, Placement::Local][index],
                resettable: true,
                penalty: Some(penalty),
                ..limit(index, algorithm)
            })
        };
        let limits = BOTH.map(made).to_vec();
        let clock = Clock::manual(Timestamp::from_micros(START));
        let server = Arc::new(Server::new(clock.clone()));
        let gateway = || Limiter::new(&limits, Arc::clone(&server), clock.clone(), ColdStart::Full);
        Self {
            gateways: [gateway(), gateway()],
            knows: [Knows::default(); 2],
            buckets: [0, 1, 1].map(|index| Pair::new(terms(index)).expect("representable")),
            overrides: [None; 3],
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime"),
            history: vec![format!("{penalty:?} {period:?}")],
            clock,
            server,
            limits,
            penalty,
        }
    }

    /// When the bucket can pay next.
    fn due(&self, place: usize) -> Timestamp {
        let now = self.clock.now();
        match self.buckets[place].expected(1, now) {
            Verdict::Deny {
                retry_after: Some(wait),
            } => now.after(wait),
            _ => now,
        }
    }

    /// A gateway blocks the key; returns the wait.
    fn block(&mut self, gateway: usize, index: usize, until: Timestamp) -> Micros {
        let now = self.clock.now();
        let admits = until.max(self.due(place(gateway, index)));
        let known = &mut self.knows[gateway];
        known.counted[index] = None;
        known.block[index] = Some(Known { until, admits });
        admits.since(now)
    }

    /// What the definition says to a request.
    fn expected(&mut self, gateway: usize, index: usize) -> Result<(), Micros> {
        let now = self.clock.now();
        let place = place(gateway, index);
        let own = self.overrides[place].filter(|(_, until)| *until > now);
        if let Some((Effect::Unlimited, _)) = own {
            return Ok(());
        }
        let operators = match own {
            Some((Effect::Block, until)) => Some(until),
            _ => None,
        };
        let known = self.knows[gateway].block[index].filter(|known| known.until > now);
        if let Some(admits) = operators.max(known.map(|known| known.admits)) {
            return Err(admits.since(now));
        }
        let retry_after = match self.buckets[place].draw(1, now) {
            Verdict::Allow { .. } => return Ok(()),
            Verdict::Deny { retry_after } => retry_after.expect("a bucket that fills"),
        };
        let penalty = self.penalty;
        let known = &mut self.knows[gateway];
        let fresh = Counted {
            until: now.after(penalty.span),
            refusals: 0,
        };
        // What is known of a block is meaningless after its end.
        known.block[index] = None;
        let counted = known.counted[index].filter(|counted| counted.until > now);
        let mut counted = counted.unwrap_or(fresh);
        counted.refusals += 1;
        known.counted[index] = Some(counted);
        if counted.refusals < penalty.refusals {
            return Err(retry_after);
        }
        let until = now.after(penalty.block);
        Err(self.block(gateway, index, until))
    }

    fn ask(&mut self, gateway: usize, index: usize) {
        let now = self.clock.now();
        let expected = self.expected(gateway, index);
        let claims = [Claim::new(&self.limits[index], KEY, 1)];
        let (deciding, deadline) = (
            self.gateways[gateway].decide(&claims, now),
            Deadline::default(),
        );
        let decided = match self.runtime.block_on(deciding.finish(&deadline)) {
            Decision::Allow(mut permit) => {
                permit.forwarded();
                Ok(())
            }
            Decision::Deny(denied) => Err(denied.retry_after().expect("a wait")),
            Decision::Unavailable(error) => panic!("{error:?}"),
        };
        self.history
            .push(format!("{now:?} {gateway} asks {index}: {decided:?}"));
        assert_eq!(decided, expected, "{:#?}", self.history);
    }

    fn lift(&mut self, gateway: usize, index: usize) {
        self.gateways[gateway].lift_penalty(&self.limits[index], KEY);
        self.knows[gateway].block[index] = None;
        self.knows[gateway].counted[index] = None;
    }

    fn put(&self) {
        let now = self.clock.now();
        for (gateway, limiter) in self.gateways.iter().enumerate() {
            limiter.put_overrides(BOTH.into_iter().filter_map(|index| {
                let (effect, until) =
                    self.overrides[place(gateway, index)].filter(|(_, until)| *until > now)?;
                Some(Override {
                    limit: Arc::clone(&self.limits[index].name),
                    placement: self.limits[index].placement,
                    bucket: limiter.bucket_hash(&self.limits[index], KEY)?,
                    effect,
                    since: now,
                    until,
                })
            }));
        }
    }

    fn restart(&mut self, gateway: usize) {
        let mut file = Vec::new();
        self.gateways[gateway]
            .save(&mut file)
            .expect("memory takes everything");
        let restored = Limiter::restored(
            &self.limits,
            Arc::clone(&self.server),
            self.clock.clone(),
            Cursor::new(file),
        );
        self.gateways[gateway] = restored.expect("a good snapshot").0;
        self.put();
    }

    fn act(&mut self, rng: &mut Rng) {
        let (gateway, index) = (rng.usize(..2), rng.usize(..2));
        let now = self.clock.now();
        let what = match rng.u8(..4) {
            0 => {
                self.lift(gateway, index);
                "lifts"
            }
            1 => {
                self.restart(gateway);
                "starts again"
            }
            2 => {
                let effect = random::pick(rng, &[Effect::Unlimited, Effect::Block]);
                let until = now.after(Micros(random::pick(rng, &[1, 5]) * SECOND));
                self.overrides[place(gateway, index)] = Some((effect, until));
                self.put();
                "overrides"
            }
            _ => {
                self.overrides[place(gateway, index)] = None;
                self.put();
                "lifts the override of"
            }
        };
        self.history.push(format!(
            "{now:?} {gateway} {what} {index}: {:?}",
            self.overrides
        ));
    }
}

#[test]
fn penalties_of_two_gateways_block_exactly_as_they_are_defined() {
    random::seeds(150, |rng| {
        let mut world = World::new(rng);
        for _ in 0..120 {
            if rng.u8(..10) == 0 {
                world.act(rng);
            }
            let (gateway, index) = (rng.usize(..2), rng.usize(..2));
            for _ in 0..random::pick(rng, &[1, 1, 6]) {
                world.ask(gateway, index);
            }
            let pause = random::pick(rng, &[0, 1, 300_000, SECOND, 5 * SECOND]);
            world.clock.advance(Micros(pause));
        }
    });
}
