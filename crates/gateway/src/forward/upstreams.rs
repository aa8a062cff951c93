//! The upstreams as this worker knows them, and the choice of a server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::members::{Members, Roster, bit};
use super::server::ServerState;
use super::upstream_health::UpstreamHealth;
use super::{ForwardError, balance};
use tollgate_policy::upstream::{Balance, Upstream};

/// An upstream with its servers' connections on this worker.
#[derive(Debug)]
pub(super) struct UpstreamState {
    /// As the policy describes it.
    pub(super) upstream: Arc<Upstream>,
    /// Its servers.
    pub(super) members: Rc<Members>,
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
    fleet: UpstreamHealth,
}

impl Upstreams {
    /// None yet; how servers fare is shared with `fleet`.
    pub(super) fn new(fleet: UpstreamHealth) -> Self {
        Self {
            known: RefCell::default(),
            fleet,
        }
    }

    /// The state of `upstream`, made at first sight. An upstream that a reload left unchanged keeps its connections.
    ///
    /// # Errors
    /// When TLS towards it cannot be set up.
    pub(super) fn state(
        &self,
        upstream: &Arc<Upstream>,
    ) -> Result<Rc<UpstreamState>, ForwardError> {
        let place = Arc::as_ptr(upstream).addr();
        if let Some(state) = self.known.borrow().get(&place) {
            return Ok(Rc::clone(state));
        }
        let mut known = self.known.borrow_mut();
        let state = match known.values().find(|state| *state.upstream == **upstream) {
            Some(same) => Rc::new(UpstreamState {
                upstream: Arc::clone(upstream),
                members: Rc::clone(&same.members),
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
            for server in &state.members.now().servers {
                each(server);
            }
        }
    }
}

impl UpstreamState {
    fn new(upstream: &Arc<Upstream>, fleet: &UpstreamHealth) -> Result<Self, ForwardError> {
        Ok(Self {
            upstream: Arc::clone(upstream),
            members: Members::new(upstream, fleet)?,
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

    /// One of `roster` for a request of the caller `hash`, none of those in `tried` (a bit each) while there are others,
    /// and none that is left out while there are others. Where a caller's server is not fixed by its identity, one that
    /// has room goes before one where the request would wait.
    pub(super) fn pick(&self, roster: &Roster, hash: u64, tried: u64) -> Option<usize> {
        let servers = &roster.servers;
        if servers.len() == 1 {
            return Some(0);
        }
        // Each is asked once: one that starts slowly draws its share each time that it is asked.
        let fit: SmallVec<[bool; 16]> = servers
            .iter()
            .enumerate()
            .map(|(i, server)| tried & bit(i) == 0 && server.record.is_fit())
            .collect();
        let bound = self.upstream.balance == Balance::IdentityHash;
        let roomy = |index: usize| fit[index] && (bound || servers[index].pool.has_room());
        let untried = |index: usize| tried & bit(index) == 0;
        self.choose(roster, hash, roomy)
            .or_else(|| self.choose(roster, hash, |index| fit[index]))
            .or_else(|| self.choose(roster, hash, untried))
            .or_else(|| self.choose(roster, hash, |_| true))
    }

    fn choose(&self, roster: &Roster, hash: u64, fit: impl Fn(usize) -> bool) -> Option<usize> {
        let servers = &roster.servers;
        match self.upstream.balance {
            Balance::RoundRobin => self.in_turn(roster, fit),
            Balance::LeastRequests => {
                let (mut loads, mut weights) = (0, 0);
                for (_, server) in servers.iter().enumerate().filter(|(index, _)| fit(*index)) {
                    loads += server.pool.load();
                    weights += u64::from(server.server.weight);
                }
                self.in_turn(roster, |index| {
                    let server = &servers[index];
                    fit(index)
                        && balance::is_below_share(
                            server.pool.load(),
                            server.server.weight,
                            loads,
                            weights,
                        )
                })
            }
            Balance::IdentityHash => {
                let place = |index: usize| {
                    let server = &servers[index];
                    (
                        balance::distance(hash, server.name_hash),
                        server.server.weight,
                    )
                };
                let fit = (0..servers.len()).filter(|&index| fit(index));
                let placed = fit.map(|index| (index, place(index)));
                placed
                    .reduce(|best, next| {
                        if balance::is_closer(next.1, best.1) {
                            next
                        } else {
                            best
                        }
                    })
                    .map(|best| best.0)
            }
        }
    }

    fn in_turn(&self, roster: &Roster, fit: impl Fn(usize) -> bool) -> Option<usize> {
        let (start, turns) = (self.next.get(), &roster.turns);
        let turn = |step: usize| turns[start.wrapping_add(step) % turns.len()];
        let step = (0..turns.len()).find(|&step| fit(turn(step)))?;
        self.next.set(start.wrapping_add(step + 1));
        Some(turn(step))
    }
}

/// A hundred retries may follow each other without a first attempt.
const BUDGET_MAX: u32 = 500;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_fifth_of_the_requests_in_the_long_run() {
        let upstream = Arc::new(super::super::tests::upstream(([127, 0, 0, 1], 9).into()));
        let state = UpstreamState::new(&upstream, &UpstreamHealth::default()).expect("no TLS");
        let burst = (0..1000).filter(|_| state.withdraw()).count();
        assert_eq!(burst, 100, "a hundred may follow each other");
        let retried = (0..1000).filter(|_| {
            state.deposit();
            state.withdraw()
        });
        assert_eq!(retried.count(), 200);
    }
}
