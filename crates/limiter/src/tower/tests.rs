//! The layer before services of every kind, on a clock that is moved by hand.

use std::convert::Infallible;
use std::future::{pending, poll_fn, ready};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Channel, Empty, Full};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::engine::Source;
use super::*;
use tollgate_limit::{Micros, Timestamp};
use tollgate_store::clock::Clock;

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn layer_at(builder: Builder) -> (RateLimitLayer, Clock) {
    let clock = Clock::manual(START);
    let layer = RateLimitLayer::new(Source::Builder(Box::new(builder)), clock.clone());
    (layer.expect("valid limits"), clock)
}

/// A layer with one limit for every request.
fn one(limit: Limit) -> (RateLimitLayer, Clock) {
    layer_at(RateLimitLayer::builder().limit("all", limit.per(Key::everyone())))
}

fn request(path: &str) -> Request<Empty<Bytes>> {
    Request::builder()
        .uri(path)
        .body(Empty::new())
        .expect("a request")
}

/// A service that responds with this body and status.
fn responds(
    status: u16,
    body: &'static str,
) -> impl Service<
    Request<Empty<Bytes>>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future: Send,
> + Clone {
    service_fn(move |_: Request<Empty<Bytes>>| {
        let response = Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .body(Full::from(body));
        ready(Ok(response.expect("a response")))
    })
}

/// The status and headers of one request's response, and its body as text.
async fn ask<S, R>(
    service: &mut S,
    request: Request<Empty<Bytes>>,
) -> (http::response::Parts, String)
where
    S: Service<Request<Empty<Bytes>>, Response = Response<R>, Error = Infallible>,
    R: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let response = service
        .ready()
        .await
        .expect("a ready service")
        .call(request)
        .await
        .expect("a response");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    (head, String::from_utf8(body.to_vec()).expect("text"))
}

#[tokio::test]
async fn layer_burst_used_up_is_a_429_that_keeps_its_word() {
    let (layer, clock) = one(Limit::token_bucket(Rate::per_minute(60), 2));
    let mut service = layer.layer(responds(200, "served"));
    for remaining in [1, 0] {
        let (head, body) = ask(&mut service, request("/")).await;
        assert_eq!((head.status, &*body), (StatusCode::OK, "served"));
        let state = format!("\"all\";r={remaining};t=");
        let told = head.headers["ratelimit"].to_str().expect("text");
        assert!(told.starts_with(&state), "{told}");
        assert_eq!(head.headers["ratelimit-policy"], "\"all\";q=2;w=2");
    }
    let (head, body) = ask(&mut service, request("/")).await;
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
    for (name, value) in [
        ("retry-after", "1"),
        ("ratelimit", "\"all\";r=0;t=1"),
        ("ratelimit-policy", "\"all\";q=2;w=2"),
        ("cache-control", "no-store"),
        ("content-type", "application/problem+json"),
    ] {
        assert_eq!(head.headers[name], value, "{name}");
    }
    let id = body
        .split("\"decision_id\":\"")
        .nth(1)
        .expect("an id")
        .trim_end_matches("\"}\n");
    assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let expected = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
        \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\"status\":429,\
        \"detail\":\"The quota is used up for now. A retry after the time given is admitted.\",\
        \"violated-policies\":[\"all\"],\"retry_after_ms\":1000,\"decision_id\":\"ID\"}\n";
    assert_eq!(body.replace(id, "ID"), expected);

    clock.advance(Micros(999_999));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    clock.advance(Micros(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
}

#[tokio::test]
async fn layer_grpc_call_is_refused_with_status_8_and_a_pushback() {
    let (layer, _) = one(Limit::token_bucket(Rate::per_minute(60), 1));
    let mut service = layer.layer(responds(200, ""));
    let call = || {
        let mut call = request("/package.Service/Method");
        let kind = http::HeaderValue::from_static("application/grpc+proto");
        call.headers_mut().insert("content-type", kind);
        call
    };
    assert_eq!(ask(&mut service, call()).await.0.status, 200);
    let (head, body) = ask(&mut service, call()).await;
    assert_eq!((head.status, &*body), (StatusCode::OK, ""));
    assert_eq!(head.headers["grpc-status"], "8");
    assert_eq!(head.headers["grpc-retry-pushback-ms"], "1000");
    assert_eq!(head.headers["content-type"], "application/grpc+proto");
}

#[tokio::test]
async fn layer_request_without_key_is_refused_with_a_challenge() {
    let limit =
        Limit::token_bucket(Rate::per_minute(60), 1).per(Key::header("x-api-key").or_refuse());
    let (layer, _) = layer_at(RateLimitLayer::builder().limit("per_key", limit));
    let mut service = layer.layer(responds(200, ""));
    let (head, _) = ask(&mut service, request("/")).await;
    assert_eq!(head.status, StatusCode::UNAUTHORIZED);
    let challenge = head.headers["www-authenticate"].to_str().expect("text");
    assert!(challenge.contains("name=\"x-api-key\""), "{challenge}");
    for (key, status) in [("a", 200), ("b", 200), ("a", 429)] {
        let mut request = request("/");
        let key = http::HeaderValue::from_static(key);
        request.headers_mut().insert("x-api-key", key);
        assert_eq!(ask(&mut service, request).await.0.status, status);
    }
}

#[tokio::test]
async fn layer_request_without_a_route_passes_and_one_that_cannot_be_read_is_refused() {
    let limit = Limit::token_bucket(Rate::per_hour(1), 1).per(Key::everyone());
    let builder = RateLimitLayer::builder().limit("search", limit);
    let (layer, _) = layer_at(builder.route("GET /search/**", &["search"]));
    let mut service = layer.layer(responds(200, ""));
    for (path, status) in [
        ("/other", 200),
        ("/other", 200),
        ("/search/a", 200),
        ("/search/a", 429),
        // The same path in another spelling.
        ("/%73earch/a", 429),
        ("/search/%00", 400),
    ] {
        let (head, _) = ask(&mut service, request(path)).await;
        assert_eq!(head.status, status, "{path}");
    }
}

#[tokio::test]
async fn layer_per_address_reads_the_peer_and_trusted_proxies_only() {
    let limit = Limit::token_bucket(Rate::per_hour(1), 1).per(Key::address());
    let builder = RateLimitLayer::builder().limit("per_address", limit);
    let (layer, _) = layer_at(builder.trusted_proxies(&["10.0.0.0/8"]));
    let mut service = layer.layer(responds(200, ""));
    for (peer, named, status) in [
        ("192.0.2.1", "", 200),
        ("192.0.2.1", "203.0.113.1", 429),
        ("192.0.2.2", "", 200),
        ("10.0.0.1", "203.0.113.1", 200),
        ("10.0.0.2", "203.0.113.1", 429),
    ] {
        let mut request = request("/");
        let peer: std::net::IpAddr = peer.parse().expect("an address");
        request.extensions_mut().insert(peer);
        if !named.is_empty() {
            let named = http::HeaderValue::from_static(named);
            request.headers_mut().insert("x-forwarded-for", named);
        }
        assert_eq!(ask(&mut service, request).await.0.status, status, "{peer}");
    }
}

#[tokio::test]
async fn layer_changed_limits_keep_the_buckets() {
    let limit = |rate, burst| Limit::token_bucket(rate, burst).per(Key::everyone());
    let builder = |rate, burst| RateLimitLayer::builder().limit("all", limit(rate, burst));
    let (layer, clock) = layer_at(builder(Rate::per_hour(1), 2));
    let mut service = layer.layer(responds(200, ""));
    for status in [200, 200, 429] {
        assert_eq!(ask(&mut service, request("/")).await.0.status, status);
    }
    layer
        .handle()
        .replace(builder(Rate::per_second(1), 10))
        .expect("valid");
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    clock.advance(Micros::from_secs(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);

    let wrong = layer.handle().replace(builder(Rate::per_second(0), 10));
    assert!(
        matches!(&wrong, Err(Error::Config(text)) if text.contains("rate")),
        "{wrong:?}"
    );
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    let counts = layer.handle().counts();
    assert_eq!((counts[0].count.allowed, counts[0].count.refused), (3, 3));
}

#[tokio::test]
async fn layer_file_is_read_again_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.toml");
    let write = |rate: &str| {
        let text = format!(
            "[limits.all]\nrate = \"{rate}\"\nburst = 1\nper = \"everyone\"\n[[routes]]\nmatch = \"/**\"\n\
             upstream = \"http://127.0.0.1:3000\"\nlimits = [\"all\"]\n"
        );
        std::fs::write(&path, text).expect("written");
    };
    write("1/hour");
    let clock = Clock::manual(START);
    let layer = RateLimitLayer::new(Source::File(path.clone()), clock.clone()).expect("valid");
    let handle = layer.handle();
    let warnings = handle.warnings();
    assert!(
        warnings[0].contains("`upstream` has no effect in a service"),
        "{warnings:?}"
    );
    let mut service = layer.layer(responds(200, ""));
    for status in [200, 429] {
        assert_eq!(ask(&mut service, request("/")).await.0.status, status);
    }
    write("1/fortnight");
    let error = handle.reload().expect_err("no such period").to_string();
    assert!(error.contains("limits.toml:2:"), "{error}");
    clock.advance(Micros::from_secs(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    write("1/second");
    handle.reload().expect("valid");
    clock.advance(Micros::from_secs(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
}

/// The units that are left in the bucket of the only limit.
async fn left(layer: &RateLimitLayer) -> u64 {
    let mut probe = layer.layer(responds(200, "{\"cost\":0}"));
    let (head, _) = ask(&mut probe, request("/")).await;
    let told = head.headers["ratelimit"].to_str().expect("text");
    let units = told.split(";r=").nth(1).expect("units");
    let digits = units.split(';').next().expect("digits");
    digits.parse().expect("a number")
}

#[tokio::test]
async fn layer_settle_charges_the_stated_cost_and_the_most_if_the_response_breaks_off() {
    let limit = || {
        Limit::token_bucket(Rate::per_day(1), 2_000).set(
            "settle",
            r#"{ from = "json:cost", estimate = 100, max = 500 }"#,
        )
    };
    // The probe is charged its estimate before its response states a cost of 0.
    let (layer, _) = one(limit());
    assert_eq!(left(&layer).await, 1_900);
    let mut service = layer.layer(responds(200, "{\"cost\":7}"));
    ask(&mut service, request("/")).await;
    assert_eq!(left(&layer).await, 1_893, "7 units");
    let mut service = layer.layer(responds(200, "{\"cost\":300}"));
    ask(&mut service, request("/")).await;
    assert_eq!(left(&layer).await, 1_593, "300 units");

    // The head was read, the body was not: what it would have stated is not known.
    let response = service.ready().await.expect("ready").call(request("/"));
    drop(response.await.expect("a response"));
    assert_eq!(left(&layer).await, 1_093, "the most");
    // The future is dropped before there is a response.
    let mut never = layer.layer(service_fn(|_: Request<Empty<Bytes>>| {
        pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }));
    let mut future = Box::pin(never.ready().await.expect("ready").call(request("/")));
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(future);
    assert_eq!(left(&layer).await, 593, "the most");
}

#[tokio::test]
async fn layer_refund_needs_a_response_of_the_service() {
    let limit = Limit::token_bucket(Rate::per_day(1), 10).refund_on(&["503"]);
    let (layer, _) = one(limit);
    let mut failing = layer.layer(responds(503, ""));
    ask(&mut failing, request("/")).await;
    assert_eq!(left(&layer).await, 9, "given back");
    // An error of the service is no response: a caller may bring it about.
    let mut broken = layer.layer(service_fn(|_: Request<Empty<Bytes>>| {
        ready(Err::<Response<Full<Bytes>>, _>("broken"))
    }));
    let result = broken
        .ready()
        .await
        .expect("ready")
        .call(request("/"))
        .await;
    assert_eq!(result.expect_err("the error passes through"), "broken");
    assert_eq!(left(&layer).await, 7);
}

#[tokio::test]
async fn layer_place_in_flight_is_free_when_the_body_ends_or_is_dropped_or_the_call_is_cancelled() {
    let (layer, _) = one(Limit::in_flight(1));
    let mut streaming = layer.layer(service_fn(|_: Request<Empty<Bytes>>| async {
        let (sender, body) = Channel::<Bytes, Infallible>::new(1);
        let response = Response::builder().extension(std::sync::Arc::new(sender));
        Ok::<_, Infallible>(response.body(body).expect("a response"))
    }));
    let mut other = layer.layer(responds(200, "whole"));
    let mut call = |request| streaming.call(request);

    let response = call(request("/")).await.expect("a response");
    let (head, _) = ask(&mut other, request("/")).await;
    assert_eq!(head.status, 429);
    assert!(
        !head.headers.contains_key("retry-after"),
        "no such time is known"
    );
    drop(response);
    assert_eq!(ask(&mut other, request("/")).await.0.status, 200, "dropped");

    let mut response = call(request("/")).await.expect("a response");
    drop(
        response
            .extensions_mut()
            .remove::<std::sync::Arc<http_body_util::channel::Sender<Bytes, Infallible>>>(),
    );
    assert!(
        response.body_mut().frame().await.is_none(),
        "the body has ended"
    );
    assert_eq!(ask(&mut other, request("/")).await.0.status, 200, "ended");
    drop(response);

    let cancelled = call(request("/"));
    assert_eq!(ask(&mut other, request("/")).await.0.status, 429);
    drop(cancelled);
    assert_eq!(
        ask(&mut other, request("/")).await.0.status,
        200,
        "cancelled"
    );
}

#[tokio::test]
async fn layer_held_request_is_sent_when_it_is_due() {
    let limit = Limit::token_bucket(Rate::per_minute(60), 1);
    let (layer, clock) = one(limit.max_wait(std::time::Duration::from_secs(5)));
    let mut service = layer.layer(responds(200, ""));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
    let mut held = Box::pin(service.ready().await.expect("ready").call(request("/")));
    poll_fn(|context| {
        assert!(held.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    clock.advance(Micros::from_secs(1));
    assert_eq!(held.await.expect("a response").status(), 200);
}

/// A service with one place, which it reserves in `poll_ready` and frees when it was called or is
/// dropped.
#[derive(Debug)]
struct Reserving {
    places: std::sync::Arc<AtomicUsize>,
    has: bool,
}

impl Clone for Reserving {
    fn clone(&self) -> Self {
        let places = std::sync::Arc::clone(&self.places);
        Self { places, has: false }
    }
}

impl Drop for Reserving {
    fn drop(&mut self) {
        if self.has {
            self.places.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Service<Request<Empty<Bytes>>> for Reserving {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Full<Bytes>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let free = |places: usize| places.checked_sub(1);
        let order = Ordering::Relaxed;
        if !self.has {
            self.has = self.places.fetch_update(order, order, free).is_ok();
        }
        if self.has {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn call(&mut self, _: Request<Empty<Bytes>>) -> Self::Future {
        assert!(std::mem::take(&mut self.has), "called without being ready");
        self.places.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn layer_waits_for_the_service_before_it_charges_and_gives_up_its_readiness_when_it_refuses()
{
    let (layer, clock) =
        one(Limit::token_bucket(Rate::per_minute(60), 1)
            .max_wait(std::time::Duration::from_secs(1)));
    let places = std::sync::Arc::new(AtomicUsize::new(0));
    let inner = Reserving {
        places: std::sync::Arc::clone(&places),
        has: false,
    };
    let mut service = layer.layer(inner);
    let is_ready = |service: &mut RateLimit<Reserving>| {
        let waker = std::task::Waker::noop();
        service
            .poll_ready(&mut Context::from_waker(waker))
            .is_ready()
    };
    assert!(!is_ready(&mut service));
    assert_eq!(layer.handle().counts()[0].count.allowed, 0);
    places.store(1, Ordering::Relaxed);
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
    // Held: the service that is ready serves it, and its clone is not ready meanwhile.
    assert!(is_ready(&mut service));
    let held = service.call(request("/"));
    assert!(!is_ready(&mut service));
    clock.advance(Micros::from_secs(1));
    assert_eq!(held.await.expect("a response").status(), 200);
    assert_eq!(places.load(Ordering::Relaxed), 1);
    // The next two requests are over the limit: the first waits for its unit, the second would wait
    // too long and is refused.
    assert!(is_ready(&mut service));
    let due = service.call(request("/"));
    let mut second = service.clone();
    places.store(1, Ordering::Relaxed);
    assert!(is_ready(&mut second));
    let refused = second.call(request("/")).await.expect("a response");
    assert_eq!(refused.status(), 429);
    assert_eq!(places.load(Ordering::Relaxed), 1, "given up");
    drop(due);
}
