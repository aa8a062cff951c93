//! A leased limit beside another one of the same request: what the other limit refuses leaves no unit behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_limit::{Claim, Limit, Micros};
use tollgate_store::{RemoteStore, Store};

use crate::faults::drain;
use crate::limits::bucket;
use crate::servers::Server;

const HOUR: Micros = Micros::from_secs(3600);
const TOTAL: u64 = 6000;
const TASKS: u64 = 32;

/// Requests to the total alone, then requests of callers whose own limit refuses every second one, through two gateways.
/// Then a fresh gateway draws what is left: how many units are missing beside those that the gateways count as forfeited,
/// and how many those are.
async fn missing(gateways: [RemoteStore; 2], fresh: RemoteStore) -> (i64, u64) {
    let total = Arc::new(Limit {
        lease: true,
        ..Limit::clone(&bucket("total", 0, 1, HOUR, TOTAL))
    });
    let each = bucket("each", 1, 1, HOUR, 1);
    let (granted, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let next = AtomicU64::new(0);
    let task = async |store: &RemoteStore| {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let caller = (turn % 2000).to_le_bytes();
            let claims = [Claim::new(&total, b"", 1), Claim::new(&each, &caller, 1)];
            let drawn = match turn {
                0..1000 => store.draw(&claims[..1]).await,
                1000..5000 => store.draw(&claims).await,
                _ => return,
            };
            let counter = if drawn.expect("the store answers").granted {
                &granted
            } else {
                &refused
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut tasks: Vec<_> = gateways
        .iter()
        .flat_map(|store| {
            (0..TASKS / 2)
                .map(|_| Box::pin(task(store)))
                .collect::<Vec<_>>()
        })
        .collect();
    std::future::poll_fn(|context| {
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if tasks.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    drop(tasks);
    let (granted, refused) = (granted.into_inner(), refused.into_inner());
    assert_eq!((granted, refused), (3000, 2000));
    let leases = gateways
        .each_ref()
        .map(|store| store.lease_counters().unwrap());
    assert!(
        leases
            .iter()
            .any(|leases| leases.leases.load(Ordering::Relaxed) > 0),
        "leased"
    );
    for store in &gateways {
        store.close();
    }
    let forfeited = leases
        .iter()
        .map(|leases| leases.forfeited.load(Ordering::Relaxed))
        .sum::<u64>();
    // It does not lease, so that none of its own units can be forfeited.
    let plain = Limit {
        lease: false,
        ..Limit::clone(&total)
    };
    let rest = drain(&fresh, &plain, b"").await;
    (
        i64::try_from(TOTAL - granted).unwrap() - i64::try_from(rest + forfeited).unwrap(),
        forfeited,
    )
}

/// A machine that holds a gateway up for longer than the store counts its lease makes it lose units, which it counts.
async fn misses_none(mut once: impl AsyncFnMut() -> (i64, u64)) {
    let mut forfeited = Vec::new();
    while forfeited.len() < 5 || !forfeited.contains(&0) {
        let (missing, counted) = once().await;
        assert!(
            missing <= 0,
            "{missing} units never came back, {counted} are counted as forfeited"
        );
        assert!(
            missing >= -i64::try_from(counted).unwrap(),
            "{} units too many",
            -missing
        );
        forfeited.push(counted);
        assert!(
            forfeited.len() < 20,
            "each time some were forfeited: {forfeited:?}"
        );
    }
}

pub async fn loses_no_unit(server: Server) {
    misses_none(async || {
        let gateways = [server.connect().await, server.connect().await];
        let fresh = server.connect().await;
        server.clear();
        missing(gateways, fresh).await
    })
    .await;
}
