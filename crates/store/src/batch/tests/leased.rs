//! Gateways that lease a total beside limits of each caller, on one simulated server.

use std::cell::RefCell;

use super::*;
use crate::simulated::{self, Call};
use tollgate_limit::Terms;

const TOTAL: u64 = 3000;

/// A server whose calls take a random time.
pub(super) struct Slow {
    clock: Clock,
    server: simulated::Server,
    random: fastrand::Rng,
    /// How often it was called.
    pub(super) calls: u64,
}

pub(super) type Server = Rc<RefCell<Slow>>;

pub(super) async fn call(server: &Server, batch: &Batch) -> Answer {
    let pause = server.borrow_mut().random.u32(..20);
    turns(pause).await;
    let answer = server.borrow_mut().answer(batch);
    turns(pause).await;
    answer
}

impl Slow {
    pub(super) fn new(clock: &Clock, seed: u64) -> Self {
        Self {
            clock: clock.clone(),
            server: simulated::Server::new(START),
            random: fastrand::Rng::with_seed(seed),
            calls: 0,
        }
    }

    fn answer(&mut self, batch: &Batch) -> Answer {
        self.calls += 1;
        self.server.decide(&Call::of(batch, 0), self.clock.now()).0
    }

    /// The whole units of a bucket.
    fn left(&mut self, wants: &Wants) -> u64 {
        let [wanted] = &wants[..] else {
            unreachable!("one bucket")
        };
        let batch = Batch {
            buckets: vec![(wanted.name, wanted.shape.clone())],
            ..Batch::default()
        };
        let Answer { now, before, .. } = self.answer(&batch);
        wanted
            .shape
            .standing(before[0].as_ref(), 0, now)
            .remaining()
    }
}

/// Two gateways, requests on the total alone and beside a limit that refuses half of them, in random order and at random
/// moments of the leases' lives: what was granted and what is left in the end are all units there are.
#[tokio::test]
async fn units_of_a_lease_beside_a_limit_that_refuses_come_back_to_the_last_one() {
    for seed in 0..40 {
        let clock = Clock::manual(START);
        let day = Micros::from_secs(86_400);
        let total = Limit {
            lease: true,
            ..limit(
                "total",
                &Terms {
                    burst: Some(TOTAL),
                    ..terms(Kind::TokenBucket, 1, day)
                },
            )
        };
        let each = Limit {
            index: 1,
            ..limit(
                "each",
                &Terms {
                    burst: Some(1),
                    ..terms(Kind::TokenBucket, 1, day)
                },
            )
        };
        let server: Server = Rc::new(RefCell::new(Slow::new(&clock, seed)));
        let (local, names) = (tokio::task::LocalSet::new(), Rc::new(Names::new(b"secret")));
        let granted = Rc::new(Cell::new(0));
        let mut gateways = Vec::new();
        for _ in 0..2 {
            let mut shared = LaneState::new(clock.clone(), Micros::from_secs(60), true);
            // A bucket that is in demand is leased from the first request on.
            shared.leases = Some(Arc::new(Leases::new(clock.clone(), false).with_least(1)));
            let shared = Arc::new(shared);
            local.spawn_local(lane(
                shared.clone(),
                Rc::new(Made::new(server.clone(), call)),
            ));
            gateways.push(shared);
        }
        let (total, each) = (Rc::new(total), Rc::new(each));
        let mut tasks = Vec::new();
        for task in 0..16_u64 {
            let (shared, names, clock) = (
                gateways[usize::from(task % 2 == 0)].clone(),
                names.clone(),
                clock.clone(),
            );
            let (granted, total, each) = (granted.clone(), total.clone(), each.clone());
            tasks.push(local.spawn_local(async move {
                let mut random = fastrand::Rng::with_seed(seed * 100 + task);
                shared.connected().await;
                for _ in 0..120 {
                    let caller = random.u64(..400).to_le_bytes();
                    let claims = [(&total, &b""[..]), (&each, &caller[..])];
                    let claims = claims.map(|(limit, key)| Claim::new(limit, key, 1));
                    let claims = &claims[..random.usize(1..3)];
                    let servers = Servers::one(shared.clone());
                    let drawn = servers
                        .draw(names.wants(claims), &Deadline::default())
                        .await
                        .expect("answered");
                    granted.update(|granted| granted + u64::from(drawn.granted));
                    turns(random.u32(..10)).await;
                    // All of them let some four lives of a lease pass.
                    clock.advance(Micros(random.u64(..4_000)));
                }
            }));
        }
        let gone = local.run_until(async {
            for task in tasks {
                task.await.expect("no panic");
            }
            let mut forfeited = 0;
            for shared in &gateways {
                shared.close();
                let leases = shared.leases.as_ref().expect("it leases");
                forfeited += leases.counters.forfeited.load(Ordering::Relaxed);
            }
            forfeited
        });
        let forfeited = tokio::time::timeout(Duration::from_secs(30), gone)
            .await
            .expect("answered");
        tokio::time::timeout(Duration::from_secs(30), local)
            .await
            .expect("what is left goes back");
        clock.advance(Micros::from_secs(2));
        let wants = names.wants(&[Claim::new(&total, b"", 1)]);
        let left = server.borrow_mut().left(&wants);
        // (A return that comes late by the gateway's clock may be in time by the store's, which counts to the end of a slot.)
        let kept = granted.get() + left;
        assert!(
            (TOTAL - forfeited..=TOTAL).contains(&kept),
            "SEED={seed}: {kept} of {TOTAL}, {forfeited} forfeited"
        );
        assert!(granted.get() > 100);
    }
}

#[tokio::test]
async fn leases_whose_return_is_lost_with_its_call_are_forfeited() {
    let clock = Clock::manual(START);
    let mut shared = LaneState::new(Clock::system(), Micros(1_000), true);
    shared.leases = Some(Arc::new(Leases::new(clock.clone(), false).with_least(2)));
    let shared = Arc::new(shared);
    let servers = Servers::one(shared.clone());
    let leases = shared.leases.clone().expect("just made");
    let (names, total) = (
        Names::new(b"secret"),
        Limit {
            lease: true,
            ..bucket(1000)
        },
    );
    let claim = Claim::new(&total, b"k", 1);
    shared.lanes_up.store(1, Ordering::Relaxed);
    // It is not leased yet, and left: the demand is known.
    let deadline = Deadline::default();
    for _ in 0..2 {
        let mut asked = pin!(servers.draw(names.wants(&[claim]), &deadline));
        assert!(
            asked
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
    let tasks = leases.tasks_of(10, |_| true);
    let Some(Errand::Renew(held)) = tasks.first() else {
        panic!("a lease is asked for: {tasks:?}")
    };
    let (pending, _) = held.depart(&leases);
    pending.answered(5, None, START, clock.boot());
    clock.advance(Micros(1_010_000));
    let tasks = leases.tasks_of(10, |_| true);
    let [Errand::Return(returned)] = tasks.as_slice() else {
        panic!("one that goes back: {tasks:?}")
    };
    assert_eq!(returned.back.left, 5);
    let work = super::super::queue::Work {
        asks: Vec::new(),
        corrections: Vec::new(),
        tasks,
    };
    let never = Made::new((), async |(), _: &Batch| std::future::pending().await);
    let outcome = flush(&shared, &never, &(), work).await;
    assert!(outcome.is_err());
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 5);
    clock.advance(Micros(10_000));
    assert!(
        leases.tasks_of(10, |_| true).is_empty(),
        "it is not sent twice"
    );
}

/// A request that took units of a lease beside another limit, whose call failed.
#[tokio::test]
async fn leased_units_beside_a_call_that_may_have_charged_are_spent_and_others_come_back() {
    for (trouble, left) in [
        (Trouble::Lost as fn(String) -> Trouble, 4),
        (Trouble::Refused, 5),
    ] {
        let mut shared = LaneState::new(Clock::system(), Micros::from_secs(60), true);
        shared.leases = Some(Arc::new(
            Leases::new(shared.clock.clone(), false).with_least(1),
        ));
        shared.lanes_up.store(1, Ordering::Relaxed);
        let shared = Arc::new(shared);
        let (servers, names) = (Servers::one(shared.clone()), Names::new(b"secret"));
        let leases = shared.leases.clone().expect("just made");
        let total = Limit {
            lease: true,
            ..bucket(1000)
        };
        let each = Limit {
            index: 1,
            ..limit("each", &terms(Kind::TokenBucket, 1, Micros::from_secs(60)))
        };
        let claims = [Claim::new(&total, b"all", 1), Claim::new(&each, b"me", 1)];
        let deadline = Deadline::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut first = Box::pin(servers.draw(names.wants(&claims), &deadline));
        assert!(first.as_mut().poll(&mut context).is_pending());
        drop(first);
        let tasks = leases.tasks_of(10, |_| true);
        let [Errand::Renew(held)] = tasks.as_slice() else {
            panic!("a lease is asked for: {tasks:?}")
        };
        let (pending, _) = held.depart(&leases);
        pending.answered(5, None, START, shared.clock.boot());
        let mut drawn = pin!(servers.draw(names.wants(&claims), &deadline));
        assert!(drawn.as_mut().poll(&mut context).is_pending());
        let work = shared.take().expect("the other limit");
        let outcome = flush(&shared, &super::failing::Failing(trouble), &(), work).await;
        assert!(outcome.is_err() && drawn.await.is_err());
        let alone = || {
            let mut drawn = pin!(servers.draw(names.wants(&claims[..1]), &deadline));
            drawn.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        let there = (0..9).take_while(|_| alone().is_ready()).count();
        assert_eq!(there, left);
        // Once the request is refused, the unit that counted as spent is refunded.
        servers.forgo(&deadline);
        assert_eq!(there + shared.corrections_queued(), 5);
    }
}
