//! Policies built by hand, and requests to them.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::identity::address::AddressPolicy;
use crate::identity::callers::{Caller, Callers, parse_digest};
use crate::identity::source::Source;
use crate::identity::{Identity, WhenMissing, WhenUnknown};
use crate::routes::pattern::Pattern;
use crate::routes::{HeaderEdits, Route, RouteLimit, Target};
use crate::{
    Cost, Count, Descriptor, Peer, Policy, PolicyParts, Reset, Responses, Rule, Scope, ScopePart,
    identity::keys,
};
use tollgate_limit::{Limit, Mode, fixtures};

/// SHA-256 of `test`.
const TEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
pub(crate) const NOW: u64 = 1_700_000_000;

pub(crate) fn limit(name: &str, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit {
        mode,
        ..fixtures::per_minute(name, 10, 10)
    })
}

pub(crate) fn rule(name: &str, scope: Scope) -> Rule {
    Rule {
        name: name.into(),
        live: limit(name, Mode::Enforce),
        tiers: Vec::new(),
        candidate: None,
        scope,
        cost: Cost::Fixed(1),
        settle: None,
        prices: None,
        count: Count::All,
        refund_on: Vec::new(),
        ceiling: false,
        refuse_status: http::StatusCode::TOO_MANY_REQUESTS,
        max_wait: tollgate_limit::Micros::ZERO,
    }
}

pub(crate) fn by(identity: usize) -> Scope {
    Scope::Identities(vec![ScopePart::Identity(identity)])
}

pub(crate) fn by_address() -> Scope {
    Scope::Identities(vec![ScopePart::Address])
}

pub(crate) fn identity(name: &str, sources: &[&str], when_missing: WhenMissing) -> Identity {
    Identity {
        name: name.into(),
        sources: sources
            .iter()
            .map(|text| Source::parse(text).expect("a source"))
            .collect(),
        when_missing,
        when_unknown: WhenUnknown::Accept,
        first_of: false,
        address_tier: None,
        callers: None,
        jwt: None,
    }
}

pub(crate) fn with_callers(mut identity: Identity, when_unknown: WhenUnknown) -> Identity {
    identity.when_unknown = when_unknown;
    identity.callers = Some(arc_swap::ArcSwap::from_pointee(acme()));
    identity
}

fn acme() -> Callers {
    let acme = Caller::new("acme", Some("pro".into()), false);
    Callers::new([(parse_digest(TEST).expect("a digest"), acme)]).expect("one caller")
}

pub(crate) fn route(pattern: &str, limits: &[usize]) -> Route {
    Route {
        name: pattern.into(),
        pattern: Pattern::parse(pattern).expect("a pattern"),
        target: Target::Echo,
        limits: limits
            .iter()
            .map(|&rule| RouteLimit { rule, cost: None })
            .collect(),
        over_limit: Vec::new(),
        strip_prefix: None,
        add_prefix: None,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        refusal: None,
        body_max: None,
    }
}

pub(crate) fn parts(
    identities: Vec<Identity>,
    rules: Vec<Rule>,
    routes: Vec<Route>,
) -> PolicyParts {
    let nets = |text: &str| text.parse::<ipnet::IpNet>().into_iter().collect();
    PolicyParts {
        address: AddressPolicy {
            trusted_proxies: nets("10.0.0.0/8"),
            exempt: nets("203.0.113.0/24"),
            ipv6_prefix: 64,
            ..AddressPolicy::default()
        },
        identities,
        rules,
        upstreams: Vec::new(),
        routes,
        domains: crate::Domains::default(),
        responses: Responses {
            headers: Vec::new(),
            reset: Reset::Seconds,
            refusal: None,
        },
        egress: false,
        keeps_slashes: false,
        body: crate::BodySettings::default(),
    }
}

pub(crate) fn policy(identities: Vec<Identity>, rules: Vec<Rule>, routes: Vec<Route>) -> Policy {
    Policy::build(parts(identities, rules, routes)).expect("a policy")
}

pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) peer: Peer,
}

/// A request from 192.0.2.1: `GET /x` and headers.
pub(crate) fn send(line: &str, headers: &[(&'static str, &str)]) -> Sent {
    let (method, uri) = line.split_once(' ').expect("METHOD URI");
    let headers = headers.iter().map(|(name, value)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(value).expect("a value"),
        )
    });
    Sent {
        method: method.parse().expect("a method"),
        uri: uri.parse().expect("a URI"),
        headers: headers.collect(),
        peer: Peer {
            address: "192.0.2.1".parse().ok(),
            port: 1,
            tls: false,
            unnamed: false,
        },
    }
}

impl Sent {
    pub(crate) fn from(mut self, address: &str) -> Self {
        self.peer.address = address.parse().ok();
        self
    }

    pub(crate) fn describe<'r>(&'r self, policy: &Policy) -> Descriptor<'r> {
        policy
            .describe(
                None,
                &self.method,
                &self.uri,
                &self.headers,
                self.peer,
                None,
            )
            .expect("well formed")
    }

    /// What it is charged on, as `limit key cost`, shadowed ones in brackets; or why it is refused.
    pub(crate) fn claims(&self, policy: &Policy) -> Vec<String> {
        let request = self.describe(policy);
        let Some(matched) = policy.route(&request) else {
            return vec!["no route".into()];
        };
        let who = match policy.identify(&matched, &request, NOW) {
            Ok(who) => who,
            Err(refusal) => return vec![refusal.to_string()],
        };
        let claims = policy.claims(&matched, &who, &self.headers, Some(0));
        let words = claims.list(&policy.limits).into_iter().map(|claim| {
            let words = format!(
                "{} {} {}",
                claim.limit.name,
                keys::words(claim.key, false),
                claim.cost
            );
            if claim.enforced {
                words
            } else {
                format!("[{words}]")
            }
        });
        words.collect()
    }
}
