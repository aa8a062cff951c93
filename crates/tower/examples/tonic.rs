//! A tonic service with limits: `cargo run -p tollgate-limiter --features tower --example tonic`.

use std::net::IpAddr;

use http::Extensions;
use tokio::net::TcpListener;
use tollgate_tower::{Error, Key, Limit, Rate, RateLimitLayer};
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};

/// The address of the connection.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let connection = extensions.get::<TcpConnectInfo>()?;
    Some(connection.remote_addr()?.ip())
}

/// The limits of the service. A gRPC call is a POST of `/package.Service/Method`.
fn limits() -> Result<RateLimitLayer, Error> {
    let per_address = Limit::token_bucket(Rate::per_second(10), 10).per(Key::address());
    let layer = RateLimitLayer::builder()
        .limit("per_address", per_address)
        .route("POST /grpc.health.v1.Health/**", &["per_address"])
        .build()?;
    Ok(layer.peer(peer))
}

/// Serves the connections of `listener`.
pub(crate) async fn serve(
    listener: TcpListener,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    Server::builder()
        .layer(limits()?)
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener))
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    serve(TcpListener::bind("127.0.0.1:50051").await?).await
}
