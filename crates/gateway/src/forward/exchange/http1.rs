//! Sends one request and receives its response on one HTTP/1 connection, or on a second one if the first
//! proves stale.

use std::rc::Rc;
use std::task::Poll;

use http::response::Parts;
use http::{StatusCode, Version};

use super::opening;
use crate::forward::body::BodyError;
use crate::forward::pool::{Connection, Slot};
use crate::forward::request::Outgoing;
use crate::forward::response::{Lease, pass_back};
use crate::forward::response_timeout::ResponseTimeout;
use crate::forward::retry::{self, Again};
use crate::forward::server::ServerState;
use crate::forward::upstreams::UpstreamState;
use crate::forward::{ForwardError, Forwarded, outgoing};
use crate::headers::strip_hop_by_hop;
use tollgate_net::client::Failure;
use tollgate_policy::upstream::HostPolicy;

pub(super) async fn http1(
    upstream: &UpstreamState,
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
    connection: Box<Connection>,
) -> Result<Forwarded, ForwardError> {
    let (mut connection, mut slot) = (connection, slot);
    // Changed in place, because a request is large and moving it is expensive.
    let request = outgoing.request.as_mut().ok_or(ForwardError::Closed)?;
    if request.version() == Version::HTTP_2 {
        outgoing::downgrade(request);
    }
    if !(outgoing.hosted && server.server.base_path.is_empty() && server.host == HostPolicy::Keep) {
        outgoing::address(request, &server.host, &server.server, false)?;
    }
    let mut headers = std::mem::take(request.headers_mut());
    let body = outgoing
        .progress
        .is_some()
        .then(|| std::mem::take(request.body_mut()));
    // Only a reused connection can be stale, and a body is not kept.
    let kept = connection.is_reused() && body.is_none();
    let origin = outgoing.origin.as_ref();
    let more = |out: &mut Vec<u8>| origin.into_iter().for_each(|origin| origin.write(out));
    connection.ask_with(
        request.method(),
        request.uri(),
        &mut headers,
        more,
        body,
        kept,
    );
    if outgoing.verbatim {
        connection.allow_verbatim();
    }
    outgoing.request = None;
    outgoing.was_sent = true;
    loop {
        let failure = match converse(&mut connection, outgoing).await {
            Ok(head) => {
                outgoing.response_began();
                return pass_back(head, Lease { connection, slot }, outgoing);
            }
            Err(Stop::Failed(failure)) => failure,
            Err(Stop::Late(error)) => return Err(error),
        };
        // A partial response counts as a response: only silence shows that a connection was stale.
        let stale = connection.is_reused() && matches!(failure, Failure::Silent(_));
        let Some(request) = connection.unanswered().filter(|_| stale) else {
            return Err(outgoing.clients_part().in_failure(failure.into()));
        };
        let closed = retry::AttemptOutcome::Closed {
            untouched: request.is_untouched(),
        };
        let attempted = match retry::decide(&closed, upstream, outgoing) {
            Again::No => return Err(outgoing.clients_part().in_failure(failure.into())),
            Again::SameAttempt => false,
            Again::NextAttempt => true,
        };
        // Counted before connecting: if that fails, another server may receive the request.
        if attempted {
            outgoing.attempts -= 1;
        }
        (connection, slot) = match opening::http1(server, outgoing, slot).await {
            Ok(fresh) => fresh,
            Err(error) => {
                outgoing.counted = attempted;
                return Err(error);
            }
        };
        connection.ask_again(request);
    }
}

/// The reason why an exchange over HTTP/1 ended without a response.
enum Stop {
    Failed(Failure<BodyError>),
    Late(ForwardError),
}

/// Waits for the head of the response on `connection`. A body that is held back is sent when the
/// upstream sends `100 Continue`; its other interim responses are passed on if that is wanted.
async fn converse(connection: &mut Connection, outgoing: &mut Outgoing) -> Result<Parts, Stop> {
    let mut timeout = ResponseTimeout::new(outgoing);
    std::future::poll_fn(|cx| {
        let progress = timeout.outgoing.progress.as_ref();
        let response = connection.poll_response(cx, |status, headers| {
            if status == StatusCode::CONTINUE {
                progress.into_iter().for_each(|progress| progress.open());
            } else if let Some(interim) = &timeout.outgoing.interim {
                let mut headers = headers.clone();
                strip_hop_by_hop(&mut headers);
                interim.send(status, headers);
            }
        });
        if let Some(progress) = progress
            && connection.is_sent()
        {
            // With the announced number of bytes a request over HTTP/1 is complete, also if the
            // client has not ended its stream.
            progress.arrived.set(true);
        }
        match response {
            Poll::Ready(response) => Poll::Ready(response.map_err(Stop::Failed)),
            Poll::Pending => timeout.poll(cx).map(|error| Err(Stop::Late(error))),
        }
    })
    .await
}
