//! Everything that decides about requests, in force together.

use std::sync::Arc;

use crate::proxy_defaults::ProxyDefaults;
use crate::quota_headers::QuotaFields;
use crate::rejection::{self, Denial, Rejection};
use tollgate_limiter::Limiter;
use tollgate_policy::route::Route;
use tollgate_policy::{IdentityRefusal, Policy, RefusalBody};
use tollgate_telemetry::access::Escaped;
use tollgate_telemetry::metrics::{Labels, Metrics};

/// A compiled policy with the buckets made for it. Swapped whole by a reload.
#[derive(Debug)]
pub struct Snapshot {
    /// Routes, identities, limits.
    pub policy: Arc<Policy>,
    /// The buckets, for this policy.
    pub limiter: Limiter,
    /// Where this policy's routes, limits and upstreams stand among the metrics.
    pub labels: Labels,
    /// How requests are treated, whatever their route.
    pub conduct: ProxyDefaults,
    /// Whether a limit follows its upstream's health: otherwise no answer is looked at for it.
    pub follows: bool,
    /// The quota fields, prepared per limit.
    pub quota: QuotaFields,
    /// Names as the access log writes them.
    pub names: Names,
    /// The refusals of each limit, prepared.
    pub(super) denials: Vec<Denial>,
}

/// Names as the access log writes them, by index.
#[derive(Debug)]
pub struct Names {
    pub(super) routes: Vec<Escaped>,
    pub(super) limits: Vec<Escaped>,
    pub(super) upstreams: Vec<Escaped>,
}

impl Snapshot {
    /// A snapshot of `policy` with `limiter`, which was made for it.
    pub fn new(
        policy: Arc<Policy>,
        limiter: Limiter,
        metrics: &Metrics,
        conduct: ProxyDefaults,
    ) -> Self {
        let routes: Vec<&str> = policy.routes.iter().map(|route| &*route.name).collect();
        let upstreams: Vec<&str> = policy
            .upstreams
            .iter()
            .map(|upstream| &*upstream.name)
            .collect();
        let labels = metrics.resolve(&routes, &upstreams);
        let quota = QuotaFields::new(&policy.responses, &policy.limits);
        let follows = policy
            .limits
            .iter()
            .any(|limit| limit.algorithm.follows().is_some());
        let names = Names {
            routes: policy
                .routes
                .iter()
                .map(|route| Escaped::from(&*route.name))
                .collect(),
            limits: policy
                .limits
                .iter()
                .map(|limit| Escaped::from(&*limit.name))
                .collect(),
            upstreams: policy
                .upstreams
                .iter()
                .map(|upstream| Escaped::from(&*upstream.name))
                .collect(),
        };
        let denials = policy
            .limits
            .iter()
            .map(|limit| Denial::by(&limit.name))
            .collect();
        Self {
            policy,
            limiter,
            labels,
            conduct,
            follows,
            quota,
            names,
            denials,
        }
    }

    /// The largest request body that `route` takes, bytes.
    pub(super) fn body_max(&self, route: &Route) -> Option<u64> {
        route.body_max.or(self.conduct.body_max)
    }

    /// The refusal body of the route, else of the file.
    pub(super) fn refusal_body(&self, route: Option<usize>) -> Option<&RefusalBody> {
        let own = route.and_then(|route| self.policy.routes[route].refusal.as_ref());
        own.or(self.policy.responses.body.as_ref())
    }

    /// An identity's refusal, with what would satisfy it.
    pub(super) fn unidentified(&self, refusal: IdentityRefusal) -> Rejection {
        let identity = self
            .policy
            .identities
            .iter()
            .find(|identity| identity.name == refusal.identity);
        let challenge = identity
            .filter(|_| !refusal.reason.is_malformed())
            .and_then(rejection::challenge);
        Rejection::Unidentified { refusal, challenge }
    }
}
