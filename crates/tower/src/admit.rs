//! Decides about a request: does what each step of the order of admission asks for.
//!
//! Whatever can be decided without waiting is decided at once.

use std::cell::OnceCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;

use super::engine::Snapshot;
use super::layer::{LayerState, RequestHead};
use super::passage::{Due, Passage, quota_headers};
use tollgate_admission::{Account, Admission, Refusal, RequestView, Step};
use tollgate_limit::{Micros, Timestamp};
use tollgate_limiter::wait_until;
use tollgate_policy::Peer;
use tollgate_response::quota_headers::Prepared;
use tollgate_response::{Form, Problem, Reason, challenge};

/// What becomes of a request.
pub(super) enum Next {
    /// The service gets the request.
    Admit(Due),
    Refuse(Box<Response<Bytes>>),
    /// Neither of the two is known yet.
    Wait(Work),
}

/// What has to be waited for.
pub(super) type Work = Pin<Box<dyn Future<Output = (Box<Passage>, Admission)> + Send>>;

/// Decides about a request. Most are admitted and charged for good: they need no [`Passage`].
pub(super) fn start<B: Body>(shared: &LayerState, request: &Request<B>) -> Next {
    let engine = &shared.engine;
    let snapshot = engine.current();
    let mut account = Account::new(engine.clock.now());
    let mut admission = Admission::default();
    let at = account.at;
    let step = advance(shared, &snapshot, &mut admission, &mut account, request, at);
    match step {
        Ok(Step::Admit) if snapshot.is_final(&account) => {
            Next::Admit(Due::Headers(quota_headers(&snapshot, &account)))
        }
        Ok(Step::Refuse(Refusal::NoRoute)) => Next::Admit(Due::Headers(Prepared::default())),
        step => {
            let (snapshot, engine) = (Arc::clone(&snapshot), Arc::clone(engine));
            let passage = Box::new(Passage::new(snapshot, engine, account, request));
            conclude(passage, admission, step)
        }
    }
}

/// Goes on with a request that had to wait.
pub(super) fn resume<B: Body>(
    shared: &LayerState,
    request: &Request<B>,
    mut passage: Box<Passage>,
    mut admission: Admission,
) -> Next {
    let Passage {
        snapshot,
        account,
        engine,
        ..
    } = &mut *passage;
    let now = engine.clock.now();
    let step = advance(shared, snapshot, &mut admission, account, request, now);
    conclude(passage, admission, step)
}

/// Does what needs no waiting; returns the step that does, or the last one.
///
/// # Errors
/// Why the request cannot be matched safely.
fn advance<B: Body>(
    shared: &LayerState,
    snapshot: &Snapshot,
    admission: &mut Admission,
    account: &mut Account,
    request: &Request<B>,
    now: Timestamp,
) -> Result<Step, Problem> {
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
    let find = shared.key.as_ref();
    let key = find.and_then(|find| {
        find(RequestHead {
            method,
            uri,
            headers,
            extensions,
        })
    });
    let facts = OnceCell::new();
    let mut described = policy
        .describe(None, method, uri, headers, peer, subject)
        .map_err(Problem::unmatchable)?;
    described.application = key.as_deref();
    let body = request.body();
    let is_empty = body.is_end_stream();
    let length = if is_empty {
        Some(0)
    } else {
        body.size_hint().exact()
    };
    let seconds = account.at.as_micros() / 1_000_000;
    let mut view = RequestView::new(policy, &described, length, seconds);
    view.under_way = Some(&shared.engine.under_way);
    if view.is_unread() && !is_empty {
        if view.asked.routes() {
            return Err(Problem::PATH);
        }
        // The body belongs to the service: what it says is not known here, and costs the most.
        view.read(Some(facts.get_or_init(|| policy.body_of_service(length))));
    }
    loop {
        let limiter = &snapshot.limiter;
        match admission.step(account, &view, limiter, now) {
            Step::Read(_) => view.read(None),
            Step::Draw if !account.asks_store(limiter.limits()) => {
                drop(admission.draw(account, limiter));
            }
            step => return Ok(step),
        }
    }
}

/// What becomes of the request after this step.
fn conclude(
    mut passage: Box<Passage>,
    mut admission: Admission,
    step: Result<Step, Problem>,
) -> Next {
    let snapshot = Arc::clone(&passage.snapshot);
    match step {
        Err(problem) => {
            let refusal = tollgate_response::Refusal::new(problem, "bad_path", Reason::Other);
            Next::Refuse(refuse(&passage, &refusal))
        }
        Ok(Step::Admit) => Next::Admit(Due::Settlement(passage)),
        Ok(Step::Refuse(refusal)) => refused(&passage, refusal),
        Ok(Step::Hold(due)) => Next::Wait(Box::pin(async move {
            wait_until(&passage.engine.clock, due).await;
            (passage, admission)
        })),
        Ok(Step::Wait) => Next::Wait(Box::pin(async move {
            admission.wait(&passage.engine.clock).await;
            (passage, admission)
        })),
        Ok(Step::Look) => Next::Wait(Box::pin(async move {
            admission
                .look(&mut passage.account, &snapshot.limiter)
                .await;
            (passage, admission)
        })),
        Ok(Step::Draw | Step::Read(_)) => Next::Wait(Box::pin(async move {
            if let Some(draw) = admission.draw(&mut passage.account, &snapshot.limiter) {
                draw.await;
            }
            (passage, admission)
        })),
    }
}

fn refused(passage: &Passage, refusal: Refusal) -> Next {
    use tollgate_response::Refusal as Written;
    let policy = &passage.snapshot.policy;
    let response = match refusal {
        Refusal::NoRoute | Refusal::TurnedAway => {
            return Next::Admit(Due::Headers(Prepared::default()));
        }
        Refusal::Denied => match passage.account.refused(
            policy,
            Some(&passage.engine.under_way),
            passage.engine.clock.now(),
        ) {
            Some(refused) => {
                let reason = Reason::Denied(&refused);
                let written = Written::new(refused.problem(), refused.label(), reason);
                refuse(passage, &written)
            }
            None => refuse(
                passage,
                &Written {
                    retry_after: Some(Micros::from_secs(1)),
                    ..Written::new(Problem::OVERLOADED, "overloaded", Reason::Other)
                },
            ),
        },
        Refusal::Unavailable(unavailable) => {
            let reason = Reason::StoreDown(&unavailable.limit);
            refuse(
                passage,
                &Written::new(Problem::STORE_DOWN, "store_down", reason),
            )
        }
        Refusal::Unidentified(refusal) => {
            let problem = Problem::unidentified(refusal.reason);
            let challenge = challenge(policy, &refusal);
            let reason = Reason::Unidentified(challenge.as_ref());
            let written = Written {
                detail: refusal.lacking.as_deref(),
                ..Written::new(problem, refusal.reason.label(), reason)
            };
            refuse(passage, &written)
        }
    };
    Next::Refuse(response)
}

/// The response of a refusal.
fn refuse(passage: &Passage, refusal: &tollgate_response::Refusal<'_>) -> Box<Response<Bytes>> {
    let policy = &passage.snapshot.policy;
    let id = passage.engine.next_id();
    tracing::debug!(
        decision_id = id.as_str(),
        reason = refusal.label,
        "a request is refused"
    );
    let route = passage.account.route.and_then(|at| policy.routes.get(at));
    let own = route
        .and_then(|route| route.refusal.as_ref())
        .or(policy.responses.refusal.as_ref())
        .and_then(|body| Form::of(body, None));
    let mut response = refusal.response(&passage.form, own, id.as_str());
    passage.annotate(response.headers_mut());
    Box::new(response)
}
