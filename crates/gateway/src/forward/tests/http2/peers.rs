//! A client and an upstream that speak HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::forward::tests::relay::Gateway;
use crate::forward::tests::wire::DEADLINE;

/// A body with trailers.
#[derive(Debug, Default)]
pub(super) struct Message {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Message {
    pub(super) fn new(data: &'static str, trailers: &[(&'static str, &'static str)]) -> Self {
        let data = (!data.is_empty()).then(|| Bytes::from_static(data.as_bytes()));
        let trailers = trailers
            .iter()
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect::<HeaderMap>();
        Self {
            data,
            trailers: (!trailers.is_empty()).then_some(trailers),
        }
    }
}

impl Body for Message {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let data = this.data.take().map(Frame::data);
        Poll::Ready(
            data.or_else(|| this.trailers.take().map(Frame::trailers))
                .map(Ok),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }
}

/// An HTTP/2 upstream without TLS: the body and the headers sent back, the trailers with a status.
pub(super) fn mirror() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("set");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("registered");
            while let Ok((stream, _)) = listener.accept().await {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let service = hyper::service::service_fn(reflect);
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
    });
    address
}

async fn reflect(request: Request<Incoming>) -> Result<Response<Message>, Infallible> {
    let (head, body) = request.into_parts();
    // The client that broke its body off does not receive the response.
    let Ok(collected) = body.collect().await else {
        return Ok(Response::default());
    };
    let mut trailers = collected.trailers().cloned().unwrap_or_default();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let mut response = Response::new(Message {
        data: Some(collected.to_bytes()),
        trailers: Some(trailers),
    });
    let seen = format!("{:?} {} {}", head.version, head.method, head.uri);
    for (name, value) in head
        .headers
        .iter()
        .filter(|(name, _)| *name != "content-length")
    {
        response.headers_mut().append(name, value.clone());
    }
    if let Some(te) = head.headers.get("te") {
        response.headers_mut().insert("x-te", te.clone());
    }
    response
        .headers_mut()
        .insert("x-seen", HeaderValue::from_str(&seen).expect("visible"));
    Ok(response)
}

pub(super) fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await.expect("in time") })
}

pub(super) async fn client(gateway: &Gateway) -> http2::SendRequest<Message> {
    let stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .expect("connected");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("an HTTP/2 server");
    tokio::spawn(connection);
    sender
}

pub(super) fn to(gateway: &Gateway, path: &str) -> http::request::Builder {
    Request::builder()
        .method("POST")
        .uri(format!("http://{}{path}", gateway.address))
}
