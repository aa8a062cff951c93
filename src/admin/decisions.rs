//! `/api/v1/decisions/{id}`: why a request was refused, and what it would meet now.

use serde::{Deserialize, Serialize};

use super::live::{Key, Level, Live, Now};
use super::overrides::Overridden;
use crate::moments::moment;
use tollgate_gateway::refusals::{PATH_MAX, Refusal};
use tollgate_limit::{Micros, Role};
use tollgate_limiter::BlockCause;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Decision {
    pub format: u32,
    /// The decision's id, as the response's body and the access log have it.
    pub id: String,
    /// When the request's head had arrived.
    pub at: String,
    pub status: u16,
    /// The word of the refusal in the access log.
    pub reason: String,
    /// How long a retry had to wait, milliseconds rounded up; `null`: no wait is known to help.
    pub retry_after_ms: Option<u64>,
    /// The time from which a retry was admitted, without other draws from the same buckets.
    pub until: Option<String>,
    pub request: Request,
    pub route: Option<String>,
    /// The upstream whose limits refused it; `null`: the route has one upstream only.
    pub upstream: Option<String>,
    pub caller: Option<String>,
    pub tier: Option<String>,
    /// The limits that were asked, in the order of the route, each before its candidate.
    pub limits: Vec<Judged>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub method: String,
    pub host: String,
    /// Its path, without the query.
    pub path: String,
    /// Whether the path goes on: only its beginning is kept.
    pub path_is_cut: bool,
    pub client: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    pub limit: String,
    pub tier: Option<String>,
    pub candidate: bool,
    pub words: String,
    #[serde(flatten)]
    pub key: Key,
    pub cost: u64,
    /// The currency in millionths of which the limit counts; `null`: it counts units.
    pub currency: Option<String>,
    /// Whether a refusal of this bucket refuses the request.
    pub enforced: bool,
    /// `deny`, `allow`, `shadow_deny`, or `unasked`: as in the access log.
    pub outcome: String,
    /// How the bucket stood then; `null`: it was not asked, or a block or a penalty refused its key.
    pub then: Option<Level>,
    /// The block or the penalty that refused its key then; `null`: none did.
    pub blocked: Option<Blocked>,
    /// How it stands now, for a request of the same cost; under the numbers of an override that has some.
    pub now: Now,
    #[serde(rename = "override")]
    pub overridden: Option<Overridden>,
}

/// What refuses a key without regard to its bucket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Blocked {
    /// `override`: an operator's; `penalty`: that of the limit.
    pub by: String,
    pub until: String,
    /// When a request like this one is admitted: its end, or later where the bucket needs longer.
    pub admits_at: String,
}

impl Live {
    /// Explains the refusal with this id; `None`: it is not kept (any more).
    pub(super) async fn decision(&self, id: &str) -> Option<Decision> {
        let refusal = self.refusals.as_ref()?.find(id)?;
        let policy = &refusal.policy;
        let mut limits = Vec::new();
        for one in &refusal.limits {
            let (limit, key) = (&policy.limits[one.limit], &one.key);
            let (now, overridden) = self.stands(limit, key, one.cost).await;
            limits.push(Judged {
                limit: limit.name.to_string(),
                tier: limit.tier.as_deref().map(str::to_owned),
                candidate: limit.role == Role::Candidate,
                words: limit.words(),
                key: self.key(key),
                cost: one.cost,
                currency: limit.currency.as_deref().map(str::to_owned),
                enforced: one.enforced,
                outcome: one.outcome.to_owned(),
                then: one.standing.map(|standing| {
                    Level::new(limit, limit.algorithm.capacity(), &standing, refusal.at)
                }),
                blocked: one.block.map(|block| Blocked {
                    by: match block.cause {
                        BlockCause::Penalty => "penalty".to_owned(),
                        BlockCause::Operator => "override".to_owned(),
                    },
                    until: moment(block.until),
                    admits_at: moment(block.admits),
                }),
                now,
                overridden,
            });
        }
        Some(decision(id, &refusal, limits))
    }
}

fn decision(id: &str, refusal: &Refusal, limits: Vec<Judged>) -> Decision {
    let wait = refusal.retry_after;
    Decision {
        format: FORMAT,
        id: id.to_owned(),
        at: moment(refusal.at),
        status: refusal.status.as_u16(),
        reason: refusal.reason.to_owned(),
        retry_after_ms: wait.map(Micros::ceil_millis),
        until: wait.map(|wait| moment(refusal.at.after(wait))),
        request: Request {
            method: refusal.method.clone(),
            host: refusal.host.clone(),
            path: refusal.path.clone(),
            path_is_cut: refusal.path.len() >= PATH_MAX,
            client: refusal.client.map(|client| client.to_string()),
        },
        route: refusal
            .route
            .map(|route| refusal.policy.routes[route].name.to_string()),
        upstream: refusal.upstream().map(ToString::to_string),
        caller: refusal.caller.clone(),
        tier: refusal.tier.clone(),
        limits,
    }
}

const FORMAT: u32 = 1;
