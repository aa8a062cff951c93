//! Two gateways on one store, each also with buckets of its own, and what they know of the overrides of one key.

use std::io::Cursor;
use std::sync::Arc;

use tollgate_limit::{Algorithm, Claim, Limit, Micros, Placement, Terms, Timestamp};
use tollgate_limiter::{Deadline, Decision, Effect, Limiter, Override};
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

use crate::algorithms::Pair;
use crate::allowance::{Allowance, Numbers, UNIT};
use crate::invariants::{bucket, limit};
use crate::random::START;
use crate::server::Server;

/// The limits' indices.
pub(crate) const SHARED: usize = 0;
pub(crate) const LOCAL: usize = 1;
pub(crate) const BOTH: [usize; 2] = [SHARED, LOCAL];

/// The key that has overrides.
pub(crate) const KEY: &[u8] = b"k";

/// An override as a gateway knows it, also after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) effect: Effect,
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
}

pub(crate) struct Gateway {
    pub(crate) limiter: Limiter<Server>,
    pub(crate) limits: Vec<Arc<Limit>>,
    pub(crate) own: [Numbers; 2],
    pub(crate) known: [Option<Known>; 2],
}

/// A bucket of the traced key, and what a caller who is refused can rely on.
pub(crate) struct Traced {
    pub(crate) allowance: Allowance,
    /// The moment at which a refused request was told to come back, while nothing has changed.
    pub(crate) due: Option<Timestamp>,
    /// When it was found empty under these numbers, if nothing has changed since.
    pub(crate) empty: Option<(Timestamp, Numbers)>,
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) server: Arc<Server>,
    pub(crate) gateways: [Gateway; 2],
    /// The override of the shared limit as the store has it.
    pub(crate) set: Option<Known>,
    /// The shared bucket, and that of each gateway.
    pub(crate) traced: [Traced; 3],
    /// The same of a key without overrides, by the definition.
    pub(crate) other: [Pair; 3],
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) history: Vec<String>,
}

fn terms(numbers: Numbers, index: usize) -> Terms {
    Terms {
        shared: index == SHARED,
        ..bucket(numbers.rate, Micros(UNIT), numbers.burst)
    }
}

pub(crate) fn limits(own: [Numbers; 2], memory: usize) -> Vec<Arc<Limit>> {
    let made = |index: usize| {
        let algorithm = Algorithm::new(&terms(own[index], index)).expect("representable");
        Arc::new(Limit {
            placement: [Placement::Shared, Placement::Local][index],
            resettable: true,
            memory,
            ..limit(index, algorithm)
        })
    };
    BOTH.map(made).to_vec()
}

/// The bucket of a limit in a gateway.
pub(crate) fn place(gateway: usize, index: usize) -> usize {
    if index == SHARED { 0 } else { 1 + gateway }
}

impl World {
    pub(crate) fn new() -> Self {
        let own = Numbers { rate: 1, burst: 10 };
        let now = Timestamp::from_micros(START);
        let clock = Clock::manual(now);
        let server = Arc::new(Server::new(clock.clone()));
        let gateway = |_| {
            let limits = limits([own; 2], 1 << 16);
            let limiter =
                Limiter::new(&limits, Arc::clone(&server), clock.clone(), ColdStart::Full);
            limiter.name_buckets_by(b"of the process");
            Gateway {
                limiter,
                limits,
                own: [own; 2],
                known: [None; 2],
            }
        };
        Self {
            gateways: [0, 1].map(gateway),
            traced: [0, 1, 2].map(|_| Traced {
                allowance: Allowance::new(own, now),
                due: None,
                empty: None,
            }),
            other: [0, 1, 2]
                .map(|bucket| Pair::new(terms(own, bucket.min(1))).expect("representable")),
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime"),
            history: Vec::new(),
            set: None,
            clock,
            server,
        }
    }

    pub(crate) fn in_force(&self, gateway: usize, index: usize) -> Option<Known> {
        let now = self.clock.now();
        self.gateways[gateway].known[index].filter(|known| known.until > now)
    }

    /// The numbers that a gateway applies. A block, or no limit, leaves the bucket alone.
    pub(crate) fn numbers(&self, gateway: usize, index: usize) -> Numbers {
        let own = self.gateways[gateway].own[index];
        match self.in_force(gateway, index).map(|known| known.effect) {
            Some(Effect::Numbers { rate, burst }) => {
                // A burst that is not written is the number of the rate.
                let follows = rate.filter(|_| own.burst == own.rate);
                Numbers {
                    rate: rate.map_or(own.rate, |rate| rate.amount),
                    burst: burst.unwrap_or(follows.map_or(own.burst, |rate| rate.amount)),
                }
            }
            _ => own,
        }
    }

    /// The numbers that gateways apply to the bucket of a limit in this one.
    pub(crate) fn applied(&self, gateway: usize, index: usize) -> Vec<Numbers> {
        match index {
            SHARED => vec![self.numbers(0, SHARED), self.numbers(1, SHARED)],
            _ => vec![self.numbers(gateway, index)],
        }
    }

    /// Something has changed for a limit in a gateway.
    pub(crate) fn changed(&mut self, gateway: usize, index: usize) {
        let traced = &mut self.traced[place(gateway, index)];
        (traced.empty, traced.due) = (None, None);
    }

    /// Sets an override, or lifts it, by a gateway.
    pub(crate) fn set(&mut self, gateway: usize, index: usize, known: Option<Known>) {
        if index == SHARED {
            self.set = known;
        }
        self.learn(gateway, index, known);
    }

    /// What a gateway knows of an override from now on.
    pub(crate) fn learn(&mut self, gateway: usize, index: usize, known: Option<Known>) {
        self.gateways[gateway].known[index] = known;
        self.put(gateway);
        self.changed(gateway, index);
    }

    pub(crate) fn put(&self, gateway: usize) {
        let Gateway {
            limiter,
            limits,
            known,
            ..
        } = &self.gateways[gateway];
        limiter.put_overrides(BOTH.into_iter().filter_map(|index| {
            let known = known[index]?;
            Some(Override {
                limit: Arc::clone(&limits[index].name),
                placement: limits[index].placement,
                bucket: limiter.bucket_hash(&limits[index], KEY)?,
                effect: known.effect,
                since: known.since,
                until: known.until,
            })
        }));
    }

    pub(crate) fn check(
        &self,
        gateway: usize,
        index: usize,
        key: &[u8],
    ) -> Result<(), Option<Micros>> {
        let Gateway {
            limiter, limits, ..
        } = &self.gateways[gateway];
        let claims = [Claim::new(&limits[index], key, 1)];
        let (deciding, deadline) = (
            limiter.decide(&claims, self.clock.now()),
            Deadline::default(),
        );
        match self.runtime.block_on(deciding.finish(&deadline)) {
            Decision::Allow(mut permit) => {
                permit.forwarded();
                Ok(())
            }
            Decision::Deny(denied) => Err(denied.retry_after()),
            Decision::Unavailable(error) => panic!("{error:?}"),
        }
    }

    pub(crate) fn restart(&mut self, gateway: usize) {
        self.history
            .push(format!("{:?} {gateway} restart", self.clock.now()));
        let one = &mut self.gateways[gateway];
        let mut file = Vec::new();
        one.limiter
            .save(&mut file)
            .expect("memory takes everything");
        one.limiter = Limiter::restored(
            &one.limits,
            Arc::clone(&self.server),
            self.clock.clone(),
            Cursor::new(file),
        )
        .expect("a good snapshot")
        .0;
        one.limiter.name_buckets_by(b"of the process");
        // It finds what is in force, and not what has ended.
        let now = self.clock.now();
        one.known = [self.set, one.known[LOCAL]].map(|known| known.filter(|one| one.until > now));
        self.put(gateway);
        BOTH.into_iter()
            .for_each(|index| self.changed(gateway, index));
    }
}
