//! What every shared store must survive, whatever it is made of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::limit::{Claim, Limit};
use tollgate::store::{Store, StoreError};

use crate::servers::eventually;

/// The deadline the stores of these tests are given.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(20);
/// What a busy machine may add to it, and the 100 ms that PostgreSQL is given.
const SLACK: Duration = Duration::from_millis(500);

/// How long a test waits for what must happen: far longer than it takes, since the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub async fn draw(store: &impl Store, limit: &Limit, key: &[u8]) -> Result<bool, StoreError> {
    store.draw(&[Claim { limit, key, cost: 1, enforced: true }]).await.map(|draw| draw.granted)
}

/// Draws until the bucket is empty; how many were granted.
pub async fn drain(store: &impl Store, limit: &Limit, key: &[u8]) -> u64 {
    let mut granted = 0;
    while draw(store, limit, key).await.expect("the store answers") {
        granted += 1;
    }
    granted
}

/// Draws for `span` from `tasks` tasks at once, on all `stores`; how many were granted, and what failed.
pub async fn storm<S: Store>(
    stores: &[S],
    limit: &Limit,
    key: &[u8],
    tasks: usize,
    span: Duration,
) -> (u64, Vec<StoreError>) {
    let (granted, failed) = (AtomicU64::new(0), std::sync::Mutex::new(Vec::new()));
    let end = Instant::now() + span;
    let work = async |store: &S| {
        while Instant::now() < end {
            let drawn = store.draw(&[Claim { limit, key, cost: 1, enforced: true }]).await;
            match drawn.map(|draw| draw.granted) {
                Ok(true) => drop(granted.fetch_add(1, Ordering::Relaxed)),
                // A refusal made here at once must not keep the others from running.
                Ok(false) => tokio::task::yield_now().await,
                Err(error) => {
                    failed.lock().expect("no task panics with it").push(error);
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    let mut all: Vec<_> =
        stores.iter().flat_map(|store| (0..tasks).map(move |_| store)).map(|s| Box::pin(work(s))).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    let failed = std::mem::take(&mut *failed.lock().expect("no task panics with it"));
    (granted.load(Ordering::Relaxed), failed)
}

/// The store answers again, without being restarted.
pub async fn recovers(store: &impl Store, limit: &Limit) {
    let mut turn = 0_u32;
    eventually("answer of the store", PATIENCE, async || {
        turn += 1;
        draw(store, limit, &turn.to_le_bytes()).await.is_ok()
    })
    .await;
}

/// The store notices that its server does not answer; every request is answered in time meanwhile.
pub async fn fails_in_time(store: &impl Store, limit: &Limit) {
    eventually("failure", PATIENCE, async || draw(store, limit, b"x").await.is_err()).await;
    let mut late = 0;
    for turn in 0..200_u32 {
        let start = Instant::now();
        assert!(draw(store, limit, &turn.to_le_bytes()).await.is_err(), "the server is gone");
        late += u32::from(start.elapsed() > ANSWER_WITHIN + SLACK);
    }
    // The machine may hold this process up now and then, never for most requests.
    assert!(late < 20, "{late} of 200 were answered after {:?}", ANSWER_WITHIN + SLACK);
}
