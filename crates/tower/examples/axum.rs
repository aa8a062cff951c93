//! An axum service with limits: `cargo run -p tollgate-limiter --features tower --example axum`.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate_tower::{Error, Key, Limit, Rate, RateLimitLayer};

/// The service, and the limits before it.
fn service() -> Result<Router, Error> {
    let per_address = Limit::token_bucket(Rate::per_second(10), 10).per(Key::address());
    let search =
        Limit::token_bucket(Rate::per_hour(30), 3).per(Key::header("x-api-key").or_refuse());
    let limits = RateLimitLayer::builder()
        .limit("per_address", per_address)
        .limit("search", search)
        .route("/**", &["per_address"])
        .route("GET /search/{term}", &["per_address", "search"])
        .build()?
        .peer(|extensions| Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .route("/search/{term}", get(async || "found\n"))
        .layer(limits))
}

/// Serves the connections of `listener`.
pub(crate) async fn serve(
    listener: TcpListener,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let service = service()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}
