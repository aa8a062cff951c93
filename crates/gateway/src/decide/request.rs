//! Decides about a request that another program received, by the same path as any other request. It
//! is not forwarded.

use std::cell::OnceCell;

use http::header::ORIGIN;
use http::{HeaderValue, Request, Response};

use crate::decide::{DECISION, NearCounter, Open, Original, PERMIT, PermitId, Permits, Slot};
use crate::forward::Forwarded;
use crate::forward::body::{Guarded, ResponseBody};
use crate::headers::RequestHeaders;
use crate::rejection::Rejection;
use crate::request::admit::{Arrived, describe, wait_counted};
use crate::request::admitted::Next;
use crate::request::read_body::body_elsewhere;
use crate::request::request_context::{Closing, RequestContext};
use crate::request::{Gateway, HeldSnapshot, Snapshot, checks, respond};
use tollgate_admission::{Account, Admission, Judged, Refusal, RequestView, Step};
use tollgate_limit::{Micros, Timestamp};
use tollgate_limiter::{Cause, Deciding, Decision, wait_until};
use tollgate_policy::{Claims, FilledEdits};
use tollgate_response::RefusalForm;

impl Gateway {
    /// Decides about `original`: 200 with quota headers, or the refusal that its client would get.
    /// Charges that a report can still correct are kept in `permits`, and the response names their
    /// permit. `head`: the program asks with HEAD.
    pub(crate) async fn decide(
        &self,
        original: Original,
        head: bool,
        permits: &Permits,
    ) -> Response<Guarded<Closing>> {
        let Original {
            mut request,
            connection,
        } = original;
        let snapshot = self.snapshot();
        let deciding = &snapshot.deciding;
        // Reserved before anything is charged.
        let slot = permits.reserve(deciding.permits);
        let mut headers = RequestHeaders::of(request.headers());
        let form = RefusalForm::of_decision(head, request.headers().get(ORIGIN).cloned());
        let client = connection.peer.map(|peer| peer.ip());
        let mut context =
            RequestContext::open(&self.side, &snapshot, &request, &mut headers, client);
        let mut edits = FilledEdits::default();
        let arrived = Arrived {
            head: &mut request,
            body: None,
            headers: &headers,
        };
        let admitted = self
            .admit(&snapshot, &connection, arrived, &mut context, &mut edits)
            .await
            .map(|(_, admitted)| admitted.next);
        let admitted = match admitted {
            // A route that forbids a request forbids it here, too.
            Ok(Next::Respond(response, cause)) if !response.status().is_success() => {
                let response = Forwarded::own(response, cause);
                return respond::pass_on(context, response, &form, edits);
            }
            other => other.map(drop),
        };
        let permitted =
            admitted.and_then(|()| self.keep_open(&mut context, slot, deciding.permit_expiry));
        match permitted {
            Ok(permit) => {
                let mut response = Response::new(ResponseBody::EMPTY);
                if let Some(id) = permit {
                    let id = HeaderValue::from_str(&id.to_string()).expect("hexadecimal digits");
                    response.headers_mut().insert(PERMIT, id);
                }
                let response = Forwarded::own(response, Cause::Gateway);
                respond::pass_on(context, response, &form, FilledEdits::default())
            }
            Err(rejection) => {
                context.keep_refusal(&rejection, &request);
                let id = HeaderValue::from_str(context.id().as_str()).expect("hexadecimal digits");
                let mut response = respond::refuse(context, &rejection, &form, edits);
                response.headers_mut().insert(DECISION, id);
                response
            }
        }
    }

    /// Keeps the charges of an admitted request that a later report can correct; returns the name of
    /// their permit.
    fn keep_open(
        &self,
        context: &mut RequestContext,
        slot: Option<Slot<'_>>,
        expiry: Micros,
    ) -> Result<Option<PermitId>, Rejection> {
        match (context.account.take_open(), slot) {
            (None, _) => Ok(None),
            (Some((permit, owed)), Some(slot)) => {
                let expires = self.side.shared.clock.now().after(expiry);
                let near = self.side.refusals.as_ref().map(|writer| NearCounter {
                    writer: writer.clone(),
                    clock: self.side.shared.clock.clone(),
                });
                let open = Open {
                    permit,
                    owed,
                    near,
                    expires,
                };
                slot.open(open).map(Some).ok_or(Rejection::Internal)
            }
            (Some((permit, _)), None) => {
                permit.revoke();
                Err(Rejection::Overloaded)
            }
        }
    }

    /// Begins a decision about claims that a program names, by their limit or together. It is counted
    /// and logged as the request of the program (`asked`), with the status of the decision.
    pub(crate) fn open_draw(
        &self,
        snapshot: &HeldSnapshot,
        asked: &Request<()>,
        claims: Claims,
    ) -> Box<RequestContext> {
        let mut headers = RequestHeaders::of(asked.headers());
        let mut context = RequestContext::open(&self.side, snapshot, asked, &mut headers, None);
        context.account.claims = claims;
        context
    }

    /// What a request draws from that is decided together with others.
    pub(crate) fn claims_of(
        &self,
        snapshot: &Snapshot,
        original: Original,
    ) -> Result<Claims, Rejection> {
        let Original {
            mut request,
            connection,
        } = original;
        let policy = &snapshot.policy;
        let headers = RequestHeaders::of(request.headers());
        let target = checks::normalise_target(policy, &mut request, &headers)?;
        let facts = OnceCell::new();
        let mut described = describe(policy, &connection, &target, &request)?;
        described.is_body_elsewhere = true;
        let now = self.now();
        // The body is with the program that asks: its length is not known here.
        let mut view = RequestView::new(policy, &described, None, self.side.seconds(now));
        let (mut admission, mut account) = (Admission::default(), Account::new(now));
        loop {
            match admission.step(&mut account, &view, &snapshot.limiter, now) {
                Step::Read(asked) => {
                    let known = body_elsewhere(policy, asked, described.headers)?;
                    view.read(Some(facts.get_or_init(|| known)));
                }
                // The draw of all follows at once.
                Step::Look => {}
                Step::Draw => break,
                Step::Wait | Step::Hold(_) | Step::Admit | Step::Refuse(_) => {
                    return Err(checks::unrouted(policy, &described));
                }
            }
        }
        if let Some(matched) = &view.matched {
            let route = &policy.routes[matched.route];
            checks::check_route(snapshot, route, &target, request.method(), None)?;
            if route.target.turns_away() {
                return Err(Rejection::NoRoute);
            }
        }
        match admission.refusal() {
            Some(Refusal::Unidentified(refusal)) => Err(snapshot.unidentified(refusal.clone())),
            _ => Ok(account.claims),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.side.shared.clock.now()
    }

    /// Draws all claims or none. Charges that a report can still correct are kept in `permits`;
    /// returns the name of their permit.
    pub(crate) async fn draw_recorded(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
        permits: &Permits,
    ) -> Result<Option<PermitId>, Rejection> {
        let (deciding, policy) = (&snapshot.deciding, &snapshot.policy);
        // Reserved before anything is charged.
        let slot = permits.reserve(deciding.permits);
        match self.draw_claims(snapshot, context).await {
            Decision::Allow(permit) => {
                let hold = permit.hold();
                context.account.judged = Judged::Permitted(permit);
                context.count_near();
                if hold.0 > 0 {
                    let (clock, held) = (&self.side.shared.clock, &self.side.shared.held);
                    wait_counted(held, wait_until(clock, clock.now().after(hold))).await;
                }
                context.account.keep_charges();
            }
            Decision::Deny(denied) => {
                context.account.judged = Judged::Denied(denied);
                return Err(context.denial());
            }
            Decision::Unavailable(unavailable) => return Err(Rejection::StoreDown(unavailable)),
        }
        let charges = context.account.claims.charges();
        // A request of no units only asks how the limits stand: nothing is reported of it later.
        if charges.iter().all(|charge| charge.cost == 0) {
            return Ok(None);
        }
        let charged = |rule: &usize| charges.iter().any(|one| one.rule == *rule);
        let rules: Vec<usize> = (0..policy.rules.len()).filter(charged).collect();
        context.account.owe(policy, rules.into_iter());
        self.keep_open(context, slot, deciding.permit_expiry)
    }

    pub(super) async fn draw_claims(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
    ) -> Decision {
        let account = &context.account;
        let (limiter, now) = (&snapshot.limiter, account.at);
        let claims = account.claims.list(limiter.limits());
        let draw = match limiter.decide(&claims, now) {
            Deciding::Decided(decision) => return decision,
            Deciding::Asking(draw) => draw,
        };
        let decision = draw.ask(&account.deadline).await;
        drop(claims);
        context.store_took(self.side.shared.clock.now().since(now));
        decision
    }
}

/// Counts and logs a decision about claims that a program names.
pub(crate) fn close_draw(
    mut context: Box<RequestContext>,
    rejection: Option<&Rejection>,
    asked: &Request<()>,
) {
    let mut response = Response::new(());
    if let Some(rejection) = rejection {
        context.keep_refusal(rejection, asked);
        *response.status_mut() = context.turned_away(rejection);
    }
    context.answered(&response, None, Cause::Gateway, false);
    context.close(0, None);
}
