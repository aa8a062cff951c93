//! What a response gives back or charges more, and when a place in flight is free.

use std::future::pending;
use std::time::Duration;

use http_body_util::Channel;

use super::*;

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
async fn layer_line_lets_a_request_wait_for_what_another_has_reserved() {
    // A request reserves six of ten, and costs one.
    let limit = Limit::token_bucket(Rate::per_day(1), 10)
        .set("cost", r#"{ header = "x-most", default = 6, max = 6 }"#)
        .set("settle", r#"{ from = "json:cost" }"#)
        .max_wait(Duration::from_secs(60));
    let (layer, _) = one(limit);
    let mut service = layer.layer(responds(200, "{\"cost\":1}"));
    let response = service.ready().await.expect("ready").call(request("/"));
    let running = response.await.expect("a response");
    let waits = tokio::spawn(service.ready().await.expect("ready").call(request("/")));
    tokio::task::yield_now().await;
    assert!(!waits.is_finished());
    // The clock stands, so that only the end of the first can end the wait.
    running.into_body().collect().await.expect("a body");
    let response = waits.await.expect("no panic").expect("a response");
    assert_eq!(response.status(), 200);
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
