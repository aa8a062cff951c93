//! The layer while its store is slow, down or restarted.

use std::time::Duration;

use tollgate_testkit::servers::{Server, StoreKind, eventually};
use tollgate_tower::{Key, Limit, Rate, RateLimitLayer, Store, WhenDown};

use crate::kind::{Client, Kind};

/// The store on a server; requests are refused while it does not respond.
pub(crate) fn store(server: &Server) -> Store {
    store_with(server, WhenDown::Refuse)
}

fn store_with(server: &Server, when_down: WhenDown) -> Store {
    let new = match server.name() {
        "redis" => Store::redis,
        "mysql" => Store::mysql,
        _ => Store::postgres,
    };
    new(&server.url(), "a secret of this test", when_down)
}

/// A client of a service that admits `burst` requests an hour for each key.
async fn client_of(kind: Kind, burst: u64, store: Store) -> Client {
    let limit =
        Limit::token_bucket(Rate::per_hour(burst), burst).per(Key::header("x-api-key").or_refuse());
    let layer = RateLimitLayer::builder().limit("few", limit).store(store);
    let address = kind.serve(layer.build().expect("a layer")).await;
    kind.connect(address).await
}

/// Asks until a request has this status; returns how many were admitted before.
async fn decides(client: &mut Client, key: &str, wanted: u16) -> u64 {
    let mut admitted = 0;
    let what = format!("response {wanted} to {key}");
    eventually(&what, Duration::from_secs(120), async || {
        let outcome = client.ask(&[("x-api-key", key)]).await;
        let status = outcome.status;
        assert!([200, 429, 503].contains(&status), "{status}");
        if status == 503 {
            assert_eq!(outcome.headers["retry-after"], "1", "{outcome:?}");
            let named = outcome.text.contains("\"violated-policies\":[\"few\"]");
            assert!(named || matches!(client, Client::Grpc(_)), "{outcome:?}");
        }
        admitted += u64::from(status == 200);
        status == wanted
    })
    .await;
    admitted
}

async fn limits_again_and_refills_no_caller(kind: Kind, server: Option<Server>) {
    let Some(mut server) = server else {
        return;
    };
    let store = store(&server).answer_within(Duration::from_secs(2));
    let mut client = client_of(kind, 3, store).await;
    let mut admitted = decides(&mut client, "ann", 200).await;
    admitted += decides(&mut client, "ann", 429).await;
    // (A refusal stands without the store, so another caller asks.)
    server.signal("-STOP");
    decides(&mut client, "bob", 503).await;
    server.signal("-CONT");
    decides(&mut client, "cleo", 429).await;
    server.stop();
    decides(&mut client, "dora", 503).await;
    server.run();
    decides(&mut client, "emil", 429).await;
    admitted += decides(&mut client, "ann", 429).await;
    // (A request that was refused for a slow store may have been charged.)
    assert!((1..=3).contains(&admitted), "{kind:?}: {admitted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_redis_slow_or_restarted_limits_again_and_refills_no_caller() {
    limits_again_and_refills_no_caller(Kind::Axum, StoreKind::Redis.start_durable()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_redis_slow_or_restarted_limits_again_and_refills_no_caller() {
    limits_again_and_refills_no_caller(Kind::Tonic, StoreKind::Redis.start_durable()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_mariadb_slow_or_restarted_limits_again_and_refills_no_caller() {
    limits_again_and_refills_no_caller(Kind::Axum, StoreKind::Mysql.start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_mariadb_slow_or_restarted_limits_again_and_refills_no_caller() {
    limits_again_and_refills_no_caller(Kind::Tonic, StoreKind::Mysql.start()).await;
}

/// What `when_down` says applies as soon as `answer_within` is over, and while the server is gone.
#[tokio::test(flavor = "multi_thread")]
async fn layer_store_that_does_not_respond_in_time_is_decided_as_its_limit_says() {
    for kind in Kind::ALL {
        for (when_down, without) in [
            (WhenDown::Refuse, [503; 3]),
            (WhenDown::Allow, [200; 3]),
            (WhenDown::LocalShare, [200, 200, 429]),
        ] {
            let Some(mut server) = StoreKind::Redis.start() else {
                return;
            };
            let store = store_with(&server, when_down).answer_within(Duration::from_millis(500));
            let mut client = client_of(kind, 2, store).await;
            decides(&mut client, "ann", 429).await;
            let mut three = async |key| {
                let mut statuses = [0; 3];
                for status in &mut statuses {
                    *status = client.ask(&[("x-api-key", key)]).await.status;
                }
                statuses
            };
            server.signal("-STOP");
            assert_eq!(three("slow").await, without, "{kind:?}, {when_down:?}");
            server.signal("-CONT");
            server.stop();
            assert_eq!(three("down").await, without, "{kind:?}, {when_down:?}");
        }
    }
}
