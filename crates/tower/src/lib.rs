//! A [`tower::Layer`] that limits the requests of a service: of axum, tonic, or anything on hyper.
//!
//! The layer reads the same file as the gateway, or takes its limits from a [`Builder`], and uses
//! the same buckets, stores, identities and refusals. A refused request never reaches the service:
//! its response is a 429 with `Retry-After`, `RateLimit` headers and a problem document, or status 8
//! `RESOURCE_EXHAUSTED` for a gRPC call. An admitted request passes unchanged, and its response gets
//! the `RateLimit` headers.
//!
//! ```
//! use http::{Request, Response};
//! use http_body_util::Empty;
//! use bytes::Bytes;
//! use tollgate_tower::{Key, Limit, Rate, RateLimitLayer};
//! use tower::{Layer, Service, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let per_key = Limit::token_bucket(Rate::per_minute(60), 2).per(Key::header("x-api-key").or_refuse());
//! let layer = RateLimitLayer::builder().limit("per_key", per_key).build()?;
//!
//! let mut service = layer.layer(service_fn(async |_: Request<Empty<Bytes>>| {
//!     Ok::<_, std::convert::Infallible>(Response::new(Empty::<Bytes>::new()))
//! }));
//! for expected in [200, 200, 429] {
//!     let request = Request::builder().header("x-api-key", "alice").body(Empty::new())?;
//!     let response = service.ready().await?.call(request).await?;
//!     assert_eq!(response.status(), expected);
//! }
//! # Ok(()) }
//! ```
//!
//! # What is charged, and what is given back
//! A request draws from all limits of its route or from none. `settle`, `count` and `refund_on` read
//! the service's response. An error of the service, a response body that ends early, and a future
//! that is dropped lower no charge, because a caller can bring them about; a response that would have
//! been settled then costs the most that it may state. The place of a request in
//! a concurrency limit is free when its response body has ended or was dropped; a connection that
//! was upgraded holds none.
//!
//! # Requests that no limit applies to
//! A request that no route matches passes unlimited. A request whose path or address cannot be read
//! safely is refused with 400, because no limit could be found for it.
//!
//! # Backpressure
//! The layer is ready when the service is, so a request is not charged before the service can take
//! it. A refusal gives up the readiness of the service.
//!
//! [`tower::Layer`]: https://docs.rs/tower-layer/latest/tower_layer/trait.Layer.html

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admit;
mod body;
mod builder;
mod engine;
mod future;
mod key;
mod layer;
mod limit;
mod passage;
mod store;
#[cfg(test)]
mod tests;

pub use body::ResponseBody;
pub use builder::Builder;
pub use engine::{Error, Handle, LimitCount};
pub use future::ResponseFuture;
pub use key::Key;
pub use layer::{RateLimit, RateLimitLayer, RequestHead};
pub use limit::{Limit, Rate};
pub use store::{Store, WhenDown};
pub use tollgate_limiter::{Agreement, Count};

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
