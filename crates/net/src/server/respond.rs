//! Runs the handler for a request: checks what hyper does not, and turns panics into responses.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::inbound::Inbound;
use super::{ConnInfo, Event, Handler, ServerState, Settings, Unread};
use http::{Request, Response};
use tollgate_http1::request::BadHead;
use tollgate_response::Problem;

pub(super) struct Served<H> {
    pub(super) handler: Rc<H>,
    pub(super) connection: Rc<ConnInfo>,
    pub(super) settings: Arc<Settings>,
    pub(super) shared: Arc<ServerState>,
}

/// Responds to a request of HTTP/2, of which hyper does not bound the target and the headers.
pub(super) async fn respond<H: Handler>(
    served: &Served<H>,
    request: Request<Inbound>,
) -> Response<H::Body> {
    let target = request.uri().path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    if target > served.settings.target_bytes {
        return refuse(served, &request, BadHead::TargetTooLong);
    }
    if request.headers().len() > served.settings.headers {
        return refuse(served, &request, BadHead::TooLarge);
    }
    let method = request.method().clone();
    let mut response = pin!(served.handler.handle(&served.connection, request));
    let response = std::future::poll_fn(|cx| poll_guarded(served, response.as_mut(), cx)).await;
    response.unwrap_or_else(|problem| problem.response_to(&method))
}

#[cold]
fn refuse<H: Handler>(
    served: &Served<H>,
    request: &Request<Inbound>,
    bad: BadHead,
) -> Response<H::Body> {
    let target = request.uri().path_and_query();
    let target = target.map_or("", |target| target.as_str());
    let head = format!("{} {target} HTTP/2.0\r\n", request.method());
    let reason = UnreadReason::from(bad);
    let unread = reason.unread(&served.connection, head.as_bytes());
    served.handler.observe(Event::BadHead(unread));
    reason.problem().response_to(request.method())
}

/// Polls the handler's response. An error is the problem to respond with after a panic.
pub(super) fn poll_guarded<H: Handler, F: Future<Output = Response<H::Body>>>(
    served: &Served<H>,
    response: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<Result<Response<H::Body>, Problem>> {
    // State that a panic leaves in this request is dropped with it. Shared state is behind locks
    // that a panic does not poison, or in cells that are never left half changed.
    match std::panic::catch_unwind(AssertUnwindSafe(|| response.poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => {
            served.handler.observe(Event::Panicked);
            Poll::Ready(Err(Problem::INTERNAL))
        }
    }
}

/// The reason why a connection's bytes, or a request's head, are refused before there is a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadReason {
    PlainHttp,
    Tls,
    SlowHead,
    Malformed,
    Version,
    TooLarge,
    TargetTooLong,
}

tollgate_policy::labels! {
    UnreadReason {
        Self::PlainHttp => "plain_http",
        Self::Tls => "tls_on_plain_port",
        Self::SlowHead => "slow_head",
        Self::Malformed | Self::Version => "malformed",
        Self::TooLarge => "head_too_large",
        Self::TargetTooLong => "target_too_long",
    }
}

impl From<BadHead> for UnreadReason {
    fn from(bad: BadHead) -> Self {
        match bad {
            BadHead::Malformed => Self::Malformed,
            BadHead::Version => Self::Version,
            BadHead::TooLarge => Self::TooLarge,
            BadHead::TargetTooLong => Self::TargetTooLong,
        }
    }
}

impl UnreadReason {
    pub(super) const fn problem(self) -> Problem {
        match self {
            Self::PlainHttp => Problem::PLAIN_HTTP,
            Self::Tls => Problem::TLS_HANDSHAKE,
            Self::SlowHead => Problem::HEAD_TIMEOUT,
            Self::Malformed => Problem::NOT_HTTP,
            Self::Version => Problem::VERSION,
            Self::TooLarge => Problem::HEAD_TOO_LARGE,
            Self::TargetTooLong => Problem::TARGET_TOO_LONG,
        }
    }

    pub(super) fn unread<'h>(self, connection: &ConnInfo, head: &'h [u8]) -> Unread<'h> {
        Unread {
            reason: self.label(),
            status: Some(self.problem().status),
            client: connection.peer.map(|peer| peer.ip()),
            head,
        }
    }
}
