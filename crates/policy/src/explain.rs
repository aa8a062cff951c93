//! Explains the treatment of a request: why each route matched or not, where each key came from,
//! and the numbers of each limit.
//!
//! Not on the request path: it collects the details slowly, and uses the fast code for the results,
//! so that both agree.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use http::{HeaderName, Method};

use super::Policy;
use super::claims::admission::sent;
use super::claims::{Identified, SentBody, is_enforced};
use super::descriptor::Descriptor;
use super::identity::keys;
use super::identity::source::Source;
use super::identity::{How, IdentityReason, IdentityRefusal, WhenMissing};
use super::routes::pattern::takes_method;
use super::routes::pattern::{Pattern, Segment};
use super::routes::router::{Match, body_matches, header_matches};
use tollgate_limit::{KeyBytes, Mode};

#[derive(Clone, Debug, Default)]
pub struct Explanation {
    pub host: String,
    pub path: String,
    /// The client's address as buckets use it; `None` when there is none.
    pub client: Option<String>,
    /// Whether a forwarding header was trusted for it.
    pub forwarded: bool,
    /// Every route in the order of the file, and its result.
    pub routes: Vec<RouteFate>,
    /// The route taken, with what its `{name}` segments captured.
    pub taken: Option<(usize, Vec<(String, String)>)>,
    /// In egress mode, whether no route names the requested host.
    pub unlisted: bool,
    /// If no route takes the request: the methods with which one would.
    pub other_methods: Vec<Method>,
    pub identities: Vec<IdentityStory>,
    /// The refusal, when an identity refuses, or a limit refuses the model.
    pub refusal: Option<IdentityRefusal>,
    pub exempt: bool,
    pub tier: Option<Arc<str>>,
    /// The route's limits in its order, each followed by its candidate.
    pub limits: Vec<LimitStory>,
    /// The limits of each later target of the route (`over_limit`), in their order.
    pub over_limit: Vec<Vec<LimitStory>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteFate {
    Taken,
    /// It matches, but a more specific route matches too.
    LessSpecific,
    Host,
    Path,
    Method,
    Header(HeaderName),
    /// The body does not say this, or says something else.
    Body(String),
}

impl Display for RouteFate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            RouteFate::Taken => f.write_str("taken"),
            RouteFate::LessSpecific => f.write_str("matches, but is less specific"),
            RouteFate::Host => f.write_str("another host"),
            RouteFate::Path => f.write_str("another path"),
            RouteFate::Method => f.write_str("another method"),
            RouteFate::Body(source) => write!(f, "{source} is absent or has another value"),
            RouteFate::Header(name) => write!(f, "header {name} is absent or has another value"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct IdentityStory {
    pub identity: usize,
    /// The identities that were read, including those of `use:`, with the value of each source.
    pub steps: Vec<IdentityStep>,
    pub outcome: Result<How, IdentityReason>,
    pub caller: Option<Arc<str>>,
    /// The part of a bucket's key for this identity, in readable form.
    pub key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityStep {
    pub identity: usize,
    /// Each source as the file writes it, and its value: `None` when absent.
    pub sources: Vec<(String, Result<Option<String>, IdentityReason>)>,
}

#[derive(Clone, Debug)]
pub struct LimitStory {
    pub rule: usize,
    pub limit: usize,
    /// Whether this is the candidate judged beside the live limit.
    pub candidate: bool,
    pub cost: u64,
    pub enforced: bool,
    pub skipped: Option<SkipReason>,
    /// The bucket's key in readable form; empty when a key is missing.
    pub key: String,
    pub key_bytes: KeyBytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    Off,
    /// One of its identities is missing, and `when_missing = "skip"`.
    Identity,
    Exempt,
}

impl SkipReason {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Off => "its mode is off",
            Self::Identity => "an identity is missing, and says skip",
            Self::Exempt => "the caller's address is exempt",
        }
    }
}

impl Policy {
    /// Explains one request. `now`: seconds since the Unix epoch; `body`: the length of its body, if
    /// the request has none that was read.
    pub fn explain(&self, request: &Descriptor<'_>, now: u64, body: Option<u64>) -> Explanation {
        let body = sent(request, body);
        let matched = self.route(request);
        let fate =
            |(index, route): (usize, &super::routes::Route)| match fate(&route.pattern, request) {
                _ if matched
                    .as_ref()
                    .is_some_and(|matched| matched.route == index) =>
                {
                    RouteFate::Taken
                }
                None => RouteFate::LessSpecific,
                Some(fate) => fate,
            };
        let mut explanation = Explanation {
            host: request.host.to_string(),
            path: request.path.to_string(),
            client: request.client.map(|client| self.address.words(client)),
            forwarded: request.client != request.peer.address.map(super::identity::address::fold),
            routes: self.routes.iter().enumerate().map(fate).collect(),
            ..Explanation::default()
        };
        let Some(matched) = matched else {
            explanation.unlisted = self.is_unlisted(request);
            explanation.other_methods = self.other_methods(request);
            return explanation;
        };
        let captures = self.routes[matched.route]
            .pattern
            .captures()
            .map(str::to_owned);
        let captured = matched.captures.iter().map(|text| (*text).to_owned());
        explanation.taken = Some((matched.route, captures.zip(captured).collect()));
        let plan = &self.plans[matched.route];
        explanation.identities = plan
            .identities
            .iter()
            .map(|&index| self.identity_story(index, &matched, request, now))
            .collect();
        match self.identify(&matched, request, now) {
            Ok(who) => {
                explanation.exempt = who.exempt;
                explanation.tier = who.tier().cloned();
                let targets = 0..=self.routes[matched.route].over_limit.len();
                let mut stories: Vec<_> = targets
                    .map(|target| self.limit_stories(target, &matched, &who, request, body))
                    .collect();
                explanation.limits = stories.remove(0);
                explanation.over_limit = stories;
                let mut claims = self.claims(&matched, &who, request.headers, body);
                explanation.refusal = self.unpriced(&mut claims);
            }
            Err(refusal) => explanation.refusal = Some(refusal),
        }
        explanation
    }

    fn identity_story(
        &self,
        asked: usize,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        now: u64,
    ) -> IdentityStory {
        let evidence = self.evidence(matched, request, now);
        let mut steps = Vec::new();
        let mut at = asked;
        loop {
            let identity = &self.identities[at];
            let sources = evidence.sources(at);
            let mut absent = sources.iter().map(|(_, value)| matches!(value, Ok(None)));
            let missing = if identity.first_of {
                absent.all(|absent| absent)
            } else {
                absent.any(|absent| absent)
            };
            let failed = sources.iter().any(|(_, value)| value.is_err());
            steps.push(IdentityStep {
                identity: at,
                sources,
            });
            match identity.when_missing {
                WhenMissing::Use(other) if missing && !failed => at = other,
                _ => break,
            }
        }
        let (outcome, caller, key) = match evidence.resolve(asked) {
            Ok(resolved) => {
                let caller = resolved.caller.map(|caller| Arc::clone(&caller.name));
                let key = match resolved.how {
                    How::Skipped => String::new(),
                    _ => keys::words(&resolved.key, false),
                };
                (Ok(resolved.how), caller, key)
            }
            Err(refusal) => (Err(refusal.reason), None, String::new()),
        };
        IdentityStory {
            identity: asked,
            steps,
            outcome,
            caller,
            key,
        }
    }

    fn limit_stories(
        &self,
        target: usize,
        matched: &Match<'_>,
        who: &Identified,
        request: &Descriptor<'_>,
        body: SentBody<'_>,
    ) -> Vec<LimitStory> {
        let mut stories = Vec::new();
        for of_route in self.routes[matched.route].limits_of(target) {
            let rule = &self.rules[of_route.rule];
            let key = self.plans[matched.route].key_of(of_route.rule, who);
            let candidate = rule.candidate.as_ref().map(|limit| (limit, true));
            let live = rule.variant(who.numbers());
            for (limit, candidate) in [(live, false)].into_iter().chain(candidate) {
                let skipped = if who.exempt {
                    Some(SkipReason::Exempt)
                } else if live.mode == Mode::Off || limit.mode == Mode::Off {
                    Some(SkipReason::Off)
                } else {
                    key.is_none().then_some(SkipReason::Identity)
                };
                stories.push(LimitStory {
                    rule: of_route.rule,
                    limit: limit.index,
                    candidate,
                    cost: rule.price(
                        limit,
                        of_route.cost.as_ref(),
                        request.headers,
                        body,
                        rule.model_price(&self.routes[matched.route], target, matched, body),
                    ),
                    enforced: skipped.is_none()
                        && !candidate
                        && key.is_some_and(|key| is_enforced(limit, key)),
                    skipped,
                    key: key.map(|key| keys::words(key, false)).unwrap_or_default(),
                    key_bytes: key.cloned().unwrap_or_default(),
                });
            }
        }
        stories
    }
}

impl How {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Known => "a known caller",
            Self::Key => "by its key",
            Self::MissingAddress => "the key is missing: by its address",
            Self::UnknownAddress => "the key is not known: by its address",
            Self::Skipped => "the key is missing: not limited by this identity",
        }
    }
}

/// The first condition of a pattern that a request does not meet, in the order of specificity.
fn fate(pattern: &Pattern, request: &Descriptor<'_>) -> Option<RouteFate> {
    if !pattern.host.matches(&request.host) {
        return Some(RouteFate::Host);
    }
    if !path_meets(&pattern.path, &request.path) {
        return Some(RouteFate::Path);
    }
    if !takes_method(&pattern.methods, request.method) {
        return Some(RouteFate::Method);
    }
    let unmet = pattern
        .headers
        .iter()
        .find(|(name, value)| !header_matches(request.headers, name, value.as_ref()));
    if let Some((name, _)) = unmet {
        return Some(RouteFate::Header(name.clone()));
    }
    let holds = |(source, wanted): &&(Source, Option<String>)| {
        request
            .body
            .get()
            .is_some_and(|body| body_matches(body, source, wanted.as_deref()))
    };
    let unmet = pattern.body.iter().find(|condition| !holds(condition));
    unmet.map(|(source, _)| RouteFate::Body(source.words()))
}

fn path_meets(pattern: &[Segment], path: &str) -> bool {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    for wanted in pattern {
        let meets = match wanted {
            Segment::Rest => return true,
            Segment::Literal(text) => segments.next() == Some(text),
            Segment::Capture(_) => segments.next().is_some(),
        };
        if !meets {
            return false;
        }
    }
    segments.next().is_none()
}
