//! Completes a response, and records it when it has been sent.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response};

use super::own;
use super::request_context::{Closing, RequestContext, STATUS_CLIENT_LEFT};
use crate::forward::body::{Guarded, Received, ResponseBody};
use crate::forward::{Blame, Forwarded, ServerSign};
use crate::rejection::Rejection;
use tollgate_limit::Micros;
use tollgate_limiter::Cause;
use tollgate_net::worker::Worker;
use tollgate_policy::FilledEdits;
use tollgate_response::RefusalForm;

pub(crate) fn pass_on(
    mut context: Box<RequestContext>,
    forwarded: Forwarded,
    form: &RefusalForm,
    edits: FilledEdits<'_>,
) -> Response<Guarded<Closing>> {
    let Forwarded {
        mut response,
        verbatim,
        tunnel,
        blame,
        callers_deadline,
        waited: _,
    } = forwarded;
    edits.apply(response.headers_mut());
    // The head of a tunnel's response is written without the guard that would append lines to it.
    let as_lines = form.takes_lines && tunnel.is_none();
    context.annotate(response.headers_mut(), as_lines);
    let unreadable = form.head || tunnel.is_some();
    context.answered(&response, None, blame.cause, unreadable);
    context.set_deadline(callers_deadline);
    let Some(tunnel) = tunnel else {
        let hides_usage = context.hides_usage && is_event_stream(response.headers());
        if hides_usage {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        return response.map(|body| {
            let body = Guarded::new(body, Closing(context)).with(verbatim);
            if hides_usage {
                body.without_usage()
            } else {
                body
            }
        });
    };
    // The tunnel holds the permit, and with it the slot of a concurrency limit. A drain waits for a
    // tunnel as for a request.
    let task = Worker::current().map(|worker| worker.task());
    tokio::task::spawn_local(async move {
        let carried = tunnel.run(task.as_ref()).await;
        context.received = Received::from(carried.up);
        context.close(carried.down, None);
    });
    response.map(Guarded::bare)
}

/// Whether the body is a stream of events that can be read.
fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
        && !headers.contains_key(CONTENT_ENCODING)
}

/// Completes the response to a refused request. Not inlined, so that admitted requests do not carry
/// its code and moves.
#[inline(never)]
pub(crate) fn refuse(
    mut context: Box<RequestContext>,
    rejection: &Rejection,
    form: &RefusalForm,
    edits: FilledEdits<'_>,
) -> Response<Guarded<Closing>> {
    let status = context.turned_away(rejection);
    let mut response = context.refusal(rejection, form, !edits.is_empty());
    edits.complete(response.headers_mut());
    context.annotate(response.headers_mut(), form.takes_lines);
    context.answered(&response, Some(status), rejection.cause(), form.head);
    if rejection.is_unreceived() {
        context.status = STATUS_CLIENT_LEFT;
    }
    response.map(|body| Guarded::new(body, Closing(context)))
}

impl Forwarded {
    /// The gateway's own response in the form that its client takes: to HEAD, without the body.
    pub(crate) fn to_client(
        response: Response<ResponseBody>,
        cause: Cause,
        form: &RefusalForm,
    ) -> Self {
        Self::own(own::head_alone(response, form.head), cause)
    }

    pub(crate) fn own(response: Response<ResponseBody>, cause: Cause) -> Self {
        Self {
            response,
            verbatim: None,
            tunnel: None,
            blame: Blame {
                cause,
                sign: ServerSign::Nothing,
            },
            waited: Micros::ZERO,
            callers_deadline: None,
        }
    }
}
