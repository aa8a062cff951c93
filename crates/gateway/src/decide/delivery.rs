//! Gives back the permits of a response that is not sent: no program could report about them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body, SizeHint};
use serde_json::Value;

use super::PERMIT;
use super::permits::{PermitId, Permits};
use crate::forward::body::{BodyError, FramePoll, Guarded};
use crate::request::Closing;
use tollgate_http1::Verbatim;
use tollgate_net::server::Payload;

/// Permits that no program knows yet. Dropping it gives them back: places become free, charges
/// stay, because a client may be the reason why the program left.
pub(super) struct Undelivered {
    permits: Arc<Permits>,
    ids: Vec<PermitId>,
}

impl Undelivered {
    pub(super) fn new(permits: &Arc<Permits>) -> Self {
        Self {
            permits: Arc::clone(permits),
            ids: Vec::new(),
        }
    }

    pub(super) fn in_head(permits: &Arc<Permits>, headers: &HeaderMap) -> Self {
        let named = headers.get(PERMIT).and_then(|id| id.to_str().ok());
        Self {
            permits: Arc::clone(permits),
            ids: named.and_then(PermitId::parse).into_iter().collect(),
        }
    }

    pub(super) fn add(&mut self, decision: &Value) {
        let id = decision["permit"].as_str().and_then(PermitId::parse);
        self.ids.extend(id);
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            self.permits.give_back(id);
        }
    }
}

/// The body of a response to a program, with the permits that the response tells.
pub struct DecisionBody {
    body: Guarded<Closing>,
    undelivered: Option<Undelivered>,
    /// Whether the connection has taken the whole body, and has not failed since.
    taken: bool,
}

pub(super) fn telling(
    undelivered: Undelivered,
    response: Response<impl Into<DecisionBody>>,
) -> Response<DecisionBody> {
    let undelivered = (!undelivered.ids.is_empty()).then_some(undelivered);
    response.map(|body| {
        let mut body = body.into();
        body.undelivered = undelivered;
        body
    })
}

impl From<Guarded<Closing>> for DecisionBody {
    fn from(body: Guarded<Closing>) -> Self {
        Self {
            taken: body.is_end_stream(),
            body,
            undelivered: None,
        }
    }
}

impl From<Bytes> for DecisionBody {
    fn from(bytes: Bytes) -> Self {
        Guarded::from(bytes).into()
    }
}

impl Body for DecisionBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let this = self.get_mut();
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.taken = match &frame {
            Some(Err(_)) => false,
            _ => this.body.is_end_stream(),
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Payload for DecisionBody {
    fn take_verbatim(&mut self) -> Option<Verbatim> {
        self.body.take_verbatim()
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        self.body.write_fields(out);
    }

    fn unsent(&mut self) {
        self.taken = false;
    }
}

impl Drop for DecisionBody {
    fn drop(&mut self) {
        if let Some(undelivered) = self.undelivered.as_mut().filter(|_| self.taken) {
            undelivered.ids.clear();
        }
    }
}
