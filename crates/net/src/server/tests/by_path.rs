//! A handler that answers by the path it is asked for.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::server::{ConnInfo, Event, Handler, Inbound, Payload};

/// Answers by path; `/hold` answers when `released`.
#[derive(Clone)]
pub(super) struct ByPath {
    pub(super) held: Arc<tokio::sync::Semaphore>,
    pub(super) released: Arc<tokio::sync::Semaphore>,
    /// What it observed, by the words for it.
    pub(super) events: Arc<Mutex<Vec<&'static str>>>,
}

impl Handler for ByPath {
    type Body = Chunks;

    fn observe(&self, event: Event<'_>) {
        self.events.lock().expect("no panic").push(match event {
            Event::Opened => "opened",
            Event::AcceptFailed => "accept_failed",
            Event::Refused(reason) => reason,
            Event::BadHead(unread) => unread.reason,
            Event::Panicked => "panicked",
        });
    }

    async fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> Response<Chunks> {
        match request.uri().path() {
            "/panic" => panic!("as asked"),
            "/hold" => {
                self.held.add_permits(1);
                self.released
                    .acquire()
                    .await
                    .expect("never closed")
                    .forget();
                Response::new("held".into())
            }
            "/early" => {
                let mut answer = Response::new("too much".into());
                *answer.status_mut() = http::StatusCode::PAYLOAD_TOO_LARGE;
                answer
            }
            "/hangs" => Response::new(Chunks {
                streams: true,
                hangs: true,
                ..Chunks::from("abc")
            }),
            // Read by another task, which stops after two pieces.
            "/half" => {
                let (mut body, held) = (request.into_body(), self.held.clone());
                tokio::task::spawn_local(async move {
                    for _ in 0..2 {
                        let _ = body.frame().await;
                        held.add_permits(1);
                    }
                    std::future::pending::<()>().await;
                    drop(body);
                });
                std::future::pending().await
            }
            "/aside" => {
                // Another task reads on, as an upstream does that responded early.
                tokio::task::spawn_local(request.into_body().collect());
                Response::new("read on".into())
            }
            "/empty" => {
                let mut answer = Response::new(Chunks::default());
                *answer.status_mut() = http::StatusCode::NOT_FOUND;
                answer
            }
            "/large" => Response::new(Chunks {
                bytes: vec![b'x'; 1 << 16].into(),
                left: 1 << 10,
                ..Chunks::default()
            }),
            "/counted" => {
                let polled = Some(Arc::clone(&self.held));
                Response::new(Chunks {
                    bytes: vec![b'x'; 1 << 16].into(),
                    left: 1 << 10,
                    polled,
                    ..Chunks::default()
                })
            }
            "/unsent" => Response::new(Chunks {
                bytes: vec![b'x'; 1 << 16].into(),
                left: 1 << 10,
                unsent: Some(Arc::clone(&self.held)),
                ..Chunks::default()
            }),
            "/stream" => Response::new(Chunks {
                left: 2,
                streams: true,
                ..Chunks::from("abc")
            }),
            "/hollow" => Response::new(Chunks {
                left: 2,
                streams: true,
                ..Chunks::default()
            }),
            "/unchanged" => {
                let answer = Response::builder().status(304).header("content-length", 5);
                answer
                    .header("transfer-encoding", "chunked")
                    .body(Chunks::default())
                    .expect("an answer")
            }
            // Six bytes, whatever is said of them.
            path if path.starts_with("/says/") => {
                let answer = Response::builder().header("content-length", &path["/says/".len()..]);
                answer
                    .body(Chunks {
                        left: 2,
                        streams: true,
                        ..Chunks::from("abc")
                    })
                    .expect("an answer")
            }
            "/broken" => Response::new(Chunks {
                streams: true,
                breaks: true,
                ..Chunks::from("abc")
            }),
            "/peer" => Response::new(
                connection
                    .peer
                    .map_or_else(|| "unix".into(), |peer| peer.to_string().into()),
            ),
            "/echo" => Response::new(
                request
                    .into_body()
                    .collect()
                    .await
                    .map(|b| b.to_bytes())
                    .unwrap_or_default()
                    .into(),
            ),
            path => Response::new(format!("{} {path}", request.method()).into()),
        }
    }
}

/// The same bytes again and again.
#[derive(Default)]
pub(super) struct Chunks {
    bytes: Bytes,
    left: usize,
    /// The number is not polled.
    streams: bool,
    /// The last piece is followed by an error.
    breaks: bool,
    /// The last piece is followed by nothing.
    hangs: bool,
    /// Gets a permit for each piece that was sent.
    polled: Option<Arc<tokio::sync::Semaphore>>,
    /// Gets a permit when the connection fails.
    unsent: Option<Arc<tokio::sync::Semaphore>>,
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        Self {
            left: usize::from(!bytes.is_empty()),
            bytes,
            ..Self::default()
        }
    }
}

impl From<&'static str> for Chunks {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<String> for Chunks {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                if let Some(polled) = &self.polled {
                    polled.add_permits(1);
                }
                Poll::Ready(Some(Ok(Frame::data(self.bytes.clone()))))
            }
            None if self.hangs => Poll::Pending,
            None if self.breaks => Poll::Ready(Some(Err(std::io::ErrorKind::Other.into()))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && !self.breaks && !self.hangs
    }

    fn size_hint(&self) -> SizeHint {
        if self.streams {
            return SizeHint::default();
        }
        SizeHint::with_exact((self.bytes.len() * self.left) as u64)
    }
}

impl Payload for Chunks {
    fn unsent(&mut self) {
        if let Some(unsent) = &self.unsent {
            unsent.add_permits(1);
        }
    }
}
