//! The queue and its calls on a server that is made up.

mod documents;
mod failing;
mod heartbeats;
mod leased;
mod made;
mod many;
mod owed;
mod receipts;
mod replicas;
mod unanswered;
mod undone;

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use super::assemble::assemble;
use super::flight::{fly, next_calls};
use super::lane::lane;
use super::*;
use crate::Deadline;
use crate::clock::Clock;
use crate::lease::{Errand, Leases};
use crate::wire_form::Names;
use made::{Made, granted, granting, turns};
use tollgate_limit::fixtures::{limit, terms};
use tollgate_limit::{Claim, Kind, Limit, Micros};

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

/// Sends `work` and waits for the results.
async fn flush<L: Link>(
    shared: &LaneState,
    link: &L,
    connection: &L::Connection,
    work: queue::Work,
) -> Result<(), Trouble> {
    let flights = assemble(shared, link, work);
    let flown = fly(shared, link, connection, flights, None).await;
    flown.settle(shared)
}

fn bucket(amount: u64) -> Limit {
    limit(
        "total",
        &terms(Kind::TokenBucket, amount, Micros::from_secs(3600)),
    )
}

fn wants(names: &Names, limit: &Limit) -> Wants {
    names.wants(&[Claim::new(limit, b"k", 1)])
}

#[tokio::test]
async fn corrections_of_a_rate_and_of_places_go_in_calls_of_their_own_and_keep_their_order() {
    let shared = LaneState::new(Clock::system(), Micros::from_secs(1), true);
    let (names, before, new) = (Names::new(b"secret"), bucket(10), bucket(20));
    let old = limit("total", &terms(Kind::InFlight, 10, Micros::ZERO));
    let name = names.name(&new, b"k");
    // Other numbers make no difference: a bucket is corrected in its own.
    for (limit, units) in [(&new, 1), (&old, 2), (&before, 3), (&new, 4)] {
        let adjust = Adjust::Change(Change::Refund { units }, Corrects::Any);
        shared.correct(Correction {
            name,
            shape: names.shape(limit),
            adjust,
        });
    }
    let mut calls = Vec::new();
    while let Some(work) = shared.take() {
        let units: Vec<u64> = work
            .corrections
            .iter()
            .map(|correction| correction.adjust.numbers().1)
            .collect();
        calls.push(units);
        let outcome = flush(&shared, &granting(), &(), work).await;
        assert!(outcome.is_ok());
    }
    // Each took one that the one before it had put back.
    assert_eq!(calls, [vec![1, 2, 3, 4], vec![2, 3, 4], vec![3, 4]]);
    assert_eq!(
        shared.counters.corrections_dropped.load(Ordering::Relaxed),
        0
    );
}

#[tokio::test]
async fn where_all_buckets_lie_on_one_server_no_request_waits_for_a_lease() {
    let mut shared = LaneState::new(Clock::system(), Micros::from_secs(10), true);
    shared.leases = Some(Arc::new(Leases::new(shared.clock.clone(), false)));
    shared.lanes_up.store(1, Ordering::Relaxed);
    let shared = Arc::new(shared);
    let names = Names::new(b"secret");
    let (total, each) = (
        Limit {
            lease: true,
            ..bucket(1000)
        },
        Limit {
            index: 1,
            ..bucket(10)
        },
    );
    let claims = [(&total, &b"all"[..]), (&each, b"me")];
    let claims = claims.map(|(limit, key)| Claim::new(limit, key, 1));
    // The peer does not reply.
    let servers = Servers::one(shared.clone());
    let deadline = Deadline::default();
    let draw = tokio::select! {
        draw = servers.draw(names.wants(&claims), &deadline) => draw,
        () = peeks(&shared) => unreachable!("it has no end"),
    };
    assert!(draw.expect("answered").granted);
}

#[tokio::test]
async fn requests_that_are_over_make_no_call_that_passes_for_a_success() {
    let shared = LaneState::new(Clock::system(), Micros::from_secs(10), true);
    shared.lanes_up.store(1, Ordering::Relaxed);
    let (shared, names) = (Arc::new(shared), Names::new(b"secret"));
    let (servers, deadline) = (Servers::one(shared.clone()), Deadline::default());
    tokio::select! {
        biased;
        _ = servers.draw(wants(&names, &bucket(10)), &deadline) => unreachable!("nobody answers"),
        () = std::future::ready(()) => {}
    }
    assert!(next_calls(&shared, &granting()).is_none());
}

#[tokio::test]
async fn lease_wait_fails_at_once_while_the_store_is_down() {
    let mut shared = LaneState::new(Clock::system(), Micros::from_secs(60), true);
    shared.leases = Some(Arc::new(Leases::new(shared.clock.clone(), true)));
    let names = Names::new(b"secret");
    let (total, each) = (
        Limit {
            lease: true,
            ..bucket(1000)
        },
        Limit {
            index: 1,
            ..bucket(10)
        },
    );
    let claims = [(&total, &b"all"[..]), (&each, b"me")];
    let claims = claims.map(|(limit, key)| Claim::new(limit, key, 1));
    let servers = Servers::one(Arc::new(shared));
    let deadline = Deadline::default();
    let drawn = servers.draw(names.wants(&claims), &deadline);
    let draw = tokio::time::timeout(Duration::from_secs(10), drawn).await;
    assert!(
        matches!(draw, Ok(Err(StoreError::Unavailable(_)))),
        "{draw:?}"
    );
}

/// A lane that answers what others look at.
async fn peeks(shared: &LaneState) {
    loop {
        if let Some(work) = shared.take() {
            assert!(flush(shared, &granting(), &(), work).await.is_ok());
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn request_to_a_store_that_is_shut_down_is_an_error() {
    let shared = LaneState::new(Clock::system(), Micros::from_secs(60), true);
    // Its thread has gone, having answered what was queued, and this one has not seen that no lane is up.
    shared.lanes_up.store(1, Ordering::Relaxed);
    shared.close();
    shared.fail_queued();
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    let asked = tokio::time::timeout(
        Duration::from_secs(10),
        shared.ask(wants(&names, &limit), false),
    )
    .await;
    assert!(
        matches!(asked, Ok(Err(StoreError::Unavailable(_)))),
        "{asked:?}"
    );
}

#[tokio::test]
async fn an_audit_that_is_asked_for_stays_so_until_one_is_done() {
    let shared = LaneState::new(Clock::system(), Micros::from_secs(60), true);
    assert!(!shared.is_audit_due());
    // A draw waits no longer than its own deadline.
    assert!(
        tokio::time::timeout(Duration::ZERO, shared.audit_again())
            .await
            .is_err()
    );
    assert!(shared.is_audit_due());
    assert!(shared.is_audit_due(), "the look failed");
    shared.audited(Vec::new());
    assert!(!shared.is_audit_due());
}

/// How many calls a server had at most at a time, and how many requests in all.
#[derive(Default)]
struct Pipe {
    calls: Cell<u64>,
    most: Cell<u64>,
    asked: Cell<u64>,
}

impl Pipe {
    async fn answer(&self, batch: &Batch) -> Answer {
        self.calls.update(|calls| calls + 1);
        self.most.update(|most| most.max(self.calls.get()));
        turns(20).await;
        self.calls.update(|calls| calls - 1);
        let asked: u64 = batch
            .groups
            .iter()
            .map(|group| u64::from(group.count))
            .sum();
        self.asked.update(|sum| sum + asked);
        granted(batch)
    }
}

#[tokio::test]
async fn a_lane_has_one_call_in_flight_and_sends_what_waits_together() {
    let places = limit("places", &terms(Kind::InFlight, 1 << 40, Micros::ZERO));
    let units = bucket(1 << 20);
    for (limit, keys) in [(&units, 64), (&units, 1), (&places, 64)] {
        let server = Rc::new(Made {
            // A heartbeat would be a call of its own in the same turn.
            housekeep_every: Duration::from_secs(3600),
            ..Made::new(Pipe::default(), Pipe::answer)
        });
        let pipe = &server.kept;
        let shared = Arc::new(LaneState::new(Clock::system(), Micros::from_secs(60), true));
        let names = Names::new(b"secret");
        let local = tokio::task::LocalSet::new();
        local.spawn_local(lane(shared.clone(), server.clone()));
        for caller in 0..64_u8 {
            let key = [caller % keys];
            let wants = names.wants(&[Claim::new(limit, &key, 1)]);
            let shared = shared.clone();
            local.spawn_local(async move {
                shared.connected().await;
                for turn in 0..200_u8 {
                    // They come back one after the other.
                    turns(u32::from(caller.wrapping_add(turn) % 16)).await;
                    assert!(
                        shared
                            .ask(wants.clone(), false)
                            .await
                            .expect("answered")
                            .granted
                    );
                }
            });
        }
        let all = async {
            while pipe.asked.get() < 64 * 200 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(30), local.run_until(all)).await;
        assert!(all.is_ok(), "{} answered", pipe.asked.get());
        assert_eq!(pipe.most.get(), 1, "{keys} keys of {}", limit.name);
        let calls = shared.counters.calls.load(Ordering::Relaxed);
        assert!(calls * 8 < 64 * 200, "{calls} calls");
    }
}
