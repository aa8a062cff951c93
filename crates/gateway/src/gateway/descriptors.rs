//! Decides about the descriptors of a rate limit service: as about a request of a route, but the
//! buckets are those of the rules that the descriptors match, and nothing is forwarded.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use smallvec::SmallVec;

use super::judge::denial;
use super::request_context::RequestContext;
use super::{Gateway, Snapshot};
use crate::body::ResponseBody;
use crate::headers::RequestHeaders;
use crate::rejection::Rejection;
use tollgate_limit::{Limit, Micros, Mode, Placement, Rate, Standing, UNITS_MAX, Verdict};
use tollgate_limiter::{Cause, Decision};
use tollgate_policy::TooManyBuckets;
use tollgate_policy::domains::{Entry, Found};
use tollgate_policy::{Claims, Policy};
use tollgate_response::{Asked, Refused};

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct DescriptorAsked<'a> {
    /// Its entries.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// How many hits the request adds; 0 only looks.
    pub hits: u64,
    /// The rate to take instead of the rule's own, if the file lists it.
    pub numbers: Option<Rate>,
    /// Whether the hits are given back instead. The peer must be trusted.
    pub gives_back: bool,
}

/// The decision about a request of a rate limit service.
#[derive(Clone, Debug)]
pub struct DescriptorsDecided {
    /// Whether it is refused; then nothing was charged.
    pub refused: bool,
    /// One for each descriptor, in order.
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the client: those that a route would send.
    pub headers: HeaderMap,
    /// The body of a refusal.
    pub body: Bytes,
}

/// How one descriptor stands.
#[derive(Clone, Debug, Default)]
pub struct DescriptorStatus {
    /// Whether a limit of it refuses.
    pub over_limit: bool,
    /// The limit that is the nearest to its end; `None`: no limit was asked.
    pub limit: Option<StatusOfLimit>,
    /// Whether its rule admits everything.
    pub unlimited: bool,
}

/// How a limit of a descriptor stands.
#[derive(Clone, Debug)]
pub struct StatusOfLimit {
    /// The name of the rule, or of the limit.
    pub name: Arc<str>,
    /// The units of its rate.
    pub amount: u64,
    /// The period of its rate.
    pub period: Micros,
    /// Whole units left.
    pub remaining: u64,
    /// After a refusal the wait after which the same request is admitted, if there is one;
    /// otherwise the time until the bucket is full, or its window ends.
    pub reset: Option<Micros>,
}

/// What applies to one descriptor.
enum Applies<'p> {
    /// Nothing: it matches no rule, or a rule that another one replaces.
    Nothing,
    /// A rule without limits.
    Unlimited,
    /// A rule that refuses everything.
    Refuses(&'p Arc<str>, bool),
    /// Limits: the positions of their charges.
    Limits(Found<'p>, SmallVec<[usize; 2]>),
    /// Units are given back.
    GivesBack(Found<'p>, u64),
}

/// What a request draws from.
struct Plan<'p> {
    descriptors: Vec<Applies<'p>>,
    claims: Claims,
    /// How many descriptors with limits refuse only together.
    quotas: usize,
    client: Option<IpAddr>,
}

impl<'p> Plan<'p> {
    /// `strict`: a quota refuses by itself.
    fn of(
        policy: &'p Policy,
        domain: &str,
        asked: &[DescriptorAsked<'_>],
        strict: bool,
    ) -> Result<Self, TooManyBuckets> {
        let found: SmallVec<[Option<Found<'p>>; 4]> = asked
            .iter()
            .map(|one| policy.domains.find(domain, &one.entries))
            .collect();
        let replaced = |name: &Arc<str>| {
            let rules = found.iter().flatten().map(|found| found.rule);
            rules.into_iter().any(|rule| rule.replaces.contains(name))
        };
        let replaced: SmallVec<[bool; 4]> = found
            .iter()
            .map(|found| {
                let name = found.as_ref().and_then(|found| found.rule.name.as_ref());
                name.is_some_and(replaced)
            })
            .collect();
        let counts = |(found, replaced): (&Option<Found<'_>>, &bool)| {
            let rule = found.as_ref().map(|found| found.rule);
            rule.is_some_and(|rule| rule.quota && !rule.limits.is_empty() && !replaced)
        };
        let quotas = found
            .iter()
            .zip(&replaced)
            .filter(|one| counts(*one))
            .count();
        let mut plan = Self {
            descriptors: Vec::with_capacity(asked.len()),
            claims: Claims::default(),
            quotas,
            client: found.iter().flatten().find_map(Found::client),
        };
        for ((one, found), replaced) in asked.iter().zip(found).zip(replaced) {
            let applies = match found.filter(|_| !replaced) {
                None => Applies::Nothing,
                Some(found) if found.rule.refuses => {
                    Applies::Refuses(found.rule.called(), found.rule.quota)
                }
                Some(found) if found.rule.limits.is_empty() => Applies::Unlimited,
                Some(found) if one.gives_back => Applies::GivesBack(found, one.hits),
                Some(found) => {
                    let enforced = !found.rule.quota || quotas < 2 || strict;
                    let hits = one.hits.min(UNITS_MAX);
                    let places =
                        policy.charge(&mut plan.claims, &found, hits, one.numbers, enforced)?;
                    Applies::Limits(found, places)
                }
            };
            plan.descriptors.push(applies);
        }
        Ok(plan)
    }

    /// The name of a rule of zero that refuses the request: one does, and all that refuse only
    /// together do if there is no other quota.
    fn refused_by(&self) -> Option<&'p Arc<str>> {
        self.descriptors.iter().find_map(|one| match one {
            Applies::Refuses(name, quota) if !quota || self.quotas == 0 => Some(*name),
            _ => None,
        })
    }

    /// Whether there are several quotas and all of them are used up.
    fn quotas_are_used_up(&self, standings: &[Standing]) -> bool {
        let used_up = |places: &SmallVec<[usize; 2]>| {
            let standings = places.iter().filter_map(|place| standings.get(*place));
            standings
                .into_iter()
                .any(|standing| !standing.verdict.is_allow())
        };
        let mut quotas = self.descriptors.iter().filter_map(|one| match one {
            Applies::Limits(found, places) if found.rule.quota => Some(places),
            _ => None,
        });
        self.quotas > 1 && quotas.all(used_up)
    }

    /// How each descriptor stands. `standings` of the claims are empty if nothing was drawn.
    fn statuses(
        &self,
        policy: &Policy,
        standings: &[Standing],
        is_unasked: impl Fn(usize) -> bool,
    ) -> Vec<DescriptorStatus> {
        let status = |one: &Applies<'_>| match one {
            Applies::Nothing | Applies::GivesBack(..) => DescriptorStatus::default(),
            Applies::Unlimited => DescriptorStatus {
                unlimited: true,
                ..DescriptorStatus::default()
            },
            Applies::Refuses(..) => DescriptorStatus {
                over_limit: true,
                ..DescriptorStatus::default()
            },
            Applies::Limits(found, places) => {
                let known = places.iter().filter(|place| !is_unasked(**place));
                let known = known.filter_map(|place| {
                    let charge = &self.claims.charges()[*place];
                    let limit = &*policy.limits[charge.limit];
                    let standing = standings.get(*place)?;
                    let quota = found.rule.quota && self.quotas > 1;
                    let enforced = charge.enforced || (quota && limit.mode == Mode::Enforce);
                    let refuses = enforced && !standing.verdict.is_allow();
                    Some((refuses, standing, limit))
                });
                // The one that refuses for the longest time, or leaves the least.
                let nearest = known.max_by_key(|(refuses, standing, _)| {
                    let least = std::cmp::Reverse(standing.remaining);
                    (*refuses, refuses.then_some(wait(standing)), least)
                });
                let over_limit = nearest.is_some_and(|(refuses, ..)| refuses);
                DescriptorStatus {
                    over_limit,
                    limit: nearest.and_then(|(refuses, standing, limit)| {
                        StatusOfLimit::of(found.rule.name.as_ref(), refuses, standing, limit)
                    }),
                    unlimited: places.is_empty(),
                }
            }
        };
        self.descriptors.iter().map(status).collect()
    }
}

/// How long a refused request has to wait; the longest where no wait helps.
fn wait(standing: &Standing) -> Micros {
    match standing.verdict {
        Verdict::Allow { .. } => Micros::ZERO,
        Verdict::Deny { retry_after } => retry_after.unwrap_or(Micros(u64::MAX)),
    }
}

impl StatusOfLimit {
    fn of(
        name: Option<&Arc<str>>,
        refuses: bool,
        standing: &Standing,
        limit: &Limit,
    ) -> Option<Self> {
        let quota = limit.algorithm.quota()?;
        let reset = match standing.verdict {
            Verdict::Deny { retry_after } if refuses => retry_after,
            _ => Some(standing.reset),
        };
        Some(Self {
            name: Arc::clone(name.unwrap_or(&limit.name)),
            amount: quota.amount,
            period: quota.period,
            remaining: standing.remaining,
            reset,
        })
    }
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
        let mut plan = Plan::of(&snapshot.policy, domain, asked, false)?;
        let mut headers = RequestHeaders::of(request.headers());
        let mut context =
            RequestContext::open(&self.side, &snapshot, request, &mut headers, plan.client);
        context.claims_mut().clone_from(&plan.claims);
        if let Some(name) = plan.refused_by() {
            let refused = Refused {
                violated: std::iter::once(Arc::clone(name)).collect(),
                retry_after: None,
                never_fits: true,
                ..Refused::default()
            };
            let statuses = plan.statuses(&snapshot.policy, &[], |_| true);
            let rejection = Rejection::Denied(refused);
            return Ok(refuse(context, &rejection, request, statuses));
        }
        let decision = match self.draw_descriptors(&snapshot, &mut context).await {
            Decision::Allow(permit) if plan.quotas_are_used_up(permit.standings()) => {
                // The same claims, of which the quotas refuse.
                plan = Plan::of(&snapshot.policy, domain, asked, true)?;
                context.claims_mut().clone_from(&plan.claims);
                let claims = plan.claims.list(&snapshot.policy);
                Decision::Deny(snapshot.limiter.refuse(permit, &claims))
            }
            other => other,
        };
        let policy = &snapshot.policy;
        Ok(match decision {
            Decision::Allow(permit) => {
                let is_unasked = |place| permit.is_unasked(place);
                let statuses = plan.statuses(policy, permit.standings(), is_unasked);
                context.permitted(permit);
                context.keep_charges();
                give_back(&snapshot, &plan);
                let mut response = Response::new(ResponseBody::Empty);
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
                let is_unasked = |place| denied.is_unasked(place);
                let statuses = plan.statuses(policy, denied.standings(), is_unasked);
                let rejection = denial(&mut context, denied);
                refuse(context, &rejection, request, statuses)
            }
            Decision::Unavailable(unavailable) => {
                let statuses = plan.statuses(policy, &[], |_| true);
                let rejection = Rejection::StoreDown {
                    limit: unavailable.limit,
                };
                refuse(context, &rejection, request, statuses)
            }
        })
    }

    async fn draw_descriptors(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
    ) -> Decision {
        let now = context.at();
        let claims = context.claims().list(&snapshot.policy);
        let decision = snapshot.limiter.check(&claims, now).await;
        let shared = |claim: &tollgate_limit::Claim<'_>| claim.limit.placement == Placement::Shared;
        let shared = claims.iter().any(shared);
        drop(claims);
        if shared {
            context.store_took(self.side.clock.now().since(now));
        }
        decision
    }
}

/// Gives back the hits that a trusted peer takes back.
fn give_back(snapshot: &Snapshot, plan: &Plan<'_>) {
    for one in &plan.descriptors {
        if let Applies::GivesBack(found, hits) = one {
            for (limit, key, units) in snapshot.policy.buckets(found, *hits) {
                snapshot.limiter.give_back(limit, &key, units);
            }
        }
    }
}

/// Completes and records a refusal.
fn refuse<B>(
    mut context: Box<RequestContext>,
    rejection: &Rejection,
    request: &Request<B>,
    statuses: Vec<DescriptorStatus>,
) -> DescriptorsDecided {
    context.keep_refusal(rejection, request);
    let status = context.turned_away(rejection);
    let mut response = context.refusal(rejection, &Asked::default(), true);
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
