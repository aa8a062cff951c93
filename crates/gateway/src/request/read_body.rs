//! Reads the body of a request for the values in it that decide about the request. What was read is
//! forwarded afterwards, unchanged.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use http::{HeaderMap, Request};
use http_body::Body;

use super::gateway::Gateway;
use super::snapshot::Snapshot;
use crate::forward::body::BodyError;
use crate::forward::{ForwardError, MinimumRate};
use crate::framing::RequestTarget;
use crate::rejection::Rejection;
use tollgate_net::server::{Inbound, Replay, Window};
use tollgate_policy::{BodyAdmission, BodyFacts, Policy, UnreadBody, WantedFacts};

impl Gateway {
    /// What the `body` of a request says, as far as it is `asked`. The body is read to its end, or up
    /// to the bound of the file; then it is read from its beginning again.
    pub(crate) async fn read_body(
        &self,
        snapshot: &Snapshot,
        window: Option<Window>,
        asked: WantedFacts,
        target: &RequestTarget,
        head: &Request<()>,
        body: &mut Inbound,
    ) -> Result<BodyFacts, Rejection> {
        let policy = &snapshot.policy;
        // What follows an extended CONNECT is a tunnel, which begins after the response.
        let unread = UnreadBody {
            query: head.uri().query(),
            headers: head.headers(),
            is_empty: body.is_end_stream() || target.bridged,
            announced: body.size_hint().exact(),
            is_elsewhere: false,
        };
        let mut reading = match policy.admit_body(asked, unread)? {
            BodyAdmission::Known(facts) => return Ok(facts),
            BodyAdmission::Reading(reading) => reading,
        };
        let defaults = &snapshot.defaults;
        let mut min_rate = MinimumRate::new(
            defaults.body_idle,
            defaults.body_rate,
            defaults.body_grace,
            window,
        );
        let mut replay = Replay::default();
        let mut held = Held::new(&self.side.shared.held_bodies);
        while !reading.is_over() {
            let frame = poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(frame) => Poll::Ready(frame.transpose().map_err(BodyError::Client)),
                Poll::Pending => min_rate.poll(cx, false).map(Err),
            });
            let Some(frame) = frame.await.map_err(of_client)? else {
                break;
            };
            if let Some(piece) = frame.data_ref() {
                min_rate.came(piece.len());
                if held.add(piece.len()) > defaults.held_bodies {
                    return Err(Rejection::HeldBodies);
                }
                reading.feed(piece)?;
            }
            replay.push(frame);
        }
        let mut facts = reading.finish();
        if let Ok(facts) = &mut facts {
            facts.lacks_usage &= head.uri().path().ends_with("/completions");
            if facts.lacks_usage {
                replay.insert_after(b'{', INCLUDE_USAGE);
            }
        }
        replay.hold(held);
        body.replay(replay);
        Ok(facts?)
    }
}

/// Asks for the usage of a stream; a member follows it.
pub(crate) const INCLUDE_USAGE: &[u8] = br#""stream_options":{"include_usage":true},"#;

pub(crate) fn body_elsewhere(
    policy: &Policy,
    asked: WantedFacts,
    headers: &HeaderMap,
) -> Result<BodyFacts, Rejection> {
    let unread = UnreadBody {
        query: None,
        headers,
        is_empty: false,
        announced: None,
        is_elsewhere: true,
    };
    match policy.admit_body(asked, unread)? {
        BodyAdmission::Known(facts) => Ok(facts),
        BodyAdmission::Reading(reading) => Ok(reading.finish()?),
    }
}

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
