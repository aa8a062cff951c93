//! The number written is the number enforced: burst 10, 10 a second, 64 clients for three seconds.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollgate_testkit::servers::{Server, StoreKind};
use tollgate_tower::{Key, Limit, Rate, RateLimitLayer};

use crate::kind::Kind;
use crate::stores::store;

const CLIENTS: usize = 64;
const SPAN: Duration = Duration::from_secs(3);

/// Calls until the time is up; returns how many calls were admitted.
async fn call(kind: Kind, address: SocketAddr, start: Instant) -> u64 {
    let mut client = kind.connect(address).await;
    let mut admitted = 0;
    while start.elapsed() < SPAN {
        match client.ask(&[]).await.status {
            200 => admitted += 1,
            status => assert_eq!(status, 429),
        }
    }
    admitted
}

/// Lets the clients call a service on this server's buckets, or on its own, and checks how many
/// calls were admitted.
#[expect(
    clippy::disallowed_methods,
    reason = "the store and the clients share real time"
)]
async fn check(kind: Kind, server: Option<&Server>) {
    let limit = Limit::token_bucket(Rate::per_second(10), 10).per(Key::everyone());
    let mut builder = RateLimitLayer::builder().limit("all", limit);
    if let Some(server) = server {
        builder = builder.store(store(server).answer_within(Duration::from_secs(5)));
    }
    let address = kind.serve(builder.build().expect("a layer")).await;
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(call(kind, address, start)))
        .collect();
    let mut admitted = 0;
    for client in clients {
        admitted += client.await.expect("no client fails");
    }
    let tenths = u64::try_from(start.elapsed().as_millis() / 100).expect("seconds");
    let counted = format!("{kind:?}: {admitted} in {tenths} tenths of a second");
    assert!((20..=10 + tenths).contains(&admitted), "{counted}");
}

async fn check_on(kind: Kind, server: Option<Server>) {
    if let Some(server) = server {
        check(kind, Some(&server)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_64_clients_on_local_buckets_get_the_documented_counts() {
    check(Kind::Axum, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_64_clients_on_local_buckets_get_the_documented_counts() {
    check(Kind::Tonic, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_64_clients_on_redis_get_the_documented_counts() {
    check_on(Kind::Axum, StoreKind::Redis.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_64_clients_on_redis_get_the_documented_counts() {
    check_on(Kind::Tonic, StoreKind::Redis.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_64_clients_on_postgres_get_the_documented_counts() {
    check_on(Kind::Axum, StoreKind::Postgres.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_64_clients_on_postgres_get_the_documented_counts() {
    check_on(Kind::Tonic, StoreKind::Postgres.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_64_clients_on_mariadb_get_the_documented_counts() {
    check_on(Kind::Axum, StoreKind::Mysql.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_64_clients_on_mariadb_get_the_documented_counts() {
    check_on(Kind::Tonic, StoreKind::Mysql.start()).await;
}
