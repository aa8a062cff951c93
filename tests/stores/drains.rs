//! `on_failover = "drain"`: whatever happens to a server's data, no bucket is refilled by it, and every bucket refills from then on.

mod mysql;
mod postgres;
mod redis;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tollgate_limit::{Claim, Kind, Limit, Micros, OnFailover, Standing, Terms, Timestamp, Verdict};
use tollgate_store::Store;
use tollgate_store::clock::Clock;

use crate::faults::{PATIENCE, drain, draw, recovers, storm};
use crate::limits::{bucket, limit, terms};
use crate::servers::{Server, eventually};

const SECOND: Micros = Micros::from_secs(1);
const HOUR: Micros = Micros::from_secs(3600);

/// A clock that shows what the server's does, and stands still.
pub fn clock() -> Clock {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    Clock::manual(Timestamp::from_micros(
        u64::try_from(now.as_micros()).unwrap(),
    ))
}

fn draining(limit: &Limit) -> Arc<Limit> {
    Arc::new(Limit {
        on_failover: OnFailover::Drain,
        ..limit.clone()
    })
}

/// One of each algorithm, 20 in an hour; a token bucket and a leased one of 20 in a second besides.
fn limits() -> Vec<Arc<Limit>> {
    let of = |index, kind| limit(&format!("{kind:?}"), index, &terms(kind, 20, HOUR));
    let interval = Terms {
        burst: Some(20),
        ..terms(Kind::Interval, 5, HOUR)
    };
    [
        bucket("bucket", 0, 20, SECOND, 20),
        Arc::new(Limit {
            lease: true,
            ..Limit::clone(&bucket("leased", 1, 20, SECOND, 20))
        }),
        limit("interval", 2, &interval),
        of(3, Kind::FixedWindow),
        of(4, Kind::SlidingWindow),
        of(5, Kind::SlidingLog),
    ]
    .map(|limit| draining(&limit))
    .into()
}

/// Buckets are used up, or not, when `lose` takes the server's data away, or some of it.
pub async fn no_bucket_is_refilled(
    store: &impl Store,
    clock: &Clock,
    what: &str,
    lose: impl AsyncFnOnce(),
) {
    let limits = limits();
    // A new server begins drained.
    clock.advance(Micros(24 * HOUR.0));
    for limit in &limits {
        assert_eq!(
            drain(store, limit, b"used").await,
            20,
            "{what}: {}",
            limit.name
        );
    }
    lose().await;
    recovers(store, &bucket("other", 6, 1_000_000, SECOND, 1_000_000)).await;
    for limit in &limits {
        for key in [&b"used"[..], b"rested"] {
            assert_eq!(
                drain(store, limit, key).await,
                0,
                "{what}: {} {key:?}",
                limit.name
            );
        }
    }
    let keep = bucket("keep", 7, 20, HOUR, 20);
    let both = [&keep, &limits[0]].map(|limit| Claim::new(limit, b"several", 1));
    assert!(!store.draw(&both).await.unwrap().granted, "{what}");
    // Asking again and again does not keep it from refilling.
    for _ in 0..5 {
        clock.advance(Micros(100_000));
        for key in [&b"used"[..], b"rested"] {
            assert_eq!(drain(store, &limits[0], key).await, 2, "{what}: {key:?}");
        }
    }
    clock.advance(Micros(24 * HOUR.0));
    for limit in &limits {
        for key in [&b"used"[..], b"rested"] {
            assert_eq!(
                drain(store, limit, key).await,
                20,
                "{what}: {} {key:?} a day later",
                limit.name
            );
        }
    }
}

/// The server loses what it knows of its past and keeps the rows. An override, or a reload, reaches
/// the buckets in the call that finds them drained.
pub async fn drained_buckets_take_on_numbers(
    store: &impl Store,
    clock: &Clock,
    lose: impl AsyncFnOnce(),
) {
    let of = |amount| {
        let interval = Terms {
            burst: Some(20),
            ..terms(Kind::Interval, amount, HOUR)
        };
        [
            bucket("bucket", 0, amount, HOUR, 20),
            limit("interval", 1, &interval),
            limit("window", 2, &terms(Kind::FixedWindow, amount, HOUR)),
        ]
        .map(|limit| draining(&limit))
    };
    let other = bucket("other", 3, 1_000_000, SECOND, 1_000_000);
    // The first call of a new server dates its mark.
    let _ = draw(store, &of(20)[0], b"used").await;
    clock.advance(Micros(24 * HOUR.0));
    for own in of(20) {
        assert_eq!(draw(store, &own, b"used").await, Ok(true), "{}", own.name);
    }
    lose().await;
    recovers(store, &other).await;
    for own in of(20) {
        assert_eq!(drain(store, &own, b"unused").await, 0, "{}", own.name);
    }
    clock.advance(SECOND);
    for raised in of(40) {
        assert_eq!(drain(store, &raised, b"used").await, 0, "{}", raised.name);
    }
}

/// Data is lost again and again while many ask, with refusals known here and with leases.
pub async fn emptied_under_load_refills_no_bucket(server: Server) {
    let stores = [server.connect().await, server.connect().await];
    let plain = draining(&bucket("plain", 0, 200, SECOND, 100));
    let leased = Limit::clone(&bucket("leased", 1, 1000, SECOND, 300));
    let leased = draining(&Limit {
        lease: true,
        ..leased
    });
    let rested = eventually("full buckets", PATIENCE, async || {
        let claim = |limit, cost| Claim::new(limit, b"k", cost);
        let seen = stores[0]
            .peek(&[claim(&plain, 100), claim(&leased, 300)])
            .await;
        let is_full = |standing: &Standing| matches!(standing.verdict, Verdict::Allow { .. });
        seen.is_ok_and(|standings| standings.iter().all(is_full))
    });
    rested.await;
    let span = Duration::from_secs(2);
    let start = Instant::now();
    let losing = async {
        let other = bucket("other", 2, 1_000_000, SECOND, 1_000_000);
        while start.elapsed() < span {
            server.clear();
            // The next loss comes when the store has answered after this one.
            recovers(&stores[0], &other).await;
        }
    };
    let ((plainly, _), (by_lease, _), ()) = tokio::join!(
        storm(&stores, &plain, b"k", 8, span),
        storm(&stores, &leased, b"k", 8, span),
        losing
    );
    let passed = u64::try_from(start.elapsed().as_millis()).unwrap();
    assert!(
        plainly <= 100 + 200 * passed / 1000 + 1,
        "{plainly} in {passed} ms"
    );
    assert!(
        by_lease <= 300 + 1000 * passed / 1000 + 1,
        "{by_lease} in {passed} ms, leased"
    );
    eventually("grants again", PATIENCE, async || {
        draw(&stores[1], &plain, b"k")
            .await
            .is_ok_and(|granted| granted)
    })
    .await;
}
