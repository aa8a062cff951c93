//! The examples serve real clients: exact refusals, and the number written is the number enforced.

#[path = "../examples/axum.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod axum_service;
#[path = "../examples/tonic.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod tonic_service;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tollgate_limiter::tower::{Key, Limit, Rate, RateLimitLayer, Store, WhenDown};
use tollgate_testkit::servers::{Maria, Redis, eventually};
use tonic::transport::{Channel, Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

async fn connect(address: SocketAddr) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .expect("a handshake");
    tokio::spawn(connection);
    sender
}

async fn get(
    client: &mut SendRequest<Empty<Bytes>>,
    path: &str,
    key: Option<&str>,
) -> (Response<()>, String) {
    let mut request = Request::builder().uri(path).header("host", "service");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let request = request.body(Empty::new()).expect("a request");
    // The connection is not free until its task has seen the end of the response before.
    client.ready().await.expect("an open connection");
    let response: Response<Incoming> = client.send_request(request).await.expect("a response");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    let text = String::from_utf8(body.to_vec()).expect("text");
    (Response::from_parts(head, ()), text)
}

#[tokio::test]
async fn axum_example_serves_then_refuses_with_exact_headers_and_body() {
    let (listener, address) = listen().await;
    tokio::spawn(axum_service::serve(listener));
    let mut client = connect(address).await;
    for remaining in [2, 1, 0] {
        let (response, body) = get(&mut client, "/search/a", Some("alice")).await;
        assert_eq!((response.status().as_u16(), &*body), (200, "found\n"));
        let told = response.headers()["ratelimit"].to_str().expect("text");
        let state = format!("\"search\";r={remaining};t=");
        assert!(told.contains(&state), "{told}");
    }
    let (response, body) = get(&mut client, "/search/a", Some("alice")).await;
    assert_eq!(response.status(), 429);
    let headers = response.headers();
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["retry-after"], "120");
    assert_eq!(headers["ratelimit"], "\"search\";r=0;t=120");
    assert_eq!(
        headers["ratelimit-policy"],
        "\"per_address\";q=10;w=1, \"search\";q=3;w=360"
    );
    assert_eq!(headers["content-length"], body.len().to_string());
    let start = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",";
    assert!(body.starts_with(start), "{body}");
    assert!(body.contains("\"status\":429,"), "{body}");
    assert!(
        body.contains("\"violated-policies\":[\"search\"],\"retry_after_ms\":"),
        "{body}"
    );
    // The refused request was charged on no limit, and another key has units of its own.
    assert_eq!(
        get(&mut client, "/search/a", Some("bob")).await.0.status(),
        200
    );
    assert_eq!(get(&mut client, "/search/a", None).await.0.status(), 401);
    assert_eq!(get(&mut client, "/", None).await.1, "hello\n");
}

async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    endpoint.connect().await.expect("a connection")
}

#[tokio::test]
async fn tonic_example_serves_then_refuses_with_status_8_and_a_pushback() {
    let (listener, address) = listen().await;
    tokio::spawn(tonic_service::serve(listener));
    let mut client = HealthClient::new(channel(address).await);
    let mut served = 0;
    let refused = loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(response) => {
                assert!(response.metadata().contains_key("ratelimit"));
                served += 1;
            }
            Err(status) => break status,
        }
        assert!(served < 1_000, "no call is refused");
    };
    assert!(served >= 10, "{served}: the burst");
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(
        refused.message(),
        "The quota is used up for now. A retry after the time given is admitted."
    );
    let metadata = refused.metadata();
    let pushback = metadata.get("grpc-retry-pushback-ms").expect("a pushback");
    let wait: u64 = pushback
        .to_str()
        .expect("digits")
        .parse()
        .expect("a number");
    assert!((1..=100).contains(&wait), "{wait}");
    assert_eq!(metadata.get("retry-after").expect("a header"), "1");
    assert_eq!(
        metadata.get("ratelimit").expect("a header"),
        "\"per_address\";r=0;t=1"
    );
}

// --- the number written is the number enforced ---

const CLIENTS: usize = 64;
const SPAN: Duration = Duration::from_secs(3);

/// Burst 10, 10 a second, for all clients together.
fn layer(store: Option<Store>) -> RateLimitLayer {
    let limit = Limit::token_bucket(Rate::per_second(10), 10).per(Key::everyone());
    let mut builder = RateLimitLayer::builder().limit("all", limit);
    if let Some(store) = store {
        builder = builder.store(store);
    }
    builder.build().expect("a layer")
}

fn in_redis(redis: &Redis) -> Option<Store> {
    let store = Store::redis(&redis.url(), "a secret of this test", WhenDown::Refuse);
    Some(store.answer_within(Duration::from_secs(5)))
}

/// Calls until the time is up; returns how many calls were admitted.
async fn call_over_http(address: SocketAddr, start: Instant) -> u64 {
    let mut client = connect(address).await;
    let mut admitted = 0;
    while start.elapsed() < SPAN {
        let (response, _) = get(&mut client, "/", None).await;
        match response.status().as_u16() {
            200 => admitted += 1,
            status => assert_eq!(status, 429),
        }
    }
    admitted
}

/// The same over gRPC.
async fn call_over_grpc(address: SocketAddr, start: Instant) -> u64 {
    let mut client = HealthClient::new(channel(address).await);
    let mut admitted = 0;
    while start.elapsed() < SPAN {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => admitted += 1,
            Err(status) => assert_eq!(status.code(), tonic::Code::ResourceExhausted),
        }
    }
    admitted
}

/// Lets 64 clients call for three seconds, and checks how many calls were admitted.
#[expect(
    clippy::disallowed_methods,
    reason = "the store and the clients share real time"
)]
async fn check_exactness<F>(client: impl Fn(Instant) -> F)
where
    F: Future<Output = u64> + Send + 'static,
{
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(client(start))).collect();
    let mut admitted = 0;
    for client in clients {
        admitted += client.await.expect("no client fails");
    }
    let tenths = u64::try_from(start.elapsed().as_millis() / 100).expect("seconds");
    assert!(
        admitted <= 10 + tenths,
        "{admitted} in {tenths} tenths of a second"
    );
    assert!(admitted >= 20, "{admitted} in {tenths} tenths of a second");
}

async fn check_axum(store: Option<Store>) {
    let (listener, address) = listen().await;
    let service = axum::Router::new()
        .route("/", axum::routing::get(async || "hello\n"))
        .layer(layer(store));
    tokio::spawn(async { axum::serve(listener, service).await });
    check_exactness(|start| call_over_http(address, start)).await;
}

async fn check_tonic(store: Option<Store>) {
    let (listener, address) = listen().await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer(store)).add_service(health);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(server.serve_with_incoming(incoming));
    check_exactness(|start| call_over_grpc(address, start)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_64_clients_on_local_buckets_get_the_documented_counts() {
    check_axum(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_64_clients_on_local_buckets_get_the_documented_counts() {
    check_tonic(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_64_clients_on_redis_get_the_documented_counts() {
    let redis = Redis::start();
    check_axum(in_redis(&redis)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_64_clients_on_mariadb_get_the_documented_counts() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start();
    let store = Store::mysql(&server.url(), "a secret of this test", WhenDown::Refuse);
    check_axum(Some(store.answer_within(Duration::from_secs(5)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_64_clients_on_redis_get_the_documented_counts() {
    let redis = Redis::start();
    check_tonic(in_redis(&redis)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_store_that_is_down_is_a_decision_of_its_limit() {
    let mut redis = Redis::start();
    let (listener, address) = listen().await;
    let service = axum::Router::new()
        .route("/", axum::routing::get(async || "hello\n"))
        .layer(layer(in_redis(&redis)));
    tokio::spawn(async { axum::serve(listener, service).await });
    let mut client = connect(address).await;
    assert_eq!(get(&mut client, "/", None).await.0.status(), 200);
    redis.kill();
    let (response, body) = get(&mut client, "/", None).await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(body.contains("\"violated-policies\":[\"all\"]"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_store_that_is_slow_or_restarted_limits_again_and_refills_no_caller() {
    if !Maria::available() {
        return;
    }
    let mut server = Maria::start();
    let store = Store::mysql(&server.url(), "a secret of this test", WhenDown::Refuse);
    let limit = Limit::token_bucket(Rate::per_hour(3), 3).per(Key::header("x-api-key").or_refuse());
    let layer = RateLimitLayer::builder()
        .limit("few", limit)
        .store(store.answer_within(Duration::from_millis(500)));
    let (listener, address) = listen().await;
    let service = axum::Router::new()
        .route("/", axum::routing::get(async || "hello\n"))
        .layer(layer.build().expect("a layer"));
    tokio::spawn(async { axum::serve(listener, service).await });
    let mut client = connect(address).await;
    let mut admitted = 0;
    let mut decides = async |client: &mut _, key: &str, wanted: u16| {
        eventually("decision", Duration::from_secs(60), async || {
            let status = get(client, "/", Some(key)).await.0.status().as_u16();
            assert!([200, 429, 503].contains(&status), "{status}");
            admitted += u32::from(key == "ann" && status == 200);
            status == wanted
        })
        .await;
    };
    decides(&mut client, "ann", 200).await;
    decides(&mut client, "ann", 429).await;
    // (A refusal stands without the store, so another caller asks.)
    server.process().signal("-STOP");
    decides(&mut client, "bob", 503).await;
    server.process().signal("-CONT");
    decides(&mut client, "cleo", 429).await;
    server.stop();
    decides(&mut client, "dora", 503).await;
    server.run();
    decides(&mut client, "emil", 429).await;
    decides(&mut client, "ann", 429).await;
    // (A request that was refused for a slow store may have been charged.)
    assert!((1..=3).contains(&admitted), "{admitted}");
}

#[test]
fn book_shows_the_examples() {
    let page = include_str!("../../../docs/src/do/tower.md");
    for example in [
        include_str!("../examples/axum.rs"),
        include_str!("../examples/tonic.rs"),
    ] {
        let program = example.split_once("\n\n").expect("a first line").1;
        assert!(
            page.contains(&format!("```rust\n{program}```\n")),
            "{program}"
        );
    }
}
