//! The upstreams as this worker knows them, and the choice of a server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio_rustls::TlsConnector;

use super::fitness::Fleet;
use super::server::ServerState;
use super::{ForwardError, probe, tls};
use crate::policy::upstream::{Balance, Upstream};

/// An upstream with its servers' connections on this worker.
#[derive(Debug)]
pub(super) struct UpstreamState {
    /// As the policy describes it.
    pub(super) upstream: Arc<Upstream>,
    /// Its servers.
    pub(super) servers: Vec<Rc<ServerState>>,
    /// Servers' indices by weight, for taking turns.
    turns: Vec<usize>,
    next: Cell<usize>,
    /// What is left for retries: each request pays in, each retry takes out five times that.
    budget: Cell<u32>,
}

/// Every upstream this worker has met.
#[derive(Debug, Default)]
pub(super) struct Upstreams {
    /// By the address of the policy's upstream, which each state keeps alive.
    known: RefCell<hashbrown::HashMap<usize, Rc<UpstreamState>>>,
    /// How their servers fare, as all workers know it.
    fleet: Fleet,
}

impl Upstreams {
    /// None yet; how servers fare is shared with `fleet`.
    pub(super) fn new(fleet: Fleet) -> Self {
        Self { known: RefCell::default(), fleet }
    }

    /// The state of `upstream`, made at first sight. An upstream that a reload left unchanged keeps its connections.
    ///
    /// # Errors
    /// When TLS towards it cannot be set up.
    pub(super) fn state(&self, upstream: &Arc<Upstream>) -> Result<Rc<UpstreamState>, ForwardError> {
        let place = Arc::as_ptr(upstream).addr();
        if let Some(state) = self.known.borrow().get(&place) {
            return Ok(Rc::clone(state));
        }
        let mut known = self.known.borrow_mut();
        let state = match known.values().find(|state| *state.upstream == **upstream) {
            Some(same) => Rc::new(UpstreamState {
                upstream: Arc::clone(upstream),
                servers: same.servers.clone(),
                turns: same.turns.clone(),
                next: Cell::new(0),
                budget: Cell::new(BUDGET_MAX),
            }),
            None => Rc::new(UpstreamState::new(upstream, &self.fleet)?),
        };
        // Upstreams of policies that nobody holds any more.
        known.retain(|_, state| Arc::strong_count(&state.upstream) > 1);
        known.insert(place, Rc::clone(&state));
        Ok(state)
    }

    /// Runs `each` over every server.
    pub(super) fn for_each(&self, mut each: impl FnMut(&ServerState)) {
        for state in self.known.borrow().values() {
            for server in &state.servers {
                each(server);
            }
        }
    }
}

impl UpstreamState {
    fn new(upstream: &Arc<Upstream>, fleet: &Fleet) -> Result<Self, ForwardError> {
        let speaks_tls = upstream.servers.iter().any(|server| server.tls.is_some());
        let connector = if speaks_tls {
            let config = tls::client_config(&upstream.tls, upstream.http2).map_err(ForwardError::Tls)?;
            Some(TlsConnector::from(config))
        } else {
            None
        };
        let servers = upstream
            .servers
            .iter()
            .map(|server| {
                let fitness = fleet.fitness(upstream, server);
                ServerState::new(server, upstream, connector.as_ref(), fitness).map(Rc::new)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(health) = &upstream.health {
            for server in &servers {
                tokio::task::spawn_local(probe::run(Rc::downgrade(server), health.clone()));
            }
        }
        Ok(Self {
            upstream: Arc::clone(upstream),
            turns: turns(&upstream.servers.iter().map(|server| server.weight).collect::<Vec<_>>()),
            servers,
            next: Cell::new(fastrand::usize(..)),
            budget: Cell::new(BUDGET_MAX),
        })
    }

    /// A first attempt: a fifth of them may be retried, so that an upstream in trouble is not drowned in retries.
    pub(super) fn deposit(&self) {
        self.budget.set((self.budget.get() + 1).min(BUDGET_MAX));
    }

    /// Whether another attempt may be made.
    pub(super) fn withdraw(&self) -> bool {
        let left = self.budget.get().checked_sub(5);
        self.budget.set(left.unwrap_or_else(|| self.budget.get()));
        left.is_some()
    }

    /// A server for a request of the caller `hash`, none of those in `tried` (a bit each) while there are others,
    /// and none that is left out while there are others.
    pub(super) fn pick(&self, hash: u64, tried: u64) -> Option<(usize, &Rc<ServerState>)> {
        if let [only] = self.servers.as_slice() {
            return Some((0, only));
        }
        let fit = |index: usize| tried & bit(index) == 0 && self.servers[index].fitness.is_fit();
        let untried = |index: usize| tried & bit(index) == 0;
        let index =
            self.choose(hash, fit).or_else(|| self.choose(hash, untried)).or_else(|| self.choose(hash, |_| true))?;
        Some((index, &self.servers[index]))
    }

    fn choose(&self, hash: u64, fit: impl Fn(usize) -> bool) -> Option<usize> {
        match self.upstream.balance {
            Balance::RoundRobin => self.in_turn(fit),
            Balance::LeastRequests => {
                let first = self.at_random(&fit)?;
                let second = self.at_random(&fit)?;
                Some(if self.cost(second) < self.cost(first) { second } else { first })
            }
            Balance::IdentityHash => (0..self.servers.len())
                .filter(|&index| fit(index))
                .max_by_key(|&index| rendezvous(hash, index, self.servers[index].server.weight)),
        }
    }

    fn in_turn(&self, fit: impl Fn(usize) -> bool) -> Option<usize> {
        let start = self.next.get();
        self.next.set(start.wrapping_add(1));
        (0..self.turns.len()).map(|step| self.turns[start.wrapping_add(step) % self.turns.len()]).find(|&i| fit(i))
    }

    fn at_random(&self, fit: &impl Fn(usize) -> bool) -> Option<usize> {
        if self.turns.is_empty() {
            return None;
        }
        let start = fastrand::usize(..self.turns.len());
        (0..self.turns.len()).map(|step| self.turns[(start + step) % self.turns.len()]).find(|&i| fit(i))
    }

    /// Requests under way per unit of weight, in comparable integers.
    fn cost(&self, index: usize) -> u64 {
        let state = &self.servers[index];
        (state.pool.load() as u64 + 1) * 1_000_000 / u64::from(state.server.weight.max(1))
    }
}

/// Indices repeated by weight, smoothly interleaved (nginx's smooth weighted round robin), weights reduced by their
/// greatest common divisor and bounded.
fn turns(weights: &[u32]) -> Vec<usize> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let mut scaled: Vec<i64> = weights.iter().map(|weight| i64::from(weight / divisor)).collect();
    let sum: i64 = scaled.iter().sum();
    if sum > TURNS_MAX {
        for weight in &mut scaled {
            *weight = (*weight * TURNS_MAX / sum).max(i64::from(*weight > 0));
        }
    }
    let sum: i64 = scaled.iter().sum();
    let mut current = vec![0_i64; scaled.len()];
    let mut order = Vec::new();
    for _ in 0..sum {
        for (level, weight) in current.iter_mut().zip(&scaled) {
            *level += weight;
        }
        let Some(best) = (0..current.len()).rev().max_by_key(|&index| current[index]) else { break };
        current[best] -= sum;
        order.push(best);
    }
    order
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The bit of a server in a set of tried ones; beyond 64 servers they share bits, and a retry may repeat one.
pub(super) const fn bit(index: usize) -> u64 {
    1 << (index % 64)
}

/// Highest random weight (Thaler and Ravishankar 1998): a server that goes moves only its own callers. A weight is
/// so many draws.
fn rendezvous(hash: u64, index: usize, weight: u32) -> u64 {
    (0..u64::from(weight.min(DRAWS_MAX))).map(|draw| mix(hash ^ mix(((index as u64) << 32) | draw))).max().unwrap_or(0)
}

/// SplitMix64's finaliser.
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hundred retries may follow each other without a first attempt.
const BUDGET_MAX: u32 = 500;
/// The most entries of the list of turns.
const TURNS_MAX: i64 = 4096;
/// The most draws a weight is worth under the identity hash.
const DRAWS_MAX: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_fifth_of_the_requests_in_the_long_run() {
        let upstream = Arc::new(super::super::tests::upstream(([127, 0, 0, 1], 9).into()));
        let state = UpstreamState::new(&upstream, &Fleet::default()).expect("no TLS");
        let burst = (0..1000).filter(|_| state.withdraw()).count();
        assert_eq!(burst, 100, "a hundred may follow each other");
        let retried = (0..1000).filter(|_| {
            state.deposit();
            state.withdraw()
        });
        assert_eq!(retried.count(), 200);
    }

    #[test]
    fn turns_follow_the_weights_and_interleave() {
        assert_eq!(turns(&[1, 1]), [0, 1]);
        assert_eq!(turns(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(turns(&[0, 3]), [1]);
        assert!(turns(&[u32::MAX, 1]).len() <= 4100);
    }

    #[test]
    fn a_server_that_goes_moves_only_its_own_callers() {
        let pick =
            |hash: u64, servers: &[usize]| *servers.iter().max_by_key(|&&i| rendezvous(hash, i, 1)).expect("some");
        for hash in (0..1000_u64).map(mix) {
            let all = pick(hash, &[0, 1, 2]);
            if all != 2 {
                assert_eq!(pick(hash, &[0, 1]), all);
            }
        }
    }
}
