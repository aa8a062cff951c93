//! Calls that did nothing, or nothing in time: what becomes of their corrections, and of the connection.

use super::failing::Failing;
use super::owed::owing;
use super::*;
use crate::batch::queue::Work;

fn shared_of(answer_within: Micros) -> LaneState {
    LaneState::new(Clock::system(), answer_within, true)
}

fn refund_of(shared: &LaneState, key: &[u8]) {
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    let refund = Change::Refund { units: 1 };
    shared.settle(
        names.name(&limit, key),
        names.shape(&limit),
        refund,
        Corrects::Any,
    );
}

#[tokio::test]
async fn corrections_that_a_call_did_not_make_wait_for_the_next_connection_or_are_counted() {
    type Fails = fn(String) -> Trouble;
    let troubles: [(Fails, usize, u64); 4] = [
        (Trouble::Unfit, 2, 0),
        (Trouble::Refused, 0, 2),
        (Trouble::Moved, 2, 0),
        // They may have been made.
        (Trouble::Lost, 0, 0),
    ];
    for (trouble, queued, dropped) in troubles {
        let shared = shared_of(Micros::from_secs(60));
        for key in [b"a", b"b"] {
            refund_of(&shared, key);
        }
        let work = shared.take().expect("two corrections");
        let outcome = flush(&shared, &Failing(trouble), &(), work).await;
        assert_eq!(shared.corrections_queued(), queued, "{:?}", outcome.is_ok());
        let counted = shared.counters.corrections_dropped.load(Ordering::Relaxed);
        assert_eq!(counted, dropped);
    }
}

#[tokio::test]
async fn corrections_that_a_server_redirects_wait_for_a_heartbeat_or_another_server() {
    let shared = shared_of(Micros::from_secs(60));
    refund_of(&shared, b"a");
    let work = shared.take().expect("a correction");
    let _ = flush(&shared, &Failing(Trouble::Moved), &(), work).await;
    assert!(shared.take().is_none(), "it would be redirected again");
    shared.heartbeat();
    let work = shared.take().expect("the correction");
    let _ = flush(&shared, &Failing(Trouble::Moved), &(), work).await;
    // The bucket is on another server now.
    let part = super::super::shared::ServerPart {
        server: "old".to_owned(),
        has: Box::new(|_| false),
    };
    let old = shared.of_server(part);
    let correction = shared.take_moved();
    assert!(correction.1.is_empty(), "it is here");
    let work = shared.take().expect("the correction");
    let _ = flush(&old, &Failing(Trouble::Moved), &(), work).await;
    assert_eq!(old.take_moved().1.len(), 1);
}

/// A caller that has refunds fill the queue loses them, and does not get rid of charges.
#[tokio::test]
async fn corrections_beyond_the_bound_lose_refunds_and_add_charges_up() {
    let shared = shared_of(Micros::from_secs(60));
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    let charge_of = |key: &[u8], more| {
        let change = Change::Charge { more };
        shared.settle(
            names.name(&limit, key),
            names.shape(&limit),
            change,
            Corrects::Any,
        );
    };
    let lost = || shared.counters.corrections_dropped.load(Ordering::Relaxed);
    charge_of(b"first", 1);
    let work = shared.take().expect("a correction");
    while shared.room_for_corrections() > 0 {
        refund_of(&shared, b"b");
    }
    let full = shared.corrections_queued();
    refund_of(&shared, b"b");
    assert_eq!((shared.corrections_queued(), lost()), (full, 1));
    for (key, more) in [(b"a", 2), (b"b", 3), (b"a", 5)] {
        charge_of(key, more);
    }
    // One that was not made is put back.
    let _ = flush(&shared, &Failing(Trouble::Unfit), &(), work).await;
    assert_eq!((shared.corrections_queued(), lost()), (full + 3, 1));
    let mut charged = Vec::new();
    while let Some(work) = shared.take() {
        let units = work.corrections.iter().map(|one| one.adjust);
        charged.extend(units.filter_map(|adjust| match adjust {
            Adjust::Change(Change::Charge { more }, _) => Some(more),
            _ => None,
        }));
    }
    charged.sort_unstable();
    assert_eq!(charged, [1, 3, 7]);
}

#[tokio::test]
async fn corrections_of_a_closed_store_are_not_put_back() {
    let shared = shared_of(Micros::from_secs(60));
    refund_of(&shared, b"a");
    let work = shared.take().expect("a correction");
    shared.close();
    let _ = flush(&shared, &Failing(Trouble::Unfit), &(), work).await;
    let dropped = shared.counters.corrections_dropped.load(Ordering::Relaxed);
    assert_eq!((shared.corrections_queued(), dropped), (0, 1));
}

#[tokio::test]
async fn heartbeat_of_a_call_that_did_nothing_is_not_repeated() {
    let shared = shared_of(Micros::from_secs(60));
    let (names, places) = (
        Names::new(b"secret"),
        limit("places", &terms(Kind::InFlight, 10, Micros::ZERO)),
    );
    let beat = Correction {
        name: names.name(&places, b"a"),
        shape: names.shape(&places),
        adjust: Adjust::Hold(3),
    };
    let work = Work {
        asks: Vec::new(),
        corrections: vec![beat],
        tasks: Vec::new(),
    };
    let _ = flush(&shared, &Failing(Trouble::Unfit), &(), work).await;
    assert_eq!(shared.corrections_queued(), 0, "the next one is read anew");
}

#[tokio::test]
async fn redirected_calls_say_nothing_against_the_server() {
    type Fails = fn(String) -> Trouble;
    for trouble in [Trouble::Moved as Fails, Trouble::Astray] {
        let shared = shared_of(Micros::from_secs(60));
        refund_of(&shared, b"a");
        let work = shared.take().expect("a correction");
        let outcome = flush(&shared, &Failing(trouble), &(), work).await;
        assert!(outcome.is_ok());
    }
}

#[tokio::test]
async fn corrections_alone_have_the_time_of_a_request() {
    let shared = shared_of(Micros::from_secs(60));
    refund_of(&shared, b"a");
    let work = shared.take().expect("a correction");
    let slow = Made::new((), async |(), batch: &Batch| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        granted(batch)
    });
    assert!(flush(&shared, &slow, &(), work).await.is_ok());
}

#[tokio::test]
async fn requests_from_another_server_wait_in_the_order_of_their_deadlines() {
    let shared = shared_of(Micros::from_secs(60));
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    for after in [30, 10, 20] {
        shared.take_over(Ask {
            wants: wants(&names, &limit),
            peek: false,
            deadline: START.after(Micros(after)),
            reply: None,
            unanswered: None,
            repeats: 0,
        });
    }
    let work = shared.take().expect("three requests");
    assert!(work.asks.is_sorted_by_key(|ask| ask.deadline));
}

#[tokio::test]
async fn charges_that_another_server_has_to_make_are_owed_again() {
    // Redirected.
    let (shared, owes) = owing();
    let charged = crate::batch::owed::charge(&shared, &Failing(Trouble::Moved), &()).await;
    assert!(charged.is_ok());
    assert_eq!(owes.again.load(Ordering::Relaxed), 300);
    // Known to be elsewhere.
    let (shared, owes) = owing();
    let elsewhere = shared.of_server(ServerPart {
        server: "one".to_owned(),
        has: Box::new(|_| false),
    });
    let charged = crate::batch::owed::charge(&elsewhere, &granting(), &()).await;
    assert!(charged.is_ok());
    assert_eq!(owes.again.load(Ordering::Relaxed), 300);
}
