//! The layer before services of every kind, on a clock that is moved by hand.

mod decided;
mod readiness;
mod replaced;
mod settled;

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::task::Poll;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::engine::LimitsSource;
use super::*;
use tollgate_limit::{Micros, Timestamp};
use tollgate_store::clock::Clock;

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn layer_at(builder: Builder) -> (RateLimitLayer, Clock) {
    let clock = Clock::manual(START);
    let layer = RateLimitLayer::new(LimitsSource::Builder(Box::new(builder)), clock.clone());
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
