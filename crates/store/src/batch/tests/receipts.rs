//! Corrections without a response: a store with receipts gets them again, until it is known that it
//! has made them.

use std::cell::RefCell;

use super::*;

/// What a made-up store with receipts does with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// No response before the commit is sent.
    Nothing,
    /// It commits, and does not respond.
    CommitsAlone,
    Responds,
    /// It refuses the call before the commit is sent.
    Refuses,
    /// It refuses the commit of this call, and commits the next.
    RefusesCommit,
}

/// A store with receipts, and the numbers of its calls with the units that each has made.
struct WithReceipts {
    does: Cell<Does>,
    last: Cell<u64>,
    calls: RefCell<Vec<(u64, Vec<u64>)>>,
}

impl WithReceipts {
    fn new(does: Does) -> Self {
        Self {
            does: Cell::new(does),
            last: Cell::new(0),
            calls: RefCell::default(),
        }
    }

    /// Makes the next call; returns whether it had a response.
    async fn turn(&self, shared: &LaneState) -> Option<bool> {
        let flights = next_calls(shared, self)?;
        let flown = fly(shared, self, &(), flights, None).await;
        Some(flown.settle(shared).is_ok())
    }

    /// All units that it has made.
    fn made(&self) -> u64 {
        let calls = self.calls.borrow();
        calls.iter().flat_map(|(_, units)| units).sum()
    }
}

impl Link for WithReceipts {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), batch: &Batch) -> Result<Answer, Trouble> {
        let number = batch.receipt.number;
        let note = |units| self.calls.borrow_mut().push((number, units));
        match self.does.get() {
            Does::Nothing => {
                note(Vec::new());
                return std::future::pending().await;
            }
            Does::Refuses => return Err(Trouble::Refused("failed".into())),
            Does::RefusesCommit => {
                batch.receipt.found(false);
                batch.receipt.committing();
                self.does.set(Does::Responds);
                return Err(Trouble::Refused("no space is left".into()));
            }
            Does::CommitsAlone | Does::Responds => {}
        }
        batch.receipt.found(self.last.get() >= number);
        let units = batch.unmade_corrections().iter();
        note(units.map(|(_, adjust)| adjust.numbers().1).collect());
        batch.receipt.committing();
        self.last.set(number);
        if self.does.get() == Does::CommitsAlone {
            return std::future::pending().await;
        }
        Ok(granted(batch))
    }

    fn keeps_receipts(&self) -> bool {
        true
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(60)
    }
}

fn shared() -> LaneState {
    LaneState::new(Clock::system(), Micros(1_000), true)
}

fn charge(shared: &LaneState, key: &[u8], more: u64) {
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    let change = Change::Charge { more };
    shared.settle(
        names.name(&limit, key),
        names.shape(&limit),
        change,
        Corrects::Any,
    );
}

fn lost(shared: &LaneState) -> (u64, u64) {
    let counters = &shared.counters;
    (
        counters.corrections_dropped.load(Ordering::Relaxed),
        counters.corrections_unconfirmed.load(Ordering::Relaxed),
    )
}

#[tokio::test]
async fn corrections_that_were_not_made_in_time_are_sent_again_after_a_heartbeat() {
    let (shared, server) = (shared(), WithReceipts::new(Does::Nothing));
    charge(&shared, b"a", 5);
    assert_eq!(server.turn(&shared).await, Some(false));
    assert_eq!(server.turn(&shared).await, None, "they wait");
    server.does.set(Does::Responds);
    shared.heartbeat();
    assert_eq!(server.turn(&shared).await, Some(true));
    assert_eq!(server.turn(&shared).await, None);
    assert_eq!((server.made(), lost(&shared)), (5, (0, 0)));
}

#[tokio::test]
async fn corrections_whose_commit_got_no_response_are_sent_again_under_their_number_and_made_once()
{
    let (shared, server) = (shared(), WithReceipts::new(Does::CommitsAlone));
    charge(&shared, b"a", 5);
    assert_eq!(server.turn(&shared).await, Some(false));
    charge(&shared, b"b", 7);
    shared.heartbeat();
    // It commits nothing now, and what it did before is still not known.
    server.does.set(Does::Nothing);
    assert_eq!(server.turn(&shared).await, Some(false));
    server.does.set(Does::Responds);
    for _ in 0..2 {
        shared.heartbeat();
        assert_eq!(server.turn(&shared).await, Some(true));
    }
    let calls = server.calls.borrow().clone();
    let expected = [(1, vec![5]), (1, vec![]), (1, vec![]), (2, vec![7])];
    assert_eq!(calls, expected);
    assert_eq!(lost(&shared), (0, 0));
}

#[tokio::test]
async fn corrections_of_a_lost_commit_are_counted_when_the_store_refuses_every_question_about_them()
{
    let (shared, server) = (shared(), WithReceipts::new(Does::CommitsAlone));
    charge(&shared, b"a", 5);
    assert_eq!(server.turn(&shared).await, Some(false));
    server.does.set(Does::Refuses);
    for _ in 0..20 {
        shared.heartbeat();
        let _ = server.turn(&shared).await;
    }
    assert_eq!(lost(&shared), (0, 1));
    server.does.set(Does::Responds);
    charge(&shared, b"b", 7);
    assert_eq!(server.turn(&shared).await, Some(true), "others are made");
    assert_eq!(server.made(), 12);
}

#[tokio::test]
async fn calls_become_smaller_while_corrections_are_late_and_none_is_lost() {
    let (shared, server) = (shared(), WithReceipts::new(Does::Nothing));
    for key in 0..300_u16 {
        charge(&shared, &key.to_be_bytes(), 1);
    }
    for _ in 0..3 {
        assert_eq!(server.turn(&shared).await, Some(false));
        shared.heartbeat();
    }
    server.does.set(Does::Responds);
    while server.turn(&shared).await.is_some() {}
    let calls = server.calls.borrow();
    let sizes: Vec<usize> = calls[3..].iter().map(|(_, units)| units.len()).collect();
    assert_eq!(sizes[..2], [32, 64]);
    drop(calls);
    assert_eq!((server.made(), lost(&shared)), (300, (0, 0)));
}

#[tokio::test]
async fn corrections_without_a_response_are_counted_where_the_store_keeps_no_receipts() {
    let shared = shared();
    charge(&shared, b"a", 5);
    let work = shared.take().expect("a correction");
    let never = Made::new((), async |(), _: &Batch| std::future::pending().await);
    let _ = flush(&shared, &never, &(), work).await;
    assert_eq!((shared.corrections_queued(), lost(&shared)), (0, (0, 1)));
}

#[tokio::test]
async fn corrections_of_a_closed_store_are_counted_however_they_wait() {
    let (shared, server) = (Arc::new(shared()), WithReceipts::new(Does::CommitsAlone));
    charge(&shared, b"a", 5);
    assert_eq!(server.turn(&shared).await, Some(false));
    charge(&shared, b"b", 7);
    shared.close();
    shared.lose_queued_corrections();
    assert_eq!(lost(&shared), (1, 1));
}

/// A later call would have a greater number, by which the store would take the first one for made.
#[tokio::test]
async fn owed_charges_whose_commit_is_refused_are_sent_again_before_any_other() {
    let (shared, owes) = super::owed::owing();
    let server = WithReceipts::new(Does::RefusesCommit);
    let charged = super::super::owed::charge(&shared, &server, &()).await;
    assert!(charged.is_err());
    let unsent = 300 - CORRECTIONS_MAX as u64;
    assert_eq!(owes.again.load(Ordering::Relaxed), unsent);
    let charged = super::super::owed::charge(&shared, &server, &()).await;
    assert!(charged.is_ok());
    assert_eq!((server.made(), lost(&shared)), ((1..=256).sum(), (0, 0)));
}
