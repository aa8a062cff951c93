//! Decides about the descriptors of a rate limit service: as about a request of a route, but the
//! buckets are those of the rules that the descriptors match, and nothing is forwarded.

mod plan;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use smallvec::SmallVec;

use crate::forward::body::ResponseBody;
use crate::headers::RequestHeaders;
use crate::rejection::Rejection;
use crate::request::request_context::RequestContext;
use crate::request::{Gateway, Snapshot};
use plan::{Applies, Plan};
use tollgate_admission::Judged;
use tollgate_limit::{Micros, Rate};
use tollgate_limiter::{Cause, Decision, Denied};
use tollgate_policy::claims::domains::Entry;
use tollgate_policy::{Claims, TooManyBuckets};
use tollgate_response::{RefusalForm, Refused};

#[derive(Clone, Debug)]
pub struct DescriptorAsked<'a> {
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// How many hits the request adds. 0 looks whether one would be admitted; more than one are charged
    /// even if they do not fit, because they may report what a response has cost.
    pub hits: u64,
    /// The rate to take instead of the rule's own, if the file lists it.
    pub numbers: Option<Rate>,
    /// Whether the hits are given back instead. The peer must be trusted.
    pub gives_back: bool,
}

/// The decision about a request of a rate limit service.
#[derive(Clone, Debug)]
pub struct DescriptorsDecided {
    pub refused: bool,
    /// One for each descriptor, in order.
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the client: those that a route would send.
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Clone, Debug, Default)]
pub struct DescriptorStatus {
    pub over_limit: bool,
    /// The limit that is the nearest to its end; `None`: no limit was asked.
    pub limit: Option<StatusOfLimit>,
    pub unlimited: bool,
}

#[derive(Clone, Debug)]
pub struct StatusOfLimit {
    pub name: Arc<str>,
    pub amount: u64,
    pub period: Micros,
    pub remaining: u64,
    /// After a refusal the wait after which the same request is admitted, if there is one;
    /// otherwise the time until the bucket is full, or its window ends.
    pub reset: Option<Micros>,
}

impl Gateway {
    /// Decides about the descriptors of a request to `domain`: all are charged, or none. `request`
    /// is the one over which the service was asked, for the log.
    ///
    /// # Errors
    /// If they draw from more buckets than one draw supports.
    pub async fn decide_descriptors<B>(
        &self,
        request: &Request<B>,
        domain: &str,
        asked: &[DescriptorAsked<'_>],
    ) -> Result<DescriptorsDecided, TooManyBuckets> {
        let snapshot = self.snapshot();
        let plan = Plan::of(&snapshot.policy, domain, asked, 0)?;
        let mut headers = RequestHeaders::of(request.headers());
        let mut context =
            RequestContext::open(&self.side, &snapshot, request, &mut headers, plan.client);
        context.account.claims.clone_from(&plan.claims);
        if let Some(name) = plan.refused_by() {
            charge_reports(&snapshot, &plan, asked, |_| false);
            let refused = Refused {
                violated: std::iter::once(Arc::clone(name)).collect(),
                retry_after: None,
                never_fits: true,
                ..Refused::default()
            };
            let statuses = plan.statuses(&snapshot.policy, &[]);
            let rejection = Rejection::Denied(refused);
            return Ok(refuse(context, &rejection, request, statuses));
        }
        let looks = asked.iter().any(|one| one.hits == 0);
        let looked: Cow<'_, [DescriptorAsked<'_>]> = if looks {
            let looked = asked.iter().map(|one| DescriptorAsked {
                hits: one.hits.max(1),
                ..one.clone()
            });
            looked.collect()
        } else {
            Cow::Borrowed(asked)
        };
        let mut spared = 0;
        if plan.quotas > 1 {
            let claims = Plan::of(&snapshot.policy, domain, &looked, 0)?.claims;
            let (limiter, account) = (&snapshot.limiter, &context.account);
            let claims = claims.list(limiter.limits());
            let looked = limiter.look(&claims, account.at, &account.deadline).await;
            if let Err(denied) = looked
                && !denied.is_blocked()
            {
                spared = plan.to_spare(denied.outcomes());
            }
        }
        let mut attempts = 0;
        let mut decision = loop {
            let refused = if looks {
                let look = Plan::of(&snapshot.policy, domain, &looked, spared)?;
                look_at(&snapshot, &look.claims, &context).await
            } else {
                Ok(())
            };
            if spared != 0 || attempts > 0 {
                let drawn = Plan::of(&snapshot.policy, domain, asked, spared)?;
                context.account.claims = drawn.claims;
            }
            let decision = match refused {
                Err(denied) => Decision::Deny(denied),
                Ok(()) => self.draw_claims(&snapshot, &mut context).await,
            };
            attempts += 1;
            // A quota was used up in the meantime: the others may still admit the request.
            if let Decision::Deny(denied) = &decision
                && attempts <= plan.quotas
                && plan.is_refused_by_quotas(denied)
            {
                let next = plan.to_spare(denied.outcomes());
                if next != spared {
                    spared = next;
                    continue;
                }
            }
            break decision;
        };
        let is_charged = |place: usize| match &decision {
            Decision::Allow(permit) => permit.outcomes()[place].standing.verdict.is_allow(),
            Decision::Deny(_) | Decision::Unavailable(_) => false,
        };
        let reported = charge_reports(&snapshot, &plan, asked, is_charged);
        if reported && let Decision::Deny(denied) = &mut decision {
            // The wait is that after the charge.
            let (limiter, account) = (&snapshot.limiter, &context.account);
            let claims = account.claims.list(limiter.limits());
            let now = self.side.shared.clock.now();
            if let Err(after) = limiter.look(&claims, now, &account.deadline).await {
                *denied = after;
            }
        }
        let policy = &snapshot.policy;
        Ok(match decision {
            Decision::Allow(permit) => {
                let statuses = plan.statuses(policy, permit.outcomes());
                context.account.judged = Judged::Permitted(permit);
                context.count_near();
                context.account.keep_charges();
                give_back(&snapshot, &plan);
                let mut response = Response::new(ResponseBody::EMPTY);
                context.annotate(response.headers_mut(), false);
                context.answered(&response, None, Cause::Upstream, false);
                context.close(0, None);
                DescriptorsDecided {
                    refused: false,
                    statuses,
                    headers: std::mem::take(response.headers_mut()),
                    body: Bytes::new(),
                }
            }
            Decision::Deny(denied) => {
                let statuses = plan.statuses(policy, denied.outcomes());
                context.account.judged = Judged::Denied(denied);
                let rejection = context.denial();
                refuse(context, &rejection, request, statuses)
            }
            Decision::Unavailable(unavailable) => {
                let statuses = plan.statuses(policy, &[]);
                let rejection = Rejection::StoreDown(unavailable);
                refuse(context, &rejection, request, statuses)
            }
        })
    }
}

/// Whether limits would refuse `claims`; a refusal is counted as that of a draw.
async fn look_at(
    snapshot: &Snapshot,
    claims: &Claims,
    context: &RequestContext,
) -> Result<(), Denied> {
    let (now, deadline) = (context.account.at, &context.account.deadline);
    let limiter = &snapshot.limiter;
    let claims = claims.list(limiter.limits());
    let mut refused = limiter.look(&claims, now, deadline).await;
    if let Err(denied) = &mut refused {
        limiter.count_refusal(&claims, denied, now);
    }
    refused
}

/// Charges the reports of a request that the decision did not charge: Envoy sends one after the
/// response, and does not send it again. Returns whether there was one.
fn charge_reports(
    snapshot: &Snapshot,
    plan: &Plan<'_>,
    asked: &[DescriptorAsked<'_>],
    is_charged: impl Fn(usize) -> bool,
) -> bool {
    let mut places: SmallVec<[usize; 4]> = SmallVec::new();
    for (one, asked) in plan.descriptors.iter().zip(asked) {
        if let (Applies::Limits(_, charges), 2..) = (one, asked.hits) {
            places.extend(charges.iter().copied().filter(|place| !is_charged(*place)));
        }
    }
    places.sort_unstable();
    places.dedup();
    for place in &places {
        let charge = &plan.claims.charges()[*place];
        let limit = &snapshot.policy.limits[charge.limit];
        let key = plan.claims.key(charge);
        snapshot.limiter.charge(limit, key, charge.cost);
    }
    !places.is_empty()
}

fn give_back(snapshot: &Snapshot, plan: &Plan<'_>) {
    for one in &plan.descriptors {
        if let Applies::GivesBack(found, hits) = one {
            for (limit, key, units) in snapshot.policy.buckets(found, *hits) {
                snapshot.limiter.give_back(limit, &key, units);
            }
        }
    }
}

fn refuse<B>(
    mut context: Box<RequestContext>,
    rejection: &Rejection,
    request: &Request<B>,
    statuses: Vec<DescriptorStatus>,
) -> DescriptorsDecided {
    context.keep_refusal(rejection, request);
    let status = context.turned_away(rejection);
    let mut response = context.refusal(rejection, &RefusalForm::default(), true);
    context.annotate(response.headers_mut(), false);
    context.answered(&response, Some(status), rejection.cause(), false);
    let headers = std::mem::take(response.headers_mut());
    let body = match response.into_body() {
        ResponseBody::Bytes(bytes) => bytes,
        _ => Bytes::new(),
    };
    context.close(body.len() as u64, None);
    DescriptorsDecided {
        refused: true,
        statuses,
        headers,
        body,
    }
}
