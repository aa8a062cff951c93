//! What was granted in the server's place, and requests that wait too long in the queue.

use std::cell::RefCell;
use std::sync::Weak;

use super::*;
use crate::{Owed, StandIn};
use tollgate_limit::KeyBytes;

/// Owes so many buckets a unit each, twice.
struct Owes {
    limit: Arc<Limit>,
    times: AtomicU64,
    buckets: u16,
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
}

#[tokio::test]
async fn charges_owed_have_landed_before_anybody_may_ask() {
    let shared = Arc::new(Shared::new(Clock::system(), Micros::from_secs(60), true));
    let limit = Arc::new(bucket(10));
    let owes = Arc::new(Owes { limit: limit.clone(), times: AtomicU64::new(0), buckets: 300 });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(owes.clone() as Arc<dyn StandIn>));
    let names = Arc::new(Names::new(b"secret"));
    shared.substitute(names.clone(), stand_in, true);
    let charges = Rc::new(RefCell::new(Vec::new()));
    let (seen, of) = (charges.clone(), shared.clone());
    let server = Made::new((seen, of), async |(seen, of): &(Rc<RefCell<Vec<u64>>>, Arc<Shared>), batch: &Batch| {
        let units = batch.corrections.iter().map(|(_, adjust)| match adjust {
            Adjust::Change(Change::Charge { more }) => *more,
            other => panic!("not a charge: {other:?}"),
        });
        seen.borrow_mut().extend(units);
        // Nobody may ask before.
        assert_eq!(of.lanes_up.load(Ordering::Relaxed) > 0, batch.corrections.is_empty());
        granted(batch)
    });
    let local = tokio::task::LocalSet::new();
    local.spawn_local(lane(shared.clone(), Rc::new(server)));
    let ask = local.run_until(async {
        shared.connected().await;
        shared.ask(wants(&names, &limit), false).await
    });
    let draw = tokio::time::timeout(Duration::from_secs(30), ask).await.expect("in time");
    assert!(draw.expect("answered").granted);
    let mut charges = charges.take();
    charges.sort_unstable();
    let twice: Vec<u64> = (1..=300).flat_map(|units| [units, units]).collect();
    assert_eq!(charges, twice);
}

#[tokio::test]
async fn charges_whose_answer_is_lost_are_not_sent_again_and_the_others_are() {
    let shared = Arc::new(Shared::new(Clock::system(), Micros(1_000), true));
    let limit = Arc::new(bucket(10));
    let owes = Arc::new(Owes { limit: limit.clone(), times: AtomicU64::new(1), buckets: 300 });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(owes.clone() as Arc<dyn StandIn>));
    shared.substitute(Arc::new(Names::new(b"secret")), stand_in, true);
    let never = Made::new((), async |(), _: &Batch| std::future::pending().await);
    assert!(super::super::owed::charge(&shared, &never, &()).await.is_err());
    assert_eq!(shared.corrections_queued(), 300 - CORRECTIONS_MAX);
}

#[tokio::test]
async fn requests_that_did_not_fit_in_a_call_are_told_by_their_own_deadline() {
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
    assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let work = shared.take().expect("a request");
    shared.put_back(vec![early]);
    let never = Made::new((), async |(), _: &Batch| std::future::pending().await);
    let mut call = pin!(flush(&shared, &never, &(), work));
    let answer = tokio::select! {
        _ = &mut call => unreachable!("its own deadline is a minute away"),
        answer = &mut told => answer,
    };
    assert!(matches!(answer, Ok(Err(StoreError::Timeout))), "{answer:?}");
}
