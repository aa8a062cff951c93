//! Decides about a request: finds its route and caller, and draws from its limits.
//!
//! The order is the gateway's. Whatever can be decided without waiting is decided at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;

use super::engine::Snapshot;
use super::layer::Shared;
use super::passage::{Due, Passage, quota_headers};
use tollgate_admission::{Judged, denial};
use tollgate_limit::Timestamp;
use tollgate_limiter::{Decision, Denied, wait_until};
use tollgate_policy::{Claimed, Claims, Identified, IdentityRefusal, Peer};
use tollgate_response::quota_headers::Prepared;
use tollgate_response::{Form, Problem, Reason, Refusal, challenge};

/// What becomes of a request.
pub(super) enum Next {
    /// The service gets it.
    Admit(Due),
    Refuse(Box<Response<Bytes>>),
    /// Neither is known yet.
    Wait(Work),
}

/// What has to be waited for.
pub(super) type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What came of it.
pub(super) enum Done {
    /// The limits that need no signature were looked at.
    Looked(Box<Passage>, Result<(), Denied>),
    Judged(Box<Passage>, Decision, Verdict),
    /// A held request is due.
    Due(Box<Passage>, Option<IdentityRefusal>),
}

/// What the decision depends on, beside the limits.
pub(super) struct Verdict {
    /// The identity that refuses the request after it was charged.
    refusal: Option<IdentityRefusal>,
    /// When the limits decided.
    at: Timestamp,
}

/// Decides about a request that has arrived. Most are admitted at once and charged for good: they
/// need no [`Passage`].
pub(super) fn start<B: Body>(shared: &Shared, request: &Request<B>) -> Next {
    let engine = &shared.engine;
    let snapshot = engine.current();
    let at = engine.clock.now();
    let mut claims = Claims::default();
    let (route, found) = claim(shared, &snapshot, at, &mut claims, request, false);
    let passage = |claims| {
        let (snapshot, engine) = (Arc::clone(&snapshot), Arc::clone(engine));
        Box::new(Passage::new(snapshot, engine, at, (route, claims), request))
    };
    match found {
        Found::NoRoute => pass(),
        Found::Unreadable(problem) => Next::Refuse(refuse(
            &passage(claims),
            &Refusal::new(problem, "bad_path", Reason::Other),
        )),
        Found::Claims(Claimed::Complete) if claims.is_empty() => pass(),
        Found::Claims(Claimed::Complete) => {
            let list = claims.list(&snapshot.policy);
            let decision = snapshot.limiter.try_check(&list, at);
            drop(list);
            match decision {
                Some(Decision::Allow(permit))
                    if permit.is_settled() && permit.hold().0 == 0 && !snapshot.follows =>
                {
                    let judged = Judged::Permitted(permit);
                    let headers = quota_headers(&snapshot, &claims, &judged, at);
                    Next::Admit(Due::Headers(headers))
                }
                decision => decided(passage(claims), decision, None),
            }
        }
        Found::Claims(Claimed::Refused(refusal)) => judge(passage(claims), Some(refusal)),
        Found::Claims(Claimed::Unverified) => Next::Wait(Box::pin(look(passage(claims)))),
    }
}

/// The service gets a request to which no limit applies.
fn pass() -> Next {
    Next::Admit(Due::Headers(Prepared::default()))
}

/// Goes on with a request that had to wait.
pub(super) fn resume<B: Body>(shared: &Shared, request: &Request<B>, done: Done) -> Next {
    match done {
        Done::Looked(passage, Err(denied)) => denied_by(passage, denied),
        Done::Looked(mut passage, Ok(())) => {
            let Passage {
                snapshot,
                at,
                claims,
                ..
            } = &mut *passage;
            match claim(shared, snapshot, *at, claims, request, true).1 {
                Found::Claims(Claimed::Refused(refusal)) => judge(passage, Some(refusal)),
                // The same request had a route before.
                _ => judge(passage, None),
            }
        }
        Done::Judged(passage, decision, verdict) => judged(passage, decision, verdict),
        Done::Due(passage, refusal) => admit(passage, refusal),
    }
}

/// What is known of a request's claims.
enum Found {
    /// No route matches.
    NoRoute,
    /// The request cannot be matched safely, as this problem says.
    Unreadable(Problem),
    Claims(Claimed),
}

/// Finds the route and the claims of a request. `verify`: its signature is verified, and the claims
/// replaced.
fn claim<B: Body>(
    shared: &Shared,
    snapshot: &Snapshot,
    at: Timestamp,
    claims: &mut Claims,
    request: &Request<B>,
    verify: bool,
) -> (usize, Found) {
    let policy = &snapshot.policy;
    let extensions = request.extensions();
    let peer = Peer {
        address: (shared.peer)(extensions),
        port: 0,
        tls: false,
        unnamed: false,
    };
    if snapshot.needs_address && peer.address.is_none() {
        shared.engine.warn_unaddressed();
    }
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let subject = (shared.subject)(extensions);
    let unread;
    let described = match policy.describe(None, method, uri, headers, peer, subject) {
        Ok(described) => described,
        Err(why) => return (0, Found::Unreadable(Problem::unmatchable(why))),
    };
    let body = request.body();
    let length = if body.is_end_stream() {
        Some(0)
    } else {
        body.size_hint().exact()
    };
    let found = policy.find_route(&described);
    let asked = policy.asked(&found);
    if !asked.is_empty() && !body.is_end_stream() {
        if asked.routes() {
            return (0, Found::Unreadable(Problem::PATH));
        }
        // The body belongs to the service: what it says is not known here, and costs the most.
        unread = policy.body_of_service(length);
        described.body.set(Some(&unread));
    }
    let Some(matched) = found.matched else {
        return (0, Found::NoRoute);
    };
    let mut who = Identified::default();
    let into = (&mut who, claims);
    let now = at.as_micros() / 1_000_000;
    let claimed = if verify {
        match policy.claim_verified(into, &matched, &described, length, now) {
            Ok(()) => Claimed::Complete,
            Err(refusal) => Claimed::Refused(refusal),
        }
    } else {
        policy.claim(into, &matched, &described, length, now)
    };
    (matched.route, Found::Claims(claimed))
}

/// Looks at the limits that need no signature, without charging.
async fn look(passage: Box<Passage>) -> Done {
    let snapshot = Arc::clone(&passage.snapshot);
    let (limiter, at, deadline) = (&snapshot.limiter, passage.at, &passage.deadline);
    let looked = {
        let claims = passage.claims.list(&snapshot.policy);
        if claims.is_empty() {
            Ok(())
        } else {
            let mut looked = limiter.look(&claims, at, deadline).await;
            if let Err(denied) = &mut looked {
                limiter.count_look(&claims, denied, at, deadline).await;
            }
            looked
        }
    };
    Done::Looked(passage, looked)
}

/// Draws all claims or none.
fn judge(passage: Box<Passage>, refusal: Option<IdentityRefusal>) -> Next {
    let decision = {
        let claims = passage.claims.list(&passage.snapshot.policy);
        passage.snapshot.limiter.try_check(&claims, passage.at)
    };
    decided(passage, decision, refusal)
}

/// Goes on with a decision; `None`: the shared store must be asked.
fn decided(
    passage: Box<Passage>,
    decision: Option<Decision>,
    refusal: Option<IdentityRefusal>,
) -> Next {
    let at = passage.at;
    match decision {
        Some(decision) => judged(passage, decision, Verdict { refusal, at }),
        None => Next::Wait(Box::pin(ask(passage, refusal))),
    }
}

/// Asks the shared store.
async fn ask(passage: Box<Passage>, refusal: Option<IdentityRefusal>) -> Done {
    let snapshot = Arc::clone(&passage.snapshot);
    let decision = {
        let claims = passage.claims.list(&snapshot.policy);
        let (at, deadline) = (passage.at, &passage.deadline);
        snapshot.limiter.ask(&claims, at, deadline).await
    };
    let at = passage.engine.clock.now();
    Done::Judged(passage, decision, Verdict { refusal, at })
}

fn judged(mut passage: Box<Passage>, decision: Decision, verdict: Verdict) -> Next {
    let permit = match decision {
        Decision::Deny(denied) => return denied_by(passage, denied),
        Decision::Unavailable(unavailable) => {
            let reason = Reason::StoreDown(&unavailable.limit);
            let refusal = Refusal::new(Problem::STORE_DOWN, "store_down", reason);
            return Next::Refuse(refuse(&passage, &refusal));
        }
        Decision::Allow(permit) => permit,
    };
    let hold = permit.hold();
    passage.judged = Judged::Permitted(permit);
    if hold.0 == 0 {
        return admit(passage, verdict.refusal);
    }
    let due = verdict.at.after(hold);
    Next::Wait(Box::pin(async move {
        wait_until(&passage.engine.clock, due).await;
        Done::Due(passage, verdict.refusal)
    }))
}

/// Admits a request, or refuses it because its identity does: what it was charged stays charged.
fn admit(mut passage: Box<Passage>, refusal: Option<IdentityRefusal>) -> Next {
    passage.keep_charges();
    match refusal {
        Some(refusal) => unidentified(passage, &refusal),
        None => {
            passage.owe();
            Next::Admit(Due::Settlement(passage))
        }
    }
}

/// Refuses a request that its identity refuses.
fn unidentified(passage: Box<Passage>, refusal: &IdentityRefusal) -> Next {
    let problem = Problem::unidentified(refusal.reason);
    let identities = &passage.snapshot.policy.identities;
    let identity = identities.iter().find(|one| one.name == refusal.identity);
    let challenge = identity
        .filter(|_| !refusal.reason.is_malformed())
        .and_then(challenge);
    let reason = Reason::Unidentified(challenge.as_ref());
    let refusal = Refusal {
        detail: refusal.lacking.as_deref(),
        ..Refusal::new(problem, refusal.reason.label(), reason)
    };
    Next::Refuse(refuse(&passage, &refusal))
}

/// Refuses a request that the limits deny.
fn denied_by(mut passage: Box<Passage>, denied: Denied) -> Next {
    let limits = &passage.snapshot.policy.limits;
    let overload = denial::sheds_load(&denied, &passage.claims, limits);
    let refused = denial::contents(&denied, &passage.claims, &passage.snapshot.policy);
    passage.judged = Judged::Denied(denied);
    let refusal = if overload {
        Refusal {
            retry_after: Some(tollgate_limit::Micros::from_secs(1)),
            ..Refusal::new(Problem::OVERLOADED, "overloaded", Reason::Other)
        }
    } else {
        let reason = Reason::Denied(&refused);
        Refusal::new(refused.problem(), refused.label(), reason)
    };
    Next::Refuse(refuse(&passage, &refusal))
}

/// The response of a refusal.
fn refuse(passage: &Passage, refusal: &Refusal<'_>) -> Box<Response<Bytes>> {
    let policy = &passage.snapshot.policy;
    let id = passage.engine.next_id();
    tracing::debug!(
        decision_id = id.as_str(),
        reason = refusal.label,
        "a request is refused"
    );
    let own = policy
        .routes
        .get(passage.route)
        .and_then(|route| route.refusal.as_ref())
        .or(policy.responses.refusal.as_ref())
        .and_then(|body| Form::of(body, None));
    let mut response = refusal.response(&passage.asked, own, id.as_str());
    passage.annotate(response.headers_mut());
    Box::new(response)
}
