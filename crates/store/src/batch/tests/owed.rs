//! What was granted in the server's place, and is charged when the server is back.

use std::cell::RefCell;
use std::sync::Weak;

use super::failing::{Failing, HalfRefusing};
use super::*;
use crate::{Owed, StandIn};
use tollgate_limit::KeyBytes;

/// Owes so many buckets a unit each, twice.
pub(super) struct Owes {
    limit: Arc<Limit>,
    times: AtomicU64,
    buckets: u16,
    /// How many it was told to owe again.
    pub(super) again: AtomicU64,
}

impl StandIn for Owes {
    fn shared_by(&self, _: u32) {}

    fn owed(&self) -> Vec<Owed> {
        if self.times.fetch_add(1, Ordering::Relaxed) > 1 {
            return Vec::new();
        }
        let owed = |key: u16| Owed {
            limit: self.limit.clone(),
            key: KeyBytes::from_slice(&key.to_be_bytes()),
            units: u64::from(key) + 1,
        };
        (0..self.buckets).map(owed).collect()
    }

    fn owe_again(&self, owed: Vec<Owed>) -> Vec<Owed> {
        self.again.fetch_add(owed.len() as u64, Ordering::Relaxed);
        Vec::new()
    }
}

/// A gateway that owes 300 buckets a unit each, once.
pub(super) fn owing() -> (Arc<LaneState>, Arc<Owes>) {
    owing_after(1, Micros(1_000))
}

/// A gateway that owes 300 buckets a unit each until it was asked twice; `asked` says how often it was already.
fn owing_after(asked: u64, answer_within: Micros) -> (Arc<LaneState>, Arc<Owes>) {
    let shared = Arc::new(LaneState::new(Clock::system(), answer_within, true));
    let owes = owing_to(&shared, asked);
    (shared, owes)
}

fn owing_to(shared: &LaneState, asked: u64) -> Arc<Owes> {
    let owes = Arc::new(Owes {
        limit: Arc::new(bucket(10)),
        times: AtomicU64::new(asked),
        buckets: 300,
        again: AtomicU64::new(0),
    });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(owes.clone() as Arc<dyn StandIn>));
    shared.substitute(Arc::new(Names::new(b"secret")), stand_in, true);
    owes
}

/// A process connects before it reads what the process before it left unpaid.
#[test]
fn charges_owed_before_the_connection_are_queued_before_any_request() {
    let shared = LaneState::new(Clock::system(), Micros::from_secs(60), true);
    shared.lanes_up.store(1, Ordering::Relaxed);
    let _owes = owing_to(&shared, 1);
    assert_eq!(shared.corrections_queued(), 300);
}

#[tokio::test]
async fn charges_owed_have_landed_before_any_request_may_ask() {
    let (shared, owes) = owing_after(0, Micros::from_secs(60));
    let charges = Rc::new(RefCell::new(Vec::new()));
    let (seen, of) = (charges.clone(), shared.clone());
    let server = Made::new(
        (seen, of),
        async |(seen, of): &(Rc<RefCell<Vec<u64>>>, Arc<LaneState>), batch: &Batch| {
            let units = batch.corrections.iter().map(|(_, adjust)| match adjust {
                Adjust::Change(Change::Charge { more }, _) => *more,
                other => panic!("not a charge: {other:?}"),
            });
            seen.borrow_mut().extend(units);
            // No request may ask before.
            assert_eq!(
                of.lanes_up.load(Ordering::Relaxed) > 0,
                batch.corrections.is_empty()
            );
            granted(batch)
        },
    );
    let local = tokio::task::LocalSet::new();
    local.spawn_local(lane(shared.clone(), Rc::new(server)));
    let ask = local.run_until(async {
        shared.connected().await;
        let wants = wants(&Names::new(b"secret"), &owes.limit);
        shared.ask(wants, false).await
    });
    let draw = tokio::time::timeout(Duration::from_secs(30), ask)
        .await
        .expect("in time");
    assert!(draw.expect("answered").granted);
    let mut charges = charges.take();
    charges.sort_unstable();
    let twice: Vec<u64> = (1..=300).flat_map(|units| [units, units]).collect();
    assert_eq!(charges, twice);
}

#[tokio::test]
async fn charges_owed_while_a_lane_is_up_are_charged_by_a_heartbeat() {
    // Nothing until the lane is up.
    let (shared, owes) = owing_after(9, Micros::from_secs(60));
    let charged = Rc::new(Cell::new(0));
    let server = Made::new(
        charged.clone(),
        async |charged: &Rc<Cell<usize>>, batch: &Batch| {
            charged.set(charged.get() + batch.corrections.len());
            granted(batch)
        },
    );
    let local = tokio::task::LocalSet::new();
    local.spawn_local(lane(shared.clone(), Rc::new(server)));
    let all = local.run_until(async {
        shared.connected().await;
        owes.times.store(1, Ordering::Relaxed);
        while charged.get() < 300 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    tokio::time::timeout(Duration::from_secs(30), all)
        .await
        .expect("charged");
    assert_eq!(charged.get(), 300);
}

#[tokio::test]
async fn owed_charges_with_a_lost_response_are_not_sent_again() {
    let (shared, owes) = owing();
    let never = Made::new((), async |(), _: &Batch| std::future::pending().await);
    let charged = super::super::owed::charge(&shared, &never, &()).await;
    assert!(charged.is_err());
    let unsent = 300 - CORRECTIONS_MAX as u64;
    assert_eq!(owes.again.load(Ordering::Relaxed), unsent);
    assert_eq!(shared.corrections_queued(), 0);
}

#[tokio::test]
async fn charges_that_a_server_refuses_are_owed_again() {
    type Fails = fn(String) -> Trouble;
    let unsent = 300 - CORRECTIONS_MAX as u64;
    let troubles: [(Fails, u64, bool); 3] = [
        // Requests may use the connection.
        (Trouble::Refused, 300, true),
        (Trouble::Unfit, 300, false),
        (Trouble::Lost, unsent, false),
    ];
    for (trouble, again, is_used) in troubles {
        let (shared, owes) = owing();
        let charged = super::super::owed::charge(&shared, &Failing(trouble), &()).await;
        assert_eq!(charged.is_ok(), is_used);
        assert_eq!(owes.again.load(Ordering::Relaxed), again);
    }
}

#[tokio::test]
async fn charges_of_the_calls_that_a_server_refuses_are_owed_again_and_those_of_others_are_not() {
    let (shared, owes) = owing();
    let charged = super::super::owed::charge(&shared, &HalfRefusing, &()).await;
    assert!(charged.is_ok());
    let names = Names::new(b"secret");
    let refused = (0..300_u16)
        .filter(|key| HalfRefusing.part(&names.name(&owes.limit, &key.to_be_bytes())) == 1)
        .count();
    assert!((1..300).contains(&refused));
    assert_eq!(owes.again.load(Ordering::Relaxed), refused as u64);
    assert_eq!(shared.corrections_queued(), 0);
}
