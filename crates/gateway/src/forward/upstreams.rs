//! The upstreams on this worker, and the choice of a server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::balance::Reach;
use super::members::{Members, Roster, bit};
use super::server::ServerState;
use super::upstream_health::UpstreamHealth;
use super::{ForwardError, balance};
use tollgate_policy::upstream::{Balance, Upstream};

pub(super) struct UpstreamState {
    pub(super) upstream: Arc<Upstream>,
    pub(super) members: Rc<Members>,
    next: Cell<usize>,
    /// The retry budget: each request deposits one, each retry withdraws five.
    budget: Cell<u32>,
}

#[derive(Default)]
pub(super) struct Upstreams {
    /// Keyed by the address of the policy's upstream, which each state keeps alive.
    known: RefCell<hashbrown::HashMap<usize, Rc<UpstreamState>>>,
    health: UpstreamHealth,
}

impl Upstreams {
    pub(super) fn new(health: UpstreamHealth) -> Self {
        Self {
            known: RefCell::default(),
            health,
        }
    }

    /// The state of `upstream`, created on first use. An upstream that a reload left unchanged
    /// keeps its connections.
    pub(super) fn state(
        &self,
        upstream: &Arc<Upstream>,
    ) -> Result<Rc<UpstreamState>, ForwardError> {
        let place = Arc::as_ptr(upstream).addr();
        if let Some(state) = self.known.borrow().get(&place) {
            return Ok(Rc::clone(state));
        }
        let mut known = self.known.borrow_mut();
        let same = known.values().find(|state| *state.upstream == **upstream);
        let members = match same {
            Some(same) => Rc::clone(&same.members),
            None => Members::new(upstream, &self.health)?,
        };
        let state = Rc::new(UpstreamState {
            upstream: Arc::clone(upstream),
            members,
            next: Cell::new(fastrand::usize(..)),
            budget: Cell::new(BUDGET_MAX),
        });
        known.retain(|_, state| Arc::strong_count(&state.upstream) > 1);
        known.insert(place, Rc::clone(&state));
        Ok(state)
    }

    pub(super) fn for_each(&self, mut each: impl FnMut(&ServerState)) {
        for state in self.known.borrow().values() {
            for server in &state.members.now().servers {
                each(server);
            }
        }
    }
}

impl UpstreamState {
    /// Records a first attempt: a fifth of them may be retried, so that retries do not overload an
    /// upstream in trouble.
    pub(super) fn deposit(&self) {
        self.budget.set((self.budget.get() + 1).min(BUDGET_MAX));
    }

    pub(super) fn withdraw(&self) -> bool {
        let left = self.budget.get().checked_sub(5);
        self.budget.set(left.unwrap_or_else(|| self.budget.get()));
        left.is_some()
    }

    /// Picks a server of `roster` for a request of the caller `hash`. While there are others, it
    /// picks no server in `tried` (one bit each) and none that is left out. Unless a caller's
    /// server is fixed by its identity, a server with room is preferred to one where the request
    /// would wait.
    pub(super) fn pick(&self, roster: &Roster, hash: u64, tried: u64) -> Option<usize> {
        let servers = &roster.servers;
        if servers.len() == 1 {
            return Some(0);
        }
        // Evaluate each server once: a slowly starting server draws its share on every call.
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
                let place = |index: usize| Reach {
                    distance: balance::distance(hash, servers[index].name_hash),
                    weight: servers[index].server.weight,
                };
                let closer = |best: usize, next: usize| {
                    let wins = place(next).is_closer(place(best));
                    if wins { next } else { best }
                };
                (0..servers.len())
                    .filter(|&index| fit(index))
                    .reduce(closer)
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

/// The budget allows up to a hundred consecutive retries without a first attempt.
const BUDGET_MAX: u32 = 500;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_fifth_of_the_requests_in_the_long_run() {
        let upstream = Arc::new(super::super::tests::upstream(([127, 0, 0, 1], 9).into()));
        let state = Upstreams::default().state(&upstream).expect("no TLS");
        let burst = (0..1000).filter(|_| state.withdraw()).count();
        assert_eq!(burst, 100, "a hundred may follow each other");
        let retried = (0..1000).filter(|_| {
            state.deposit();
            state.withdraw()
        });
        assert_eq!(retried.count(), 200);
    }
}
