//! The request path: matches the route, identifies the caller, checks the limits, forwards or
//! refuses the request, and records the result.
//!
//! One [`Gateway`] serves one worker and never leaves its thread. The workers share [`GatewayState`],
//! which holds the snapshot in force; a reload replaces the whole snapshot. A request keeps the
//! snapshot it started with until it ends.

pub(crate) mod admit;
pub(crate) mod admitted;
pub(crate) mod checks;
pub(crate) mod gateway;
mod own;
mod plain_http;
pub(crate) mod read_body;
pub(crate) mod request_context;
pub(crate) mod respond;
mod snapshot;

use std::rc::Rc;

use http::{Request, Response};

use super::forward::Forwarded;
use super::forward::body::Guarded;
use super::headers::{HeaderSet, RequestHeaders};
use admit::Arrived;
use admitted::Next;
pub(crate) use gateway::HeldSnapshot;
pub use gateway::{Gateway, GatewayState};
pub use plain_http::{Challenges, PlainHttp};
pub use request_context::Closing;
use request_context::RequestContext;
pub use snapshot::{DecideSettings, Snapshot, near};
use tollgate_limiter::Cause;
use tollgate_net::server::{ConnInfo, Event, Handler, Inbound};
use tollgate_policy::FilledEdits;
use tollgate_response::RefusalForm;

impl Handler for Gateway {
    type Body = Guarded<Closing>;

    async fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> Response<Self::Body> {
        let snapshot = self.snapshot();
        // Apart, because the head decides while the body is read.
        let (parts, mut body) = request.into_parts();
        let mut head = Request::from_parts(parts, ());
        let mut headers = RequestHeaders::of(head.headers());
        let takes_lines = body.takes_lines();
        let form = RefusalForm::of(&head, headers.present.decides_form(), takes_lines);
        // Until the headers of a trusted proxy have been read.
        let client = connection.peer.map(|peer| peer.ip());
        if headers.present.has(HeaderSet::NAMES_CLIENT) {
            let proxy = &self.side.shared.untrusted_proxy;
            proxy.note(client, &snapshot.policy.address);
        }
        let mut context = RequestContext::open(&self.side, &snapshot, &head, &mut headers, client);
        let mut edits = FilledEdits::default();
        if let (Some(plain), None) = (&snapshot.plain, &connection.tls)
            && let Some(response) = plain.response(connection, &head)
        {
            let outcome = Forwarded::to_client(response, Cause::Upstream, &form);
            return respond::pass_on(context, outcome, &form, edits);
        }
        let arrived = Arrived {
            head: &mut head,
            body: Some(&mut body),
            headers: &headers,
        };
        let admitted = self
            .admit(&snapshot, connection, arrived, &mut context, &mut edits)
            .await;
        let (target, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(rejection) => {
                context.keep_refusal(&rejection, &head);
                return respond::refuse(context, &rejection, &form, edits);
            }
        };
        let outcome = match admitted.next {
            Next::Respond(response, cause) => Ok(Forwarded::to_client(response, cause, &form)),
            Next::Echo => {
                let response = admitted.echo(&snapshot, head.map(|()| body), &mut context);
                Ok(Forwarded::to_client(response, Cause::Upstream, &form))
            }
            Next::Forward(upstream) => {
                let verbatim = takes_lines && edits.is_empty() && context.reads_nothing();
                let forwarding = admitted.forward_context(&snapshot, connection, target, verbatim);
                self.forward(
                    &snapshot,
                    upstream,
                    forwarding,
                    head.map(|()| body),
                    &mut context,
                )
                .await
            }
        };
        match outcome {
            Ok(forwarded) => respond::pass_on(context, forwarded, &form, edits),
            Err(rejection) => respond::refuse(context, &rejection, &form, edits),
        }
    }

    fn observe(&self, event: Event<'_>) {
        let metrics = &self.side.metrics;
        match event {
            Event::Opened => metrics.connection_opened(),
            Event::Refused(reason) => metrics.connection_refused(reason),
            Event::AcceptFailed => metrics.accept_failed(),
            Event::BadHead(unread) => {
                metrics.bad_request(unread.reason);
                if let Some(writer) = &self.side.access {
                    request_context::log_unread(
                        writer,
                        unread,
                        self.side.wall.show(self.side.shared.clock.now()),
                        self.side.next_id(),
                    );
                }
            }
            Event::Panicked => self.side.shared.metrics.panicked(),
        }
    }
}
