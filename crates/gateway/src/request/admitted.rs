//! What is done with an admitted request: it is forwarded, echoed, or the gateway responds itself.

use std::future::Future;
use std::hash::{Hash, Hasher};

use http::{Request, Response};

use super::gateway::Gateway;
use super::own;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use crate::forward::body::{Received, ResponseBody};
use crate::forward::echo;
use crate::forward::{ForwardContext, Forwarded};
use crate::framing::RequestTarget;
use crate::rejection::Rejection;
use tollgate_limiter::Cause;
use tollgate_net::server::{ConnInfo, Inbound};
use tollgate_policy::routes::{Route, Target};
use tollgate_policy::upstream::Balance;
use tollgate_policy::{Descriptor, FilledEdits, Identified, Match, Policy};

pub(crate) struct Admitted<'s> {
    pub(crate) route: &'s Route,
    pub(crate) next: Next,
    pub(crate) request_edits: FilledEdits<'s>,
    pub(crate) caller: u64,
}

pub(crate) enum Next {
    Forward(usize),
    Echo,
    /// Respond from the gateway, because the route or the request itself asks for it.
    Respond(Response<ResponseBody>, Cause),
}

impl Next {
    pub(crate) fn of_route(
        policy: &Policy,
        matched: &Match<'_>,
        described: &Descriptor<'_>,
        who: &Identified,
        target: &RequestTarget,
        head: &Request<()>,
    ) -> Self {
        let route = &policy.routes[matched.route];
        match &route.target {
            // The request does not reach an upstream, because the client limited its hops (`Max-Forwards`).
            Target::Upstream(_) if target.last_hop => {
                Self::Respond(own::last_recipient(head, route), Cause::Gateway)
            }
            Target::Upstream(upstream) => Self::Forward(*upstream),
            Target::Redirect { status, location } => {
                let location = policy.location(location, matched, who, described);
                Self::Respond(own::redirect(*status, location), Cause::Upstream)
            }
            Target::Fixed {
                status,
                body,
                content_type,
            } => {
                let response = own::fixed(*status, content_type.clone(), body.clone());
                Self::Respond(response, Cause::Upstream)
            }
            // A gateway reads no policies for services.
            Target::Echo | Target::Service => Self::Echo,
        }
    }
}

impl<'s> Admitted<'s> {
    /// Builds the context that the forwarder needs. `verbatim`: the response headers may go to the
    /// client unchanged, except for added ones.
    pub(crate) fn forward_context(
        self,
        snapshot: &'s Snapshot,
        connection: &'s ConnInfo,
        target: RequestTarget,
        verbatim: bool,
    ) -> ForwardContext<'s> {
        ForwardContext {
            connection,
            target,
            policy: &snapshot.policy,
            defaults: &snapshot.defaults,
            body_max: snapshot.body_max(self.route),
            route: self.route,
            request_edits: self.request_edits,
            caller: self.caller,
            received: Received::default(),
            verbatim,
        }
    }

    pub(crate) fn echo(
        self,
        snapshot: &Snapshot,
        mut request: Request<Inbound>,
        context: &mut RequestContext,
    ) -> Response<ResponseBody> {
        let received = context.receiving(request.body());
        self.request_edits.apply(request.headers_mut());
        let added = context.added_to_body();
        let body_max = snapshot.body_max(self.route);
        let body_max = body_max.map(|most| most.saturating_add(added));
        let guarded = &snapshot.policy.guarded;
        echo::reflect(request, body_max, &snapshot.defaults, received, guarded)
    }
}

impl Gateway {
    pub(crate) fn forward<'f>(
        &'f self,
        snapshot: &Snapshot,
        upstream: usize,
        mut forwarding: ForwardContext<'f>,
        mut request: Request<Inbound>,
        context: &'f mut RequestContext,
    ) -> impl Future<Output = Result<Forwarded, Rejection>> + use<'f> {
        forwarding.received = context.receiving(request.body());
        let added = context.added_to_body();
        forwarding.body_max = forwarding.body_max.map(|most| most.saturating_add(added));
        context.pass_trace_on(request.headers_mut());
        context.account.keep_readable(&mut request);
        let permit = context
            .account
            .judged
            .permit()
            .expect("`admit` returns only what the limiter permitted");
        let since = self.side.shared.clock.now();
        let upstreams = &snapshot.policy.upstreams;
        let sent = self
            .forwarder
            .forward(permit, forwarding, &upstreams[upstream], request)
            .map(Box::pin);
        async move {
            let outcome = match sent {
                Ok(sent) => sent.await,
                Err(error) => Err(error),
            };
            // Runs before the route's edits, which may remove the upstream's quota headers.
            context.forwarded(upstream, since, outcome.as_ref());
            Ok(outcome?)
        }
    }
}

/// The caller's hash for `balance = "identity_hash"`: the same on every worker and gateway. 0 where
/// the upstream does not balance by it.
pub(crate) fn balance_hash(
    policy: &Policy,
    upstream: Option<usize>,
    who: &Identified,
    described: &Descriptor<'_>,
) -> u64 {
    let hashes = |upstream: usize| policy.upstreams[upstream].balance == Balance::IdentityHash;
    if !upstream.is_some_and(hashes) {
        return 0;
    }
    let mut hasher = siphasher::sip::SipHasher13::new();
    match who.resolved.first() {
        Some(resolved) => hasher.write(&resolved.key),
        None => described.client.hash(&mut hasher),
    }
    hasher.finish()
}
