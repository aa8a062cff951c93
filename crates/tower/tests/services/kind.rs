//! A service behind the layer, of axum or of tonic, and a client that says the same of both.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tollgate_tower::RateLimitLayer;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// The library that a service is written with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Axum,
    Tonic,
}

/// A client with one connection.
pub(crate) enum Client {
    Http(SendRequest<Empty<Bytes>>),
    Grpc(HealthClient<Channel>),
}

/// The outcome of a request, in the terms of HTTP.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The body, or the message of a gRPC status.
    pub(crate) text: String,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Axum, Self::Tonic];

    /// Starts a service behind `layer`.
    pub(crate) async fn serve(self, layer: RateLimitLayer) -> SocketAddr {
        let (listener, address) = listen().await;
        let layer = layer.peer(peer);
        match self {
            Self::Axum => {
                let service = axum::Router::new()
                    .route("/", axum::routing::get(async || "hello\n"))
                    .layer(layer)
                    .into_make_service_with_connect_info::<SocketAddr>();
                tokio::spawn(async { axum::serve(listener, service).await });
            }
            Self::Tonic => {
                let (_reporter, health) = tonic_health::server::health_reporter();
                let server = Server::builder().layer(layer).add_service(health);
                tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
            }
        }
        address
    }

    pub(crate) async fn connect(self, address: SocketAddr) -> Client {
        match self {
            Self::Axum => Client::Http(connect(address).await),
            Self::Tonic => Client::Grpc(HealthClient::new(channel(address).await)),
        }
    }
}

impl Client {
    /// Sends a request with these headers.
    pub(crate) async fn ask(&mut self, headers: &[(&'static str, &str)]) -> Outcome {
        match self {
            Self::Http(client) => {
                let (response, text) = get(client, "/", headers).await;
                Outcome {
                    status: response.status().as_u16(),
                    headers: response.into_parts().0.headers,
                    text,
                }
            }
            Self::Grpc(client) => {
                let mut request = tonic::Request::new(HealthCheckRequest::default());
                for (name, value) in headers {
                    let value = value.parse().expect("text");
                    request.metadata_mut().append(*name, value);
                }
                let refused = match client.check(request).await {
                    Err(status) => status,
                    Ok(response) => {
                        return Outcome {
                            status: 200,
                            headers: response.metadata().clone().into_headers(),
                            text: String::new(),
                        };
                    }
                };
                Outcome {
                    status: match refused.code() {
                        tonic::Code::ResourceExhausted => 429,
                        tonic::Code::Unavailable => 503,
                        _ => panic!("{refused}"),
                    },
                    headers: refused.metadata().clone().into_headers(),
                    text: refused.message().to_owned(),
                }
            }
        }
    }
}

/// The address of the connection.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let http = || Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip());
    let grpc = || Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip());
    http().or_else(grpc)
}

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

pub(crate) async fn connect(address: SocketAddr) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .expect("a handshake");
    tokio::spawn(connection);
    sender
}

pub(crate) async fn get(
    client: &mut SendRequest<Empty<Bytes>>,
    path: &str,
    headers: &[(&'static str, &str)],
) -> (Response<()>, String) {
    let mut request = Request::builder().uri(path).header("host", "service");
    for (name, value) in headers {
        request = request.header(*name, *value);
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

pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    endpoint.connect().await.expect("a connection")
}
