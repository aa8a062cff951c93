//! The end of a request's way: what the client is sent is completed, and recorded when it has gone out.

use http::{HeaderMap, Response};

use super::request_context::{Closing, RequestContext};
use crate::body::{Guarded, ResponseBody};
use crate::forward::Forwarded;
use crate::rejection::{Asked, Rejection};
use tollgate_limiter::Cause;
use tollgate_net::worker::Worker;
use tollgate_policy::FilledEdits;

/// The response to an admitted request.
pub(super) fn pass_on(
    mut context: Box<RequestContext>,
    forwarded: Forwarded,
    asked: &Asked,
    edits: FilledEdits<'_>,
) -> Response<Guarded<ResponseBody, Closing>> {
    let Forwarded {
        mut response,
        verbatim,
        tunnel,
        cause,
    } = forwarded;
    edits.apply(response.headers_mut());
    // The head of a tunnel's response is written without the guard that would add lines to it.
    let as_lines = asked.takes_lines() && tunnel.is_none();
    context.annotate(response.headers_mut(), as_lines);
    context.answered(&response, None, cause, asked.is_head() || tunnel.is_some());
    let Some(tunnel) = tunnel else {
        return response.map(|body| Guarded::new(body, Closing(context)).with(verbatim));
    };
    // The permit, and with it the place in a concurrency limit, is held as long as the tunnel. A drain waits for it, as
    // for a request.
    let task = Worker::current().map(|worker| worker.task());
    tokio::task::spawn_local(async move {
        let carried = tunnel.run(task.as_ref()).await;
        context.tunnelled(carried.up);
        context.close(carried.down, None);
    });
    response.map(Guarded::bare)
}

/// The response to a request that is refused. `spare` is the request's header table, which a response without one takes
/// along to be used again. Not inlined, so that its code and what it moves are not part of every request.
#[inline(never)]
pub(super) fn refuse(
    mut context: Box<RequestContext>,
    rejection: &Rejection,
    asked: &Asked,
    edits: FilledEdits<'_>,
    mut spare: HeaderMap,
) -> Response<Guarded<ResponseBody, Closing>> {
    let status = context.turned_away(rejection);
    let mut response = context.refusal(rejection, asked, !edits.is_empty());
    if response.headers().capacity() == 0 {
        spare.clear();
        *response.headers_mut() = spare;
    }
    edits.complete(response.headers_mut());
    context.annotate(response.headers_mut(), asked.takes_lines());
    context.answered(&response, Some(status), rejection.cause(), asked.is_head());
    response.map(|body| Guarded::new(body, Closing(context)))
}

impl Forwarded {
    /// A response of the gateway itself, and who brought it about.
    pub(super) fn own(response: Response<ResponseBody>, cause: Cause) -> Self {
        Self {
            response,
            verbatim: None,
            tunnel: None,
            cause,
        }
    }
}
