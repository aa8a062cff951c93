//! Requests that a worker reads in one turn leave together, while calls carry many.

use std::pin::Pin;

use super::*;

type Asking<'s> = Pin<Box<dyn Future<Output = Result<Draw, StoreError>> + 's>>;

/// A store with a lane that is up, which is the test.
struct Bench {
    shared: Shared,
    names: Names,
    limit: Limit,
}

impl Bench {
    fn new() -> Self {
        let shared = Shared::new(Clock::system(), Micros::from_secs(20), true);
        shared.lanes_up.store(1, Ordering::Relaxed);
        Self {
            shared,
            names: Names::new(b"secret"),
            limit: bucket(1_000),
        }
    }

    /// Whose calls carry many requests.
    fn busy() -> Self {
        let bench = Self::new();
        bench.shared.carried(100);
        bench
    }

    fn ask(&self) -> Asking<'_> {
        Box::pin(async move {
            let wants = wants(&self.names, &self.limit);
            let deadline = Deadline::default();
            self.shared.ask_by(wants, false, &deadline).await
        })
    }

    /// How many requests the next call carries.
    fn next(&self) -> usize {
        self.shared.take().map_or(0, |work| work.asks.len())
    }
}

/// Reads requests as a worker does.
fn read(asks: &mut [Asking<'_>]) {
    let mut context = Context::from_waker(Waker::noop());
    for ask in asks {
        assert!(ask.as_mut().poll(&mut context).is_pending());
    }
}

#[test]
fn gather_requests_of_one_turn_leave_in_one_call() {
    let bench = Bench::busy();
    let mut asks = [(); 5].map(|()| bench.ask());
    read(&mut asks);
    assert_eq!(bench.next(), 0, "the turn is open");
    // The first one goes on after its yield.
    read(&mut asks[..1]);
    assert_eq!(bench.next(), 5);
    assert_eq!(bench.next(), 0);
}

#[test]
fn gather_turn_of_each_worker_ends_by_itself() {
    let bench = Bench::busy();
    let mut slow = [bench.ask()];
    read(&mut slow);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut asks = [bench.ask(), bench.ask()];
            read(&mut asks);
            assert_eq!(bench.next(), 0, "its turn is open");
            read(&mut asks[..1]);
            assert_eq!(bench.next(), 2, "the other worker is not awaited");
        });
        other.join().expect("it ends");
    });
    read(&mut slow);
    assert_eq!(bench.next(), 1);
}

#[test]
fn gather_first_request_cancelled_lets_the_others_leave() {
    let bench = Bench::busy();
    let mut asks = Vec::from([(); 4].map(|()| bench.ask()));
    read(&mut asks);
    drop(asks.remove(0));
    assert_eq!(bench.next(), 3);
    // The next turn has a first request again.
    let mut asks = [(); 2].map(|()| bench.ask());
    read(&mut asks);
    assert_eq!(bench.next(), 0);
    read(&mut asks[..1]);
    assert_eq!(bench.next(), 2);
}

#[test]
fn gather_begins_with_calls_of_many_requests_and_ends_with_calls_of_few() {
    let bench = Bench::new();
    let gathers = || {
        let mut asks = [bench.ask()];
        read(&mut asks);
        // (The first request of a turn is not in the queue yet.)
        let waits = bench.shared.queue.lock().asks.is_empty();
        bench.shared.fail_queued();
        waits
    };
    for (carried, expected) in [
        (7, false),
        (8, true),
        (2, true),
        (1, true),
        (0, true),
        (3, true),
        (2, true),
        (2, false),
        (3, false),
        (1_000, true),
    ] {
        bench.shared.carried(carried);
        assert_eq!(gathers(), expected, "{carried}");
    }
}

#[test]
fn gather_closed_store_sends_the_requests_of_an_open_turn() {
    let bench = Bench::busy();
    let mut asks = [bench.ask(), bench.ask()];
    read(&mut asks);
    bench.shared.close();
    assert_eq!(bench.next(), 1);
    // The first one comes too late.
    let mut context = Context::from_waker(Waker::noop());
    let first = asks[0].as_mut().poll(&mut context);
    assert!(matches!(
        first,
        std::task::Poll::Ready(Err(StoreError::Unavailable(_)))
    ));
    assert_eq!(bench.next(), 0);
}

#[test]
fn gather_enough_requests_leave_before_the_end_of_the_turn() {
    let bench = Bench::busy();
    let mut asks = Vec::from([(); 20].map(|()| bench.ask()));
    // (The first one is not in the queue yet.)
    read(&mut asks[..16]);
    assert_eq!(bench.next(), 0);
    read(&mut asks[16..17]);
    assert_eq!(bench.next(), 16);
    // The others wait for the end.
    read(&mut asks[17..]);
    assert_eq!(bench.next(), 0);
    read(&mut asks[..1]);
    assert_eq!(bench.next(), 4);
}
