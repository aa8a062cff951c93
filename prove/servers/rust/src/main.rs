//! The smallest servers around limiter libraries of crates.io: `prove-libraries PRODUCT PORT`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::Router;
use axum::http::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use limitador::limit::{Limit, Namespace};
use limitador::RateLimiter;
use throttlecrab::{AdaptiveStore, RateLimiter as Throttlecrab};
use tower_governor::errors::GovernorError;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::GovernorLayer;

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let (product, port) = (arguments.next().expect("a product"), arguments.next().expect("a port"));
    let app = match product.as_str() {
        "limitador" => limitador(),
        "throttlecrab" => throttlecrab(),
        "tower_governor" => tower_governor(),
        other => panic!("no product is called {other}"),
    };
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("the port is free");
    axum::serve(listener, app).await.expect("it serves");
}

fn key(headers: &HeaderMap) -> String {
    headers["x-api-key"].to_str().expect("text").to_owned()
}

fn limit() -> Limit {
    Limit::new("prove", 100, 10, vec![], vec!["key".try_into().expect("an expression")])
}

fn limitador() -> Router {
    let limiter = Arc::new(RateLimiter::new(10_000));
    limiter.add_limit(limit());
    Router::new().route("/", get(move |headers: HeaderMap| async move {
        let values = HashMap::from([("key".to_owned(), key(&headers))]);
        match limiter.check_rate_limited_and_update(&Namespace::from("prove"), &values.into(), 1) {
            Ok(checked) if checked.limited => StatusCode::TOO_MANY_REQUESTS,
            Ok(_) => StatusCode::OK,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }))
}

fn throttlecrab() -> Router {
    let limiter = Arc::new(Mutex::new(Throttlecrab::new(AdaptiveStore::new())));
    Router::new().route("/", get(move |headers: HeaderMap| async move {
        let decided = limiter.lock().expect("not poisoned").rate_limit(&key(&headers), 100, 10, 1, 1, SystemTime::now());
        match decided {
            Ok((true, _)) => StatusCode::OK.into_response(),
            Ok((false, refused)) => refusal(refused.retry_after.as_secs_f64()),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }))
}

fn refusal(retry_after: f64) -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [("retry-after", retry_after.to_string())]).into_response()
}

#[derive(Clone, Debug)]
struct ByKey;

impl KeyExtractor for ByKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<Self::Key, GovernorError> {
        Ok(key(request.headers()))
    }
}

fn tower_governor() -> Router {
    let config = GovernorConfigBuilder::default().key_extractor(ByKey).per_millisecond(100).burst_size(100).finish().expect("a period and a burst");
    Router::new().route("/", get(|| async { "ok" })).layer(GovernorLayer::new(config))
}
