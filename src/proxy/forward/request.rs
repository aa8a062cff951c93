//! A prepared request, and what is needed to send it once more.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};

use super::Upgrade;
use super::request_body::{Gate, Progress, RequestBody};
use crate::policy::UpstreamTimeouts;
use crate::policy::upstream::{Retry, Upstream};
use crate::proxy::timers::Deadline;

/// A prepared request.
pub(super) struct Outgoing {
    pub(super) request: Option<Request<RequestBody>>,
    pub(super) progress: Option<Rc<Progress>>,
    pub(super) gate: Option<Arc<Gate>>,
    /// The client's side of an upgrade it asked for.
    pub(super) upgrade: Upgrade,
    /// The upstream's bounds.
    pub(super) timeouts: UpstreamTimeouts,
    /// When the answer must have ended.
    pub(super) total: Option<Deadline>,
    /// Whom the request comes from.
    pub(super) client: Option<SocketAddr>,
    pub(super) idempotent: bool,
    copy: Option<Replay>,
}

impl Outgoing {
    /// `request`, whose body reports to `progress` and waits for `gate`.
    pub(super) fn new(
        request: Request<RequestBody>,
        progress: Option<Rc<Progress>>,
        gate: Option<Arc<Gate>>,
        upgrade: Upgrade,
        upstream: &Upstream,
        client: Option<SocketAddr>,
    ) -> Self {
        Self {
            idempotent: request.method().is_idempotent(),
            request: Some(request),
            progress,
            gate,
            upgrade,
            timeouts: upstream.timeouts,
            total: upstream.total.map(|total| Deadline::after(total.into())),
            client,
            copy: None,
        }
    }

    /// Keeps what another attempt needs, where one may follow an attempt that reached a server. A request with a body
    /// or an upgrade has only one attempt.
    pub(super) fn keep_copy(&mut self, retry: &Retry, http2: bool) {
        let useful = (http2 && retry.refused_stream) || (self.idempotent && !retry.statuses.is_empty());
        if useful && self.progress.is_none() && self.upgrade.is_none() {
            self.copy = self.request.as_ref().map(Replay::of);
        }
    }

    /// Whether there is a copy.
    pub(super) const fn has_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// Whether the request may be sent again even though a server has looked at it.
    pub(super) const fn is_repeatable(&self) -> bool {
        self.idempotent && self.copy.is_some()
    }

    /// Makes ready for another attempt.
    pub(super) fn restore(&mut self) {
        if self.request.is_none() {
            self.request = self.copy.clone().map(Replay::request);
        }
    }
}

/// What is needed to send a request once more.
#[derive(Clone)]
pub(super) struct Replay {
    method: Method,
    uri: Uri,
    version: Version,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Replay {
    pub(super) fn of(request: &Request<RequestBody>) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            // No map: most are never looked at again.
            headers: request.headers().iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }

    pub(super) fn request(self) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.version_mut() = self.version;
        for (name, value) in self.headers {
            request.headers_mut().append(name, value);
        }
        request
    }
}
