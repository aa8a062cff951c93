//! What every shared store must survive, whatever it is made of.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_limit::{Claim, Limit, Micros, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::{Store, StoreError};

use crate::limits::bucket;
use crate::servers::eventually;

pub use crate::servers::PATIENCE;

/// The deadline the stores of these tests are given.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(20);
/// What a busy machine may add to it, and the 100 ms that PostgreSQL is given.
const SLACK: Duration = Duration::from_millis(500);

pub async fn draw(store: &impl Store, limit: &Limit, key: &[u8]) -> Result<bool, StoreError> {
    store
        .draw(&[Claim::new(limit, key, 1)])
        .await
        .map(|draw| draw.granted)
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
            let drawn = store.draw(&[Claim::new(limit, key, 1)]).await;
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
    let mut all: Vec<_> = stores
        .iter()
        .flat_map(|store| (0..tasks).map(move |_| store))
        .map(|s| Box::pin(work(s)))
        .collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if all.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
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
    eventually("failure", PATIENCE, async || {
        draw(store, limit, b"x").await.is_err()
    })
    .await;
    let mut late = 0;
    for turn in 0..200_u32 {
        let start = Instant::now();
        assert!(
            draw(store, limit, &turn.to_le_bytes()).await.is_err(),
            "the server is gone"
        );
        late += u32::from(start.elapsed() > ANSWER_WITHIN + SLACK);
    }
    // The machine may hold this process up now and then, never for most requests.
    assert!(
        late < 20,
        "{late} of 200 were answered after {:?}",
        ANSWER_WITHIN + SLACK
    );
}

/// Forwards to `port`; once `cut` is set, the next reply is cut in its middle.
pub fn cutting_proxy(port: u16, cut: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                continue;
            };
            let (mut up, mut up_to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut up, &mut up_to));
            let (cut, mut server, mut client) = (cut.clone(), server, client);
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(read @ 1..) = server.read(&mut buffer) {
                    let cutting = cut.swap(false, Ordering::AcqRel);
                    let sent = if cutting { read / 2 } else { read };
                    if client.write_all(&buffer[..sent]).is_err() || cutting {
                        break;
                    }
                }
                let _ = client.shutdown(std::net::Shutdown::Both);
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    own
}

/// Through a proxy that cuts a reply when `cut` is set: a lost reply counts as charged, and nothing is sent twice.
pub async fn replies_are_lost(store: &impl Store, cut: &AtomicBool) {
    let hour = Micros::from_secs(3600);
    let limit = bucket("lost", 0, 100, hour, 100);
    let (mut unknown, mut granted) = (0, 0);
    // A heartbeat's reply may be the one that is cut, and the draw then not sent at all.
    for _ in 0..40 {
        cut.store(true, Ordering::Release);
        match draw(store, &limit, b"k").await {
            Err(error) => unknown += u64::from(error.may_have_charged()),
            Ok(_) => granted += 1,
        }
        recovers(store, &bucket("other", 1, 100, hour, 100)).await;
        if unknown == 5 {
            break;
        }
    }
    let left = drain(store, &limit, b"k").await;
    assert!(unknown > 0, "a reply was cut");
    assert!(
        (100 - granted - unknown..100 - granted).contains(&left),
        "each draw is charged at most once: {left} left of 100, {granted} granted, {unknown} unknown"
    );
}

/// The clocks of three gateways, as far apart as no bucket is pulled from one to the other.
pub fn clocks_apart() -> [Clock; 3] {
    [0, 990_000, 300_000]
        .map(|ahead| Clock::manual(Timestamp::from_micros(1_760_000_000_000_000 + ahead)))
}

/// Three stores on one server, each of which decides by its own clock.
pub async fn grant_no_more_by_clocks_apart(stores: Vec<(impl Store, Clock)>) {
    let limit = bucket("skew", 0, 10, Micros::from_secs(1), 10);
    let mut granted = 0;
    for _ in 0..30 {
        for (store, clock) in &stores {
            granted += drain(store, &limit, b"k").await;
            clock.advance(Micros(100_000));
        }
    }
    // Three seconds passed. The step from the first clock to the one furthest ahead adds what a second brings; from then on
    // that clock rules, and no interval is credited twice.
    assert!(granted <= 10 + 10 + 30 + 1, "granted {granted}");
}
