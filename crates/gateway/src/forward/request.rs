//! A prepared request, and what is needed to send it once more.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use smallvec::SmallVec;

use super::kept_body::KeptBody;
use super::request_body::{Gate, Progress, RequestBody};
use super::stall::Stall;
use super::{Upgrade, grpc};
use crate::headers::{HeaderSet, Origin};
use tollgate_net::server::Interim;
use tollgate_net::timers::Deadline;
use tollgate_policy::UpstreamTimeouts;
use tollgate_policy::upstream::{Retry, Upstream};

/// A prepared request.
pub(super) struct Outgoing {
    pub(super) request: Option<Request<RequestBody>>,
    pub(super) progress: Option<Rc<Progress>>,
    pub(super) gate: Option<Arc<Gate>>,
    /// The client's side of an upgrade it asked for.
    pub(super) upgrade: Option<Upgrade>,
    /// The upstream's bounds.
    pub(super) timeouts: UpstreamTimeouts,
    /// When the response must have ended.
    pub(super) total: Option<Deadline>,
    /// Whether that is what the client says, and not the file.
    pub(super) total_is_callers: bool,
    /// Whom the request comes from.
    pub(super) client: Option<SocketAddr>,
    pub(super) idempotent: bool,
    /// Attempts that are left, the one under way among them.
    pub(super) attempts: u32,
    /// Whether the end of a kept connection, without a byte of answer, may be followed by another attempt.
    pub(super) follows_closed: bool,
    /// Takes interim responses, where they are passed on.
    pub(super) interim: Option<Interim>,
    /// Fields that are written behind the request's own.
    pub(super) origin: Option<Origin>,
    /// It has a Host.
    pub(super) hosted: bool,
    /// The response's fields need not be taken apart.
    pub(super) verbatim: bool,
    copy: Option<Replay>,
    /// The body of a request that is kept.
    kept: Option<Rc<KeptBody>>,
}

impl Outgoing {
    /// `request`, which has the fields in `present`, and whose body reports to `progress` and waits for `gate`.
    pub(super) fn new(
        request: Request<RequestBody>,
        present: HeaderSet,
        progress: Option<Rc<Progress>>,
        gate: Option<Arc<Gate>>,
        upgrade: Option<Upgrade>,
        upstream: &Upstream,
        client: Option<SocketAddr>,
    ) -> Self {
        // A gRPC caller says itself how long it waits.
        let said = present
            .has(HeaderSet::GRPC_TIMEOUT)
            .then(|| grpc::timeout(request.headers()));
        let (own, callers) = (upstream.total.map(Duration::from), said.flatten());
        Self {
            idempotent: request.method().is_idempotent(),
            attempts: upstream.attempts.max(1),
            follows_closed: upstream.retry.connection_closed && request.method().is_idempotent(),
            request: Some(request),
            progress,
            gate,
            upgrade,
            timeouts: upstream.timeouts,
            total: earliest(own, callers).map(Deadline::after),
            total_is_callers: callers.is_some_and(|callers| own.is_none_or(|own| callers < own)),
            client,
            interim: None,
            origin: None,
            hosted: present.has(HeaderSet::HOST),
            verbatim: false,
            copy: None,
            kept: None,
        }
    }

    /// Keeps what another attempt needs, where one may follow an attempt that reached a server. What an HTTP/2 server
    /// has promised not to have processed may be sent again whatever it is, so of such a request the body is kept, too,
    /// as far as there is room. Elsewhere a request with a body or an upgrade has only one attempt.
    pub(super) fn keep_copy(&mut self, retry: &Retry, http2: bool) {
        let repeated = self.attempts > 1
            && self.idempotent
            && !retry.statuses.is_empty()
            && self.progress.is_none();
        if (http2 || repeated) && self.upgrade.is_none() {
            self.copy = self.request.as_ref().map(Replay::of);
            self.kept = self
                .request
                .as_mut()
                .and_then(|request| request.body_mut().keep());
        }
    }

    /// The head of a response is there.
    pub(super) fn answered(&self) {
        if let Some(progress) = &self.progress {
            progress.answered();
        }
        if let Some(kept) = &self.kept {
            kept.forget();
        }
    }

    /// The bound on an upload that the upstream does not take; `None`: there is no body.
    pub(super) fn stall(&self) -> Option<Stall> {
        self.progress
            .as_ref()
            .map(|progress| Stall::new(Rc::clone(progress), self.timeouts.idle))
    }

    /// Whether there is a copy, its body included.
    pub(super) fn has_copy(&self) -> bool {
        self.copy.is_some() && self.kept.as_ref().is_none_or(|kept| kept.is_whole())
    }

    /// Whether there is something to send: the request, or its copy.
    pub(super) fn is_at_hand(&self) -> bool {
        self.request.is_some() || self.has_copy()
    }

    /// Whether the request may be sent again even though a server has looked at it.
    pub(super) const fn is_repeatable(&self) -> bool {
        self.idempotent && self.copy.is_some() && self.progress.is_none()
    }

    /// Makes ready for another attempt.
    pub(super) fn restore(&mut self) {
        if self.request.is_none() {
            self.request = self.copy.clone().map(Replay::request);
            if let (Some(request), Some(kept)) = (&mut self.request, &self.kept) {
                *request.body_mut() = kept.again();
            }
        }
    }
}

fn earliest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// What is needed to send a request once more.
#[derive(Clone)]
pub(super) struct Replay {
    method: Method,
    uri: Uri,
    version: Version,
    /// The fields as bytes, one after another: nearly every copy is dropped unread, and counting the references to
    /// every name and value up and down again costs more than copying them.
    fields: Vec<u8>,
    /// Length of each name, length of its value, and whether the value is a secret.
    lengths: SmallVec<[(u16, u32, bool); 16]>,
}

impl Replay {
    pub(super) fn of(request: &Request<RequestBody>) -> Self {
        let mut fields = Vec::with_capacity(USUAL_FIELDS);
        let mut lengths = SmallVec::new();
        for (name, value) in request.headers() {
            let (name, secret, value) = (
                name.as_str().as_bytes(),
                value.is_sensitive(),
                value.as_bytes(),
            );
            fields.extend_from_slice(name);
            fields.extend_from_slice(value);
            let name = u16::try_from(name.len()).expect("`HeaderName` takes less than 64 KiB");
            let value = u32::try_from(value.len()).expect("a head is bounded far below 4 GiB");
            lengths.push((name, value, secret));
        }
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            fields,
            lengths,
        }
    }

    pub(super) fn request(self) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.version_mut() = self.version;
        let mut rest = &self.fields[..];
        for (name, value, secret) in self.lengths {
            let (name, after) = rest.split_at(usize::from(name));
            let (value, after) = after.split_at(value as usize);
            rest = after;
            let name = HeaderName::from_bytes(name).expect("it was the name of a field");
            let mut value = HeaderValue::from_bytes(value).expect("it was the value of a field");
            value.set_sensitive(secret);
            request.headers_mut().append(name, value);
        }
        request
    }
}

/// Enough for the fields of most requests.
const USUAL_FIELDS: usize = 512;
