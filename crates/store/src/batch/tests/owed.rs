//! What was granted in the server's place, and requests that wait too long in the queue.

use std::cell::RefCell;
use std::sync::Weak;

use super::*;
use crate::{Owed, StandIn};
use parking_lot::Mutex;
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

#[tokio::test]
async fn charges_owed_have_landed_before_any_request_may_ask() {
    let shared = Arc::new(Shared::new(Clock::system(), Micros::from_secs(60), true));
    let limit = Arc::new(bucket(10));
    let owes = Arc::new(Owes {
        limit: limit.clone(),
        times: AtomicU64::new(0),
        buckets: 300,
        again: AtomicU64::new(0),
    });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(owes.clone() as Arc<dyn StandIn>));
    let names = Arc::new(Names::new(b"secret"));
    shared.substitute(names.clone(), stand_in, true);
    let charges = Rc::new(RefCell::new(Vec::new()));
    let (seen, of) = (charges.clone(), shared.clone());
    let server = Made::new(
        (seen, of),
        async |(seen, of): &(Rc<RefCell<Vec<u64>>>, Arc<Shared>), batch: &Batch| {
            let units = batch.corrections.iter().map(|(_, adjust)| match adjust {
                Adjust::Change(Change::Charge { more }) => *more,
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
        shared.ask(wants(&names, &limit), false).await
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

/// A gateway that owes 300 buckets a unit each, once.
pub(super) fn owing() -> (Arc<Shared>, Arc<Owes>) {
    let shared = Arc::new(Shared::new(Clock::system(), Micros(1_000), true));
    let owes = Arc::new(Owes {
        limit: Arc::new(bucket(10)),
        times: AtomicU64::new(1),
        buckets: 300,
        again: AtomicU64::new(0),
    });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(owes.clone() as Arc<dyn StandIn>));
    shared.substitute(Arc::new(Names::new(b"secret")), stand_in, true);
    (shared, owes)
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
    let troubles: [(Fails, u64); 3] = [
        (Trouble::Refused, 300),
        (Trouble::Unfit, 300),
        (Trouble::Lost, unsent),
    ];
    for (trouble, again) in troubles {
        let (shared, owes) = owing();
        let charged = super::super::owed::charge(&shared, &Failing(trouble), &()).await;
        assert!(charged.is_err());
        assert_eq!(owes.again.load(Ordering::Relaxed), again);
    }
}

#[tokio::test]
async fn charges_of_the_calls_that_a_server_refuses_are_owed_again_and_those_of_others_are_not() {
    let (shared, owes) = owing();
    let charged = super::super::owed::charge(&shared, &HalfRefusing, &()).await;
    assert!(charged.is_err());
    let names = Names::new(b"secret");
    let refused = (0..CORRECTIONS_MAX)
        .filter(|key| {
            let key = u16::try_from(*key).expect("few").to_be_bytes();
            HalfRefusing.part(&names.name(&owes.limit, &key)) == 1
        })
        .count();
    assert!((1..CORRECTIONS_MAX).contains(&refused));
    let again = refused + 300 - CORRECTIONS_MAX;
    assert_eq!(owes.again.load(Ordering::Relaxed), again as u64);
    assert_eq!(shared.corrections_queued(), 0);
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
        let shared = Shared::new(Clock::system(), Micros::from_secs(60), true);
        let (names, limit) = (Names::new(b"secret"), bucket(10));
        for key in [b"a", b"b"] {
            let refund = Change::Refund { units: 1 };
            shared.settle(names.name(&limit, key), names.shape(&limit), refund);
        }
        let work = shared.take().expect("two corrections");
        let (_, outcome) = flush(&shared, &Failing(trouble), &(), work).await;
        assert_eq!(shared.corrections_queued(), queued, "{:?}", outcome.is_ok());
        let counted = shared.counters.corrections_dropped.load(Ordering::Relaxed);
        assert_eq!(counted, dropped);
    }
}

#[tokio::test]
async fn corrections_that_a_server_redirects_wait_for_a_heartbeat_or_another_server() {
    let shared = Shared::new(Clock::system(), Micros::from_secs(60), true);
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    let refund = Change::Refund { units: 1 };
    shared.settle(names.name(&limit, b"a"), names.shape(&limit), refund);
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

#[tokio::test]
async fn charge_that_a_server_refuses_every_time_is_dropped_and_the_others_land() {
    let (shared, owes) = owing();
    let odd = Names::new(b"secret").name(&owes.limit, &77_u16.to_be_bytes());
    let server = RefusingOne(odd, RefCell::default());
    let charged = super::super::owed::charge(&shared, &server, &()).await;
    assert!(charged.is_ok(), "requests may use the connection");
    let mut made = server.1.take();
    made.sort_unstable();
    let others: Vec<u64> = (1..=300).filter(|units| *units != 78).collect();
    assert_eq!(made, others);
    let counted = shared.counters.corrections_dropped.load(Ordering::Relaxed);
    assert_eq!((counted, owes.again.load(Ordering::Relaxed)), (1, 0));
}

#[tokio::test]
async fn corrections_that_were_not_made_are_put_back_as_far_as_there_is_room() {
    let shared = Shared::new(Clock::system(), Micros::from_secs(60), true);
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    let settle = |key: &[u8]| {
        let refund = Change::Refund { units: 1 };
        shared.settle(names.name(&limit, key), names.shape(&limit), refund);
    };
    settle(b"a");
    let work = shared.take().expect("a correction");
    while shared.room_for_corrections() > 0 {
        settle(b"b");
    }
    let full = shared.corrections_queued();
    let _ = flush(&shared, &Failing(Trouble::Unfit), &(), work).await;
    assert_eq!(shared.corrections_queued(), full);
    let counted = shared.counters.corrections_dropped.load(Ordering::Relaxed);
    assert_eq!(counted, 1);
}

#[tokio::test]
async fn requests_that_did_not_fit_in_a_call_fail_by_their_own_deadline() {
    let clock = Clock::system();
    let shared = Shared::new(clock.clone(), Micros::from_secs(60), true);
    shared.lanes_up.store(1, Ordering::Relaxed);
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    // One that is in the call under way, and one that came before it and waits for the next.
    let (reply, mut told) = oneshot::channel();
    let early = Ask {
        wants: wants(&names, &limit),
        peek: false,
        deadline: clock.now().after(Micros(1_000)),
        reply: Some(reply),
    };
    let mut asked = pin!(shared.ask(wants(&names, &limit), false));
    assert!(
        asked
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    let work = shared.take().expect("a request");
    shared.put_back(vec![early]);
    let never = Made::new((), async |(), _: &Batch| std::future::pending().await);
    let mut call = pin!(flush(&shared, &never, &(), work));
    let answer = tokio::select! {
        _ = &mut call => unreachable!("its own deadline is a minute away"),
        answer = &mut told => answer,
    };
    assert!(matches!(answer, Ok(Err(StoreError::Overdue))), "{answer:?}");
}

#[tokio::test]
async fn charges_owed_while_a_lane_is_up_are_charged_by_a_heartbeat() {
    let shared = Arc::new(Shared::new(Clock::system(), Micros::from_secs(60), true));
    let limit = Arc::new(bucket(10));
    // Nothing until the lane is up.
    let owes = Arc::new(Owes {
        limit,
        times: AtomicU64::new(9),
        buckets: 300,
        again: AtomicU64::new(0),
    });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(owes.clone() as Arc<dyn StandIn>));
    shared.substitute(Arc::new(Names::new(b"secret")), stand_in, true);
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

/// Receives the number of gateways; during its first call a heartbeat reports four of them.
struct Told {
    shared: Arc<Shared>,
    last: AtomicU64,
    heartbeat: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl StandIn for Told {
    fn shared_by(&self, replicas: u32) {
        self.last.store(u64::from(replicas), Ordering::SeqCst);
        let mut heartbeat = self.heartbeat.lock();
        if replicas == 4 || heartbeat.is_some() {
            return;
        }
        let shared = self.shared.clone();
        *heartbeat = Some(std::thread::spawn(move || shared.shared_by(4)));
        while self.shared.replicas.most() != 4 {
            std::thread::yield_now();
        }
    }

    fn owed(&self) -> Vec<Owed> {
        Vec::new()
    }

    fn owe_again(&self, owed: Vec<Owed>) -> Vec<Owed> {
        owed
    }
}

#[test]
fn substitute_named_while_a_heartbeat_counts_gets_the_new_count() {
    let shared = Arc::new(Shared::new(Clock::system(), Micros::from_secs(60), true));
    shared.shared_by(2);
    let told = Arc::new(Told {
        shared: shared.clone(),
        last: AtomicU64::new(0),
        heartbeat: Mutex::default(),
    });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(told.clone() as Arc<dyn StandIn>));
    shared.substitute(Arc::new(Names::new(b"secret")), stand_in, true);
    let heartbeat = told.heartbeat.lock().take().expect("it was told of two");
    heartbeat.join().expect("no panic");
    assert_eq!(told.last.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn requests_of_a_failed_call_know_whether_they_may_have_been_charged() {
    type Fails = fn(String) -> Trouble;
    let troubles: [(Fails, bool); 6] = [
        (Trouble::Lost, true),
        (Trouble::Astray, true),
        (Trouble::Corrupt, true),
        (Trouble::Refused, false),
        (Trouble::Unfit, false),
        (Trouble::Moved, false),
    ];
    for (trouble, charged) in troubles {
        let shared = Shared::new(Clock::system(), Micros::from_secs(60), true);
        shared.lanes_up.store(1, Ordering::Relaxed);
        let (names, limit) = (Names::new(b"secret"), bucket(10));
        let mut asked = pin!(shared.ask(wants(&names, &limit), false));
        assert!(
            asked
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let work = shared.take().expect("a request");
        let (landed, _) = flush(&shared, &Failing(trouble), &(), work).await;
        assert!(landed.is_empty());
        let error = asked.await.expect_err("no answer");
        assert_eq!(error.may_have_charged(), charged, "{error:?}");
    }
}

/// A server whose calls all fail so.
pub(super) struct Failing(pub(super) fn(String) -> Trouble);

impl Link for Failing {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), _: &Batch) -> Result<Answer, Trouble> {
        Err((self.0)("failed".into()))
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// A cluster in which one of two parts refuses its calls.
struct HalfRefusing;

impl Link for HalfRefusing {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), batch: &Batch) -> Result<Answer, Trouble> {
        match self.part(&batch.buckets[0].0) {
            0 => Ok(granted(batch)),
            _ => Err(Trouble::Refused("failed".into())),
        }
    }

    fn part(&self, name: &Name) -> u32 {
        u32::from(name.hash % 2 == 1)
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// A server that refuses every call with this bucket, and remembers the charges of the others.
struct RefusingOne(Name, RefCell<Vec<u64>>);

impl Link for RefusingOne {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), batch: &Batch) -> Result<Answer, Trouble> {
        if batch.buckets.iter().any(|(name, _)| *name == self.0) {
            return Err(Trouble::Refused("failed".into()));
        }
        let units = batch
            .corrections
            .iter()
            .map(|(_, adjust)| adjust.numbers().1);
        self.1.borrow_mut().extend(units);
        Ok(granted(batch))
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(60)
    }
}
