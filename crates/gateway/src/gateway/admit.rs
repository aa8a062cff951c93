//! Admits a request or refuses it: finds its route, identifies its caller, draws from its limits.

use http::{Request, StatusCode};
use http_body::Body;

use super::admitted::{Admitted, Next, balance_hash};
use super::read_body::ReadAhead;
use super::request_context::RequestContext;
use super::{Gateway, Snapshot, checks};
use crate::framing::RequestTarget;
use crate::headers::RequestHeaders;
use crate::recent::Drawing;
use crate::rejection::Rejection;
use tollgate_net::server::ConnInfo;
use tollgate_policy::route::{Match, Route};
use tollgate_policy::{
    Asked, BodyFacts, Claims, Descriptor, FilledEdits, Identified, Policy, sent,
};

impl Gateway {
    /// Admits a request, or returns the reason why it is refused. `edits` receives the route's
    /// changes of the response as far as they are known then, because a refusal carries them too.
    pub(super) async fn admit<'s, B: ReadAhead>(
        &self,
        snapshot: &'s Snapshot,
        connection: &ConnInfo,
        (head, body, headers): (&mut Request<()>, &mut B, &RequestHeaders),
        context: &mut RequestContext,
        edits: &mut FilledEdits<'s>,
    ) -> Result<(RequestTarget, Admitted<'s>), Rejection> {
        let target = checks::normalise(snapshot, head, headers, context)?;
        let mut admission = Admission {
            gateway: self,
            snapshot,
            connection,
            target: &target,
            head,
            context,
            edits,
        };
        let admitted = admission.find_route(body).await?;
        Ok((target, admitted))
    }
}

/// The admission of one request. Each `?` below is a point where the request is refused.
struct Admission<'a, 's> {
    gateway: &'a Gateway,
    snapshot: &'s Snapshot,
    connection: &'a ConnInfo,
    target: &'a RequestTarget,
    head: &'a Request<()>,
    context: &'a mut RequestContext,
    edits: &'a mut FilledEdits<'s>,
}

impl<'s> Admission<'_, 's> {
    /// Finds the route of the request and admits the request to it. The body is read first, but
    /// only where the route or its limits may depend on it.
    async fn find_route<B: ReadAhead>(&mut self, body: &mut B) -> Result<Admitted<'s>, Rejection> {
        let (policy, connection) = (&self.snapshot.policy, self.connection);
        let facts;
        let described = describe::<B>(policy, connection, self.target, self.head)?;
        self.context.set_client(described.client);
        let found = policy.find_route(&described);
        let asked = policy.asked(&found);
        let mut matched = found.matched;
        if !asked.is_empty() {
            if let Some(matched) = &matched {
                self.context.set_route(matched.route);
                let accepted = if asked.routes() {
                    // The body selects the route, so only a length that every possible route refuses is
                    // refused.
                    let possible = found.asking.iter().chain([&matched.route]);
                    let possible = possible.map(|route| &policy.routes[*route]);
                    checks::check_length(self.snapshot, possible, body)
                } else {
                    self.check_route(&policy.routes[matched.route], body)
                };
                if let Err(rejection) = accepted {
                    return Err(Box::pin(self.not_accepted(rejection, &described, matched)).await);
                }
            }
            // Boxed, so that the future of a request without a body is small.
            facts = Box::pin(self.read_facts(asked, (&described, &matched), body)).await?;
            described.body.set(Some(&facts));
            if asked.routes() {
                matched = policy.route(&described);
            }
        }
        self.admit_to_route(&described, matched, body).await
    }

    /// Refuses a request that the route does not accept from any caller.
    fn check_route<B: ReadAhead>(&self, route: &Route, body: &B) -> Result<(), Rejection> {
        checks::check_route(
            self.snapshot,
            route,
            self.target,
            (self.head.method(), body),
        )
    }

    /// Reads what the body of the request says. A request whose body cannot be read is refused here.
    /// `matched`: the route that the request would have without its body.
    async fn read_facts<B: ReadAhead>(
        &mut self,
        asked: Asked,
        (described, matched): (&Descriptor<'_>, &Option<Match<'_>>),
        body: &mut B,
    ) -> Result<BodyFacts, Rejection> {
        let read = self
            .gateway
            .read_body(self.snapshot, self.connection, asked, (self.head, body));
        match read.await {
            Ok(mut facts) => {
                self.context.set_calls(facts.take_calls());
                Ok(facts)
            }
            Err(rejection) => {
                if let Some(matched) = matched {
                    // A client that sends such requests is limited too. Boxed, so that the future of a request
                    // whose body is read is small.
                    let status = rejection.status();
                    Box::pin(self.charge_refused(described, matched, status)).await?;
                }
                Err(rejection)
            }
        }
    }

    /// Charges a request that is refused with `status` before it is identified to the limits by
    /// address and for everyone of its route.
    async fn charge_refused(
        &mut self,
        described: &Descriptor<'_>,
        matched: &Match<'_>,
        status: StatusCode,
    ) -> Result<(), Rejection> {
        let policy = &self.snapshot.policy;
        let now = self.context.seconds();
        let claims = self.context.claims_mut();
        policy.claim_refused(claims, matched, described, status, now);
        self.gateway.judge(self.snapshot, self.context).await
    }

    /// The refusal of a request that its route does not accept from any caller. One that is refused
    /// for its body is charged first.
    async fn not_accepted(
        &mut self,
        rejection: Rejection,
        described: &Descriptor<'_>,
        matched: &Match<'_>,
    ) -> Rejection {
        let Rejection::TooBig = rejection else {
            return rejection;
        };
        let charged = self.charge_refused(described, matched, rejection.status());
        charged.await.err().unwrap_or(rejection)
    }

    /// Identifies the caller of a request whose route is `matched`, and draws from its limits.
    async fn admit_to_route<B: ReadAhead>(
        &mut self,
        described: &Descriptor<'_>,
        matched: Option<Match<'_>>,
        body: &B,
    ) -> Result<Admitted<'s>, Rejection> {
        let (snapshot, policy) = (self.snapshot, &self.snapshot.policy);
        let matched = &matched.ok_or_else(|| checks::unrouted(policy, described))?;
        self.context.set_route(matched.route);
        let route = &policy.routes[matched.route];
        let mut who = Identified::default();
        // A refusal before the caller is identified contains no caller in its edits.
        *self.edits = policy.edits(&route.response_headers, matched, &who, described);
        if let Err(rejection) = self.check_route(route, body) {
            // Boxed, so that the future of other requests is small.
            return Err(Box::pin(self.not_accepted(rejection, described, matched)).await);
        }
        let routed = Routed {
            matched,
            described,
            length: body_length(body),
            passes_on: B::READABLE,
        };
        let refusal = self
            .gateway
            .identify(snapshot, routed, &mut who, self.context)
            .await?;
        self.context.set_caller(&who);
        *self.edits = policy.edits(&route.response_headers, matched, &who, described);
        self.draw(routed, &who, refusal).await?;
        let limits = route.limits_of(self.context.target()).iter();
        self.context.owes(limits.map(|limit| limit.rule));
        Ok(self.admitted(routed, &who))
    }

    /// Draws from the limits of the request. An unidentified request is charged too, before it is
    /// refused.
    async fn draw(
        &mut self,
        routed: Routed<'_, '_, '_>,
        who: &Identified,
        refusal: Option<Rejection>,
    ) -> Result<(), Rejection> {
        let Self {
            gateway, snapshot, ..
        } = *self;
        if let Some(refusal) = refusal {
            gateway.judge(snapshot, self.context).await?;
            return Err(refusal);
        }
        self.record(routed, who);
        let route = &snapshot.policy.routes[routed.matched.route];
        if route.over_limit.is_empty() {
            return gateway.judge(snapshot, self.context).await;
        }
        let judged = gateway.judge_targets(snapshot, routed, who, self.context);
        Box::pin(judged).await
    }

    /// Records the draw, where reloads are judged by recent requests.
    fn record(&self, routed: Routed<'_, '_, '_>, who: &Identified) {
        let Some(numbers) = self.snapshot.recorded_as.as_ref().filter(|_| !who.exempt) else {
            return;
        };
        let drawing = Drawing {
            at: self.context.at(),
            route: routed.matched.route,
            client: routed.described.client,
            who,
            claims: self.context.claims(),
        };
        let recorder = &self.gateway.side.recorder;
        recorder.record(numbers, &self.snapshot.policy, &drawing);
    }

    /// The next step of a request that its limits admit.
    fn admitted(&self, routed: Routed<'_, '_, '_>, who: &Identified) -> Admitted<'s> {
        let policy = &self.snapshot.policy;
        let Routed {
            matched, described, ..
        } = routed;
        let route = &policy.routes[matched.route];
        let over_limit = route.over_limit(self.context.target());
        let over_limit = over_limit.map(|over| over.upstream);
        let upstream = over_limit.or(route.target.upstream());
        Admitted {
            route,
            request_edits: policy.edits(&route.request_headers, matched, who, described),
            next: match over_limit {
                Some(upstream) if !self.target.last_hop => Next::Forward(upstream),
                _ => Next::of_route(policy, routed, who, self.target, self.head),
            },
            caller: balance_hash(policy, upstream, who, described),
        }
    }
}

/// A request with its route, as far as the claims of the route's targets depend on it.
#[derive(Clone, Copy)]
pub(super) struct Routed<'r, 'm, 'd> {
    pub(super) matched: &'r Match<'m>,
    pub(super) described: &'r Descriptor<'d>,
    /// The length of its body, if it is known.
    pub(super) length: Option<u64>,
    /// Whether another target of its route may take it: the gateway forwards it itself. A proxy that
    /// asks for a decision sends it to its own upstream, whose budget must hold.
    pub(super) passes_on: bool,
}

impl Routed<'_, '_, '_> {
    /// What the request draws from if it goes to this target of its route.
    pub(super) fn claims(&self, policy: &Policy, who: &Identified, target: usize) -> Claims {
        let body = sent(self.described, self.length);
        policy.claims_of_target(target, self.matched, who, self.described.headers, body)
    }
}

/// The length of a body, if it is known before the body is read.
fn body_length<B: Body>(body: &B) -> Option<u64> {
    if body.is_end_stream() {
        Some(0)
    } else {
        body.size_hint().exact()
    }
}

/// The properties of a request, with a body of this type, by which routes and keys are found.
pub(super) fn describe<'r, B: ReadAhead>(
    policy: &Policy,
    connection: &'r ConnInfo,
    target: &'r RequestTarget,
    head: &'r Request<()>,
) -> Result<Descriptor<'r>, Rejection> {
    let subject = connection
        .tls
        .as_ref()
        .and_then(|tls| tls.client_subject.as_deref());
    // Most hosts have already been found to be in normal form.
    let plain = target
        .plain_host
        .and_then(|length| target.host.as_ref()?.to_str().ok()?.get(..length));
    let (method, uri, headers) = (head.method(), head.uri(), head.headers());
    let mut described = policy
        .describe(plain, method, uri, headers, connection.peer(), subject)
        .map_err(Rejection::Unmatchable)?;
    described.is_body_elsewhere = !B::READABLE;
    Ok(described)
}
