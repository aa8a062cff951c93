//! A line in which requests come, draw, settle and leave in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use proptest::prelude::*;

use super::{Bucket, Place, Reservation, Reserved, UnderWay};
use tollgate_limit::{KeyBytes, Micros, Standing, Timestamp, Verdict};

const MAX_WAIT: Micros = Micros::from_secs(9);
const CEILING: i64 = 25;

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One request, and how far it has come.
struct Request {
    cost: i64,
    place: Place,
    /// Its turn among those that joined the line; `None`: it has not.
    turn: Option<usize>,
    end: Timestamp,
    state: State,
}

enum State {
    Waiting {
        flag: Arc<Flag>,
        until: Timestamp,
    },
    /// The store has not decided yet.
    Drawing,
    Decided(Standing),
    Running(#[expect(dead_code, reason = "it is dropped")] Reservation),
}

/// The requests of one bucket, and the bucket.
struct World {
    under_way: Arc<UnderWay>,
    now: Timestamp,
    left: i64,
    requests: Vec<Request>,
    turns: usize,
    /// Calls of the store, and what may cause one.
    calls: usize,
    causes: usize,
}

fn bucket() -> Bucket {
    (Arc::from("budget"), KeyBytes::from_slice(b"team"))
}

impl World {
    fn new() -> Self {
        Self {
            under_way: Arc::default(),
            now: Timestamp::from_micros(1_000_000_000),
            left: CEILING,
            requests: Vec::new(),
            turns: 0,
            calls: 0,
            causes: 0,
        }
    }

    fn arrive(&mut self, cost: i64) {
        let units = u64::try_from(cost).expect("a cost");
        let mut place = self.under_way.place(bucket(), 0, units, MAX_WAIT);
        let state = if place.join_behind() {
            self.waits()
        } else {
            place.draw();
            State::Drawing
        };
        let turn = matches!(state, State::Waiting { .. }).then(|| self.next_turn());
        // Its first draw, and the one at the end of its wait.
        self.causes += 2;
        let end = self.now.after(MAX_WAIT);
        self.requests.push(Request {
            cost,
            place,
            turn,
            end,
            state,
        });
    }

    fn waits(&self) -> State {
        let flag = Arc::new(Flag::default());
        flag.0.store(true, Ordering::Relaxed);
        State::Waiting {
            flag,
            until: self.now,
        }
    }

    fn next_turn(&mut self) -> usize {
        self.turns += 1;
        self.turns
    }

    /// The place of the `which`th request in such a state.
    fn find(&self, which: usize, wanted: fn(&State) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.requests.len())
            .filter(|at| wanted(&self.requests[*at].state))
            .collect();
        (!found.is_empty()).then(|| found[which % found.len()])
    }

    fn decide(&mut self, at: usize) {
        let cost = self.requests[at].cost;
        let verdict = if cost <= self.left {
            self.left -= cost;
            Verdict::Allow { wait: Micros::ZERO }
        } else {
            Verdict::Deny { retry_after: None }
        };
        self.calls += 1;
        self.requests[at].state = State::Decided(Standing {
            verdict,
            left: self.left,
            reset: Micros::from_secs(1_000),
            effective: Micros::ZERO,
            window_end: Timestamp::default(),
        });
    }

    fn deliver(&mut self, at: usize) {
        let request = &mut self.requests[at];
        let State::Decided(standing) = &request.state else {
            return;
        };
        if standing.verdict.is_allow() {
            let reserved = u64::try_from(request.cost).expect("a cost");
            let running = self.under_way.reserve(bucket(), reserved, self.now);
            request.place.leave(Some((standing, self.now)));
            request.state = State::Running(running);
            let (turn, in_time) = (request.turn, self.now < request.end);
            let earlier = self.requests.iter().filter(|other| {
                matches!(other.state, State::Waiting { .. }) && turn.is_some() && other.turn < turn
            });
            assert!(
                !in_time || earlier.count() == 0,
                "a request was overtaken in the line"
            );
            return;
        }
        let waits = request.place.may_get(standing, self.now, request.end)
            && request.place.wait_for(standing, self.now);
        if !waits {
            self.requests.remove(at);
            self.causes += 1;
            return;
        }
        if request.turn.is_none() {
            self.turns += 1;
            request.turn = Some(self.turns);
        }
        self.requests[at].state = self.waits();
    }

    fn settle(&mut self, at: usize) {
        // Most of the reservation comes back, before it is dropped.
        self.left += self.requests[at].cost - 1;
        self.requests.remove(at);
        self.causes += 1;
    }

    /// Polls every request that was woken, or whose time has come.
    fn run(&mut self) {
        for request in &mut self.requests {
            let State::Waiting { flag, until } = &mut request.state else {
                continue;
            };
            if !flag.0.swap(false, Ordering::Relaxed) && self.now < *until {
                continue;
            }
            let waker = Waker::from(Arc::clone(flag));
            match request.place.due(self.now, request.end, &waker) {
                Some(due) => *until = due,
                None => {
                    request.place.draw();
                    request.state = State::Drawing;
                }
            }
        }
    }

    /// What holds whenever nothing runs.
    fn check(&self) {
        assert!(self.left >= 0, "more than the ceiling is granted");
        let waiting = self.requests.iter().filter(|one| one.turn.is_some());
        let first = waiting
            .filter(|one| !matches!(one.state, State::Running(_)))
            .min_by_key(|one| one.turn);
        if let Some(Request {
            cost,
            state: State::Waiting { .. },
            ..
        }) = first
        {
            let buckets = self.under_way.lock();
            let is_idle = buckets.by_key.get(&bucket()).is_none_or(Reserved::is_idle);
            assert!(!is_idle, "the first of the line waits for nothing");
            assert!(
                *cost > self.left,
                "the first of the line sleeps past {} units",
                self.left
            );
        }
        assert!(
            self.calls <= self.causes,
            "{} calls for {}",
            self.calls,
            self.causes
        );
    }
}

proptest! {
    #[test]
    fn line_admits_in_order_within_the_ceiling_and_misses_no_settlement(
        steps in proptest::collection::vec((0_u8..7, 0_usize..64), 1..400)
    ) {
        let mut world = World::new();
        for (step, which) in steps {
            let find = |wanted| world.find(which, wanted);
            match step {
                0 | 1 => world.arrive(i64::try_from(which % 12 + 1).expect("small")),
                2 => if let Some(at) = find(|state| matches!(state, State::Drawing)) { world.decide(at) },
                3 => if let Some(at) = find(|state| matches!(state, State::Decided(_))) { world.deliver(at) },
                4 => if let Some(at) = find(|state| matches!(state, State::Running(_))) { world.settle(at) },
                5 => {
                    let leaves = |state: &State| match state {
                        State::Waiting { .. } | State::Drawing => true,
                        State::Decided(standing) => !standing.verdict.is_allow(),
                        State::Running(_) => false,
                    };
                    if let Some(at) = find(leaves) {
                        world.requests.remove(at);
                        world.causes += 1;
                    }
                }
                _ => world.now = world.now.after(Micros::from_secs(1)),
            }
            world.run();
            world.check();
        }
        world.requests.clear();
        let buckets = world.under_way.lock();
        prop_assert!(buckets.by_key.is_empty() && buckets.waiting == 0, "{:?}", &*buckets);
    }
}

#[test]
fn line_has_room_for_so_many_and_no_more() {
    let under_way: Arc<UnderWay> = Arc::default();
    let running = under_way.reserve(bucket(), 20, Timestamp::default());
    let standing = Standing {
        verdict: Verdict::Deny { retry_after: None },
        left: 5,
        reset: Micros::ZERO,
        effective: Micros::ZERO,
        window_end: Timestamp::default(),
    };
    let now = Timestamp::from_micros(1);
    let places: Vec<Place> = (0..1_001)
        .map(|_| {
            let mut place = under_way.place(bucket(), 0, 6, MAX_WAIT);
            place.wait_for(&standing, now);
            place
        })
        .collect();
    assert_eq!(under_way.lock().waiting, 1_000);
    drop(places);
    drop(running);
    assert!(under_way.lock().by_key.is_empty());
}
