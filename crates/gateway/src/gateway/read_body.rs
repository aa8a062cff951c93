//! Reads the body of a request for the values in it that decide about the request. What was read is
//! forwarded afterwards, unchanged.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};

use super::Gateway;
use super::snapshot::Snapshot;
use crate::body::BodyError;
use crate::decide::Unread;
use crate::forward::{ForwardError, MinimumRate};
use crate::framing::Bridged;
use crate::rejection::Rejection;
use tollgate_net::server::{ConnInfo, Inbound, Replay};
use tollgate_policy::{Asked, BodyAdmission, BodyFacts, UnreadBody};

/// The body of a request that is decided about.
pub(super) trait ReadAhead: Body + Unpin {
    /// Whether it can be read: another program keeps the body of a request that it asks about.
    const READABLE: bool;

    /// Polls its next frame.
    fn poll_ahead(&mut self, cx: &mut Context<'_>)
    -> Poll<Option<Result<Frame<Bytes>, BodyError>>>;

    /// Makes what was read the beginning of what is read next.
    fn replay(&mut self, replay: Replay);
}

impl ReadAhead for Inbound {
    const READABLE: bool = true;

    fn poll_ahead(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(self).poll_frame(cx);
        frame.map(|frame| frame.map(|frame| frame.map_err(BodyError::Client)))
    }

    fn replay(&mut self, replay: Replay) {
        Self::replay(self, replay);
    }
}

impl ReadAhead for Unread {
    const READABLE: bool = false;

    fn poll_ahead(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(None)
    }

    fn replay(&mut self, _: Replay) {}
}

impl Gateway {
    /// What the `body` of a request says, as far as it is `asked`. The body is read to its end, or up
    /// to the bound of the file; then it is read from its beginning again.
    pub(super) async fn read_body<B: ReadAhead>(
        &self,
        snapshot: &Snapshot,
        connection: &ConnInfo,
        asked: Asked,
        (head, body): (&Request<()>, &mut B),
    ) -> Result<BodyFacts, Rejection> {
        let policy = &snapshot.policy;
        // What follows an extended CONNECT is a tunnel, which begins after the response.
        let tunnel = head.extensions().get::<Bridged>().is_some();
        let unread = UnreadBody {
            query: head.uri().query(),
            headers: head.headers(),
            is_empty: body.is_end_stream() || tunnel,
            announced: body.size_hint().exact(),
            is_elsewhere: !B::READABLE,
        };
        let mut reading = match policy.admit_body(asked, unread)? {
            BodyAdmission::Known(facts) => return Ok(facts),
            BodyAdmission::Reading(reading) => reading,
        };
        let conduct = &snapshot.conduct;
        let mut pace = MinimumRate::new(
            conduct.body_idle,
            conduct.body_rate,
            conduct.body_grace,
            connection.window.clone(),
        );
        let mut replay = Replay::default();
        let mut held = Held::new(&self.side.held_bodies);
        while !reading.is_over() {
            let frame = poll_fn(|cx| match body.poll_ahead(cx) {
                Poll::Ready(frame) => Poll::Ready(frame.transpose()),
                Poll::Pending => pace.poll(cx, false).map(Err),
            });
            let Some(frame) = frame.await.map_err(of_client)? else {
                break;
            };
            if let Some(piece) = frame.data_ref() {
                pace.came(piece.len());
                if held.add(piece.len()) > conduct.held_bodies {
                    return Err(Rejection::HeldBodies);
                }
                reading.feed(piece)?;
            }
            replay.push(frame);
        }
        replay.hold(held);
        body.replay(replay);
        Ok(reading.finish()?)
    }
}

/// The rejection of a request whose body does not arrive.
fn of_client(error: BodyError) -> Rejection {
    ForwardError::Body(error.of_request()).into()
}

/// The part of one body in the bytes that all requests hold, until it is dropped.
#[derive(Debug)]
struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        Self {
            all: Arc::clone(all),
            bytes: 0,
        }
    }

    /// Adds a piece; returns the bytes that all requests hold.
    fn add(&mut self, bytes: usize) -> usize {
        self.bytes += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed) + bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
