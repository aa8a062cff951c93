//! Decides about a request that another program received, by the same path as any other request. It
//! is not forwarded.

use http::header::ORIGIN;
use http::{HeaderMap, HeaderValue, Response};

use http_body::Body as _;

use super::request_context::{Closing, RequestContext};
use super::{Gateway, Snapshot, checks, describe, judge, respond};
use crate::body::{Guarded, ResponseBody};
use crate::decide::{Original, PERMIT, Permits};
use crate::forward::Forwarded;
use crate::framing;
use crate::headers::{HeaderSet, RequestHeaders};
use crate::rejection::Rejection;
use tollgate_limit::{Micros, Timestamp};
use tollgate_limiter::Cause;
use tollgate_policy::{BodyFacts, Claimed, Claims, FilledEdits, Identified};
use tollgate_response::Asked;

impl Gateway {
    /// Decides about `original`: 200 with quota headers, or the refusal that its client would get.
    /// Charges that a report can still correct are kept in `permits`, and the response names their
    /// permit. `head`: the program asks with HEAD.
    pub(crate) async fn decide(
        &self,
        original: Original,
        head: bool,
        permits: &Permits,
    ) -> Response<Guarded<ResponseBody, Closing>> {
        let Original {
            mut request,
            connection,
        } = original;
        let snapshot = self.snapshot();
        let deciding = &snapshot.deciding;
        let now = self.side.clock.now();
        // Reserved before anything is charged.
        let slot = permits.reserve(deciding.permits);
        let mut headers = RequestHeaders::of(request.headers());
        let asked = Asked::of_decision(head, request.headers().get(ORIGIN).cloned());
        let mut context = RequestContext::open(&self.side, &snapshot, &request, &mut headers, now);
        context.set_client(connection.peer.map(|peer| peer.ip()));
        let mut edits = FilledEdits::default();
        let parts = (&mut request, &headers);
        let admitted = self
            .enter(&snapshot, &connection, parts, &mut context, &mut edits)
            .await
            .map(drop);
        let permitted = admitted.and_then(|()| match (context.take_open(), slot) {
            (None, _) => Ok(None),
            (Some(open), Some(slot)) => {
                let expires = self.side.clock.now().after(deciding.permit_expiry);
                slot.open(open, expires)
                    .map(Some)
                    .ok_or(Rejection::Internal)
            }
            (Some((permit, _)), None) => {
                permit.revoke();
                Err(Rejection::Overloaded)
            }
        });
        match permitted {
            Ok(permit) => {
                let mut response = Response::new(ResponseBody::Empty);
                if let Some(id) = permit {
                    let id = HeaderValue::from_str(&id.to_string()).expect("hexadecimal digits");
                    response.headers_mut().insert(PERMIT, id);
                }
                let response = Forwarded::own(response, Cause::Gateway);
                respond::pass_on(context, response, &asked, FilledEdits::default())
            }
            Err(rejection) => {
                context.keep_refusal(&rejection, &request);
                respond::refuse(context, &rejection, &asked, edits, HeaderMap::new())
            }
        }
    }

    /// What a request draws from that is decided together with others. It is not in the access log.
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
        let target = framing::normalise(&mut request, &headers)?;
        policy.drop_lookalikes(
            target.present.has(HeaderSet::UNDERSCORED),
            request.headers_mut(),
        );
        let mut described = describe(policy, &connection, &target, &request)?;
        let asked = policy.asked(&policy.find_route(&described));
        let unread = BodyFacts::unread(&policy.wanted, None);
        if !asked.is_empty() && !request.body().is_end_stream() {
            // The program that asks keeps the body.
            if asked.routes() {
                return Err(Rejection::TooBigToRoute);
            }
            described.body = Some(&unread);
        }
        let matched = policy
            .route(&described)
            .ok_or_else(|| checks::unrouted(policy, &described))?;
        checks::check_route(snapshot, &policy.routes[matched.route], &target, &request)?;
        let length = request.body().is_end_stream().then_some(0);
        let seconds = self.now().as_micros() / 1_000_000;
        let (mut who, mut claims) = (Identified::default(), Claims::default());
        let into = (&mut who, &mut claims);
        let claimed = policy.claim(into, &matched, &described, length, seconds);
        let refused = match claimed {
            Claimed::Complete => None,
            Claimed::Refused(refusal) => Some(refusal),
            Claimed::Unverified => {
                let into = (&mut who, &mut claims);
                policy
                    .claim_verified(into, &matched, &described, length, seconds)
                    .err()
            }
        };
        match refused {
            None => Ok(claims),
            Some(refusal) => Err(snapshot.unidentified(refusal)),
        }
    }

    /// Waits until the token of requests that were decided together is due.
    pub(crate) async fn hold(&self, span: Micros) {
        if span.0 > 0 {
            let due = self.now().after(span);
            judge::wait_counted(&self.side.clock, due, &self.side.held).await;
        }
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Timestamp {
        self.side.clock.now()
    }
}
