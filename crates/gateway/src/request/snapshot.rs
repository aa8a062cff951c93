//! A snapshot: the policy, the limiter and everything prepared for them, which are in force together.

use std::sync::Arc;

use super::plain_http::PlainHttp;
use crate::proxy_defaults::ProxyDefaults;
use crate::rejection::Rejection;
use http::StatusCode;
use tollgate_limit::{Limit, Micros, Mode, Role};
use tollgate_limiter::Limiter;
use tollgate_policy::identity::address::NetSet;
use tollgate_policy::routes::Route;
use tollgate_policy::{IdentityRefusal, Policy, RefusalBody};
use tollgate_response::quota_headers::QuotaFields;
use tollgate_response::{Denial, challenge};
use tollgate_telemetry::metrics::{Labels, Metrics};

/// The settings of the listeners for decisions. A reload replaces them.
#[derive(Clone, Debug, Default)]
pub struct DecideSettings {
    pub trusted: NetSet,
    /// The status that replaces that of a refusal, where the peer's protocol needs it.
    pub refuse_status: Option<StatusCode>,
    pub permits: usize,
    pub permit_expiry: Micros,
}

/// A compiled policy with the buckets made for it. A reload replaces the whole snapshot.
#[derive(Debug)]
pub struct Snapshot {
    pub policy: Arc<Policy>,
    pub limiter: Limiter,
    /// The indices of this policy's routes, limits and upstreams in the metrics.
    pub labels: Labels,
    pub defaults: ProxyDefaults,
    /// Whether any limit follows its upstream's health. If none does, no response is examined for it.
    pub follows: bool,
    pub quota: QuotaFields,
    pub deciding: DecideSettings,
    /// `None`: requests without TLS are like all others.
    pub plain: Option<PlainHttp>,
    pub(super) denials: Vec<Denial>,
}

/// The units at which a key has used four fifths of what the limit grants at once; `None` for
/// limits that refuse nothing.
pub fn near(limit: &Limit) -> Option<u64> {
    let refuses = limit.mode == Mode::Enforce && limit.role == Role::Live;
    refuses.then(|| limit.algorithm.capacity() / 5)
}

impl Snapshot {
    pub fn new(
        policy: Arc<Policy>,
        limiter: Limiter,
        metrics: &Metrics,
        defaults: ProxyDefaults,
    ) -> Self {
        let routes: Vec<&str> = policy.routes.iter().map(|one| &*one.name).collect();
        let upstreams: Vec<&str> = policy.upstreams.iter().map(|one| &*one.name).collect();
        let labels = metrics.resolve(&routes, &upstreams);
        let quota = QuotaFields::new(&policy.responses, &policy.limits, &policy.rules);
        let follows = policy
            .limits
            .iter()
            .any(|limit| limit.algorithm.follows().is_some());
        // The limits are numbered rule by rule (`Policy::build`).
        let denials = policy
            .rules
            .iter()
            .flat_map(|rule| rule.variants().map(|limit| (limit, rule.is_budget())))
            .map(|(limit, budget)| Denial::by(&limit.name, budget))
            .collect();
        Self {
            policy,
            limiter,
            labels,
            defaults,
            follows,
            quota,
            deciding: DecideSettings::default(),
            plain: None,
            denials,
        }
    }

    pub fn deciding(self, deciding: DecideSettings) -> Self {
        Self { deciding, ..self }
    }

    pub fn plain(self, plain: Option<PlainHttp>) -> Self {
        Self { plain, ..self }
    }

    pub(super) fn body_max(&self, route: &Route) -> Option<u64> {
        route.body_max.or(self.defaults.body_max)
    }

    pub(super) fn refusal_body(&self, route: Option<usize>) -> Option<&RefusalBody> {
        let own = route.and_then(|route| self.policy.routes[route].refusal.as_ref());
        own.or(self.policy.responses.refusal.as_ref())
    }

    /// The rejection for a refused identity, with the challenge that would satisfy it.
    pub(crate) fn unidentified(&self, refusal: IdentityRefusal) -> Rejection {
        let challenge = challenge(&self.policy, &refusal);
        Rejection::Unidentified { refusal, challenge }
    }
}
