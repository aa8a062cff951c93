//! How hyper, and httparse behind it, read the same bytes.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::ours::Message;

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// The requests that hyper's server hands on from `bytes`.
pub fn requests(bytes: &[u8]) -> Vec<Message> {
    let read: Rc<RefCell<Vec<Message>>> = Rc::default();
    run(async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let service = service_fn(|request: Request<Incoming>| {
            let read = Rc::clone(&read);
            async move {
                let what = request.uri().to_string();
                if let Ok(body) = request.into_body().collect().await {
                    let body = body.to_bytes().to_vec();
                    read.borrow_mut().push(Message {
                        what,
                        body,
                        ..Message::default()
                    });
                }
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        let server = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(near), service);
        let client = async {
            let (mut reader, mut writer) = tokio::io::split(far);
            let _ = writer.write_all(bytes).await;
            let _ = writer.shutdown().await;
            let _ = reader.read_to_end(&mut Vec::new()).await;
        };
        let _ = tokio::join!(server, client);
    });
    read.take()
}

/// What hyper's client makes of a response behind which the connection ends.
pub fn response(bytes: &[u8], to_head: bool) -> Result<(String, Vec<u8>), String> {
    run(async {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near))
            .await
            .map_err(|error| error.to_string())?;
        let method = if to_head { "HEAD" } else { "GET" };
        let request = Request::builder()
            .method(method)
            .uri("/")
            .header("host", "a")
            .body(Empty::<Bytes>::new())
            .expect("a request");
        let server = async {
            let _ = far.read(&mut [0; 1024]).await;
            let _ = far.write_all(bytes).await;
            let _ = far.shutdown().await;
        };
        let exchange = async {
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| format!("{error:?}"))?;
            let status = response.status().to_string();
            let body = response.into_body().collect().await;
            let body = body.map_err(|error| format!("{error:?}"))?;
            Ok((status, body.to_bytes().to_vec()))
        };
        // The connection is polled until it ends: a body may wait for its last bytes.
        let (result, _, _) = tokio::join!(exchange, server, connection);
        result
    })
}

/// Where the request that `bytes` begin with ends by httparse's account of its head and its chunks.
pub fn httparse_request(bytes: &[u8]) -> Option<usize> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(mut at)) = request.parse(bytes) else {
        return None;
    };
    let of = |name: &str| {
        let named = request
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| header.value).collect::<Vec<_>>()
    };
    match (&of("transfer-encoding")[..], &of("content-length")[..]) {
        ([], []) => Some(at),
        ([], [length]) => {
            let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
            Some(at + length)
        }
        ([coding], _) if coding.eq_ignore_ascii_case(b"chunked") => loop {
            let Ok(httparse::Status::Complete((line, size))) =
                httparse::parse_chunk_size(&bytes[at..])
            else {
                return None;
            };
            at += line;
            if size > 0 {
                at += usize::try_from(size).ok()? + 2;
                continue;
            }
            let mut trailers = [httparse::EMPTY_HEADER; 64];
            let parsed = httparse::parse_headers(bytes.get(at..)?, &mut trailers);
            let Ok(httparse::Status::Complete((end, _))) = parsed else {
                return None;
            };
            return Some(at + end);
        },
        _ => None,
    }
}
