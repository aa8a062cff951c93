//! A limiter in virtual time: the one that serves, on a clock that is moved by hand.
//!
//! Every bucket is in the process and begins full. A request holds its permit as long as it lasted; what its response
//! makes of the charge is settled when it ends, by the code that serves. Limits that learn from the upstream learn nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use tollgate_admission::settle::{Head, Owed};
use tollgate_limit::{Claim, Limit, Micros, Placement, Timestamp};
use tollgate_limiter::{Cause, Decision, Limiter, Permit};
use tollgate_policy::Policy;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

pub struct Simulation {
    clock: Clock,
    limits: Vec<Arc<Limit>>,
    limiter: Limiter,
    at: u64,
    /// By their ends, and those by their order.
    running: BTreeMap<(u64, u64), Running>,
    next: u64,
}

/// What came of a request, as far as its charges depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Response {
    pub status: StatusCode,
    pub cause: Cause,
    /// Bytes of its body; `None`: not known.
    pub sent: Option<u64>,
    /// Whether nothing of it is missing.
    pub whole: bool,
}

struct Running {
    permit: Permit,
    owed: Owed,
    response: Response,
}

impl Simulation {
    /// The limiter of a policy, at `start`. `memory`: the most bytes that one limit's table may take.
    pub fn new(policy: &Policy, start: Timestamp, memory: usize) -> Self {
        let clock = Clock::manual(start);
        let limits: Vec<Arc<Limit>> = policy
            .limits
            .iter()
            .map(|limit| in_process(limit, memory))
            .collect();
        let shared = Arc::new(Backend::default());
        let limiter = Limiter::new(&limits, shared, clock.clone(), ColdStart::Full);
        Self {
            clock,
            limits,
            limiter,
            at: start.as_micros(),
            running: BTreeMap::new(),
            next: 0,
        }
    }

    /// Lets time pass up to `moment`; what ends until then ends.
    pub fn advance_to(&mut self, moment: u64) {
        while let Some(first) = self.running.first_entry()
            && first.key().0 <= moment
        {
            let ((end, _), running) = first.remove_entry();
            self.turn(end);
            running.end();
        }
        self.turn(moment);
    }

    fn turn(&mut self, moment: u64) {
        // The clock of a limiter never steps back.
        self.clock.advance(Micros(moment.saturating_sub(self.at)));
        self.at = self.at.max(moment);
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn limit(&self, index: usize) -> &Arc<Limit> {
        &self.limits[index]
    }

    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Decides about a request now. `None`: a limit cannot be decided in the process.
    pub fn check(&self, claims: &[Claim<'_>]) -> Option<Decision> {
        self.limiter.decide(claims, self.clock.now()).at_once()
    }

    /// An admitted request goes on, and ends after `lasting` microseconds, its wait for a token not counted.
    pub fn hold(&mut self, mut permit: Permit, owed: Owed, lasting: u64, response: Response) {
        permit.forwarded();
        let held = permit.hold().0;
        let end = self.at.saturating_add(held).saturating_add(lasting);
        let running = Running {
            permit,
            owed,
            response,
        };
        if end <= self.at {
            return running.end();
        }
        self.running.insert((end, self.next), running);
        self.next += 1;
    }
}

impl Running {
    fn end(mut self) {
        let headers = HeaderMap::new();
        let response = self.response;
        let head = Head {
            cause: response.cause,
            status: response.status,
            headers: &headers,
            unreadable: false,
        };
        self.owed.on_head(&mut self.permit, head);
        if let Some(sent) = response.sent {
            self.owed.on_end(&mut self.permit, sent, response.whole);
        }
    }
}

fn in_process(limit: &Arc<Limit>, memory: usize) -> Arc<Limit> {
    Arc::new(Limit {
        placement: Placement::Local,
        memory: limit.memory.min(memory),
        ..Limit::clone(limit)
    })
}
