//! What applies to a request. A [`Policy`] is an immutable compiled snapshot; requests hold one from start to end.

pub mod address;
mod build;
pub mod callers;
pub mod claims;
pub mod descriptor;
pub mod expiry;
pub mod explain;
mod forwarded;
pub mod identity;
pub mod jwt;
mod jwt_keys;
pub mod keys;
mod netset;
pub mod path;
pub mod pattern;
mod plan;
pub mod route;
pub mod router;
pub mod source;
pub mod template;
pub mod upstream;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::limit::{Limit, Micros};
use address::AddressPolicy;
use identity::{Evidence, Identity, WhenMissing};
use plan::Plan;
use route::{HeaderEdits, Placeholder, Route, Router, Template};
use upstream::Upstream;

pub use build::{BuildError, PolicyParts};
pub use claims::{Charge, Claims, Identified};
pub use descriptor::Descriptor;
pub use explain::Explanation;
pub use identity::{IdentityReason, IdentityRefusal};
pub use path::Malformed;
pub use router::Match;

/// Everything that decides about requests, compiled from the file.
#[derive(Debug)]
pub struct Policy {
    /// How a caller's address is known, and who is exempt.
    pub address: AddressPolicy,
    /// Identities by index ([`Scope::Identities`] refers to them).
    pub identities: Vec<Identity>,
    /// Every variant of every limit; `limits[i].index == i`.
    pub limits: Vec<Arc<Limit>>,
    /// Limits as the file names them.
    pub rules: Vec<Rule>,
    /// Upstreams by index.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Routes, in the order of the file.
    pub routes: Vec<Route>,
    /// How refusals and quota fields are written.
    pub responses: Responses,
    /// Whether the gateway stands in front of services one depends on: it forwards only to hosts that routes name.
    pub egress: bool,
    /// Whether an encoded slash is a character of its segment; otherwise it is refused.
    pub keeps_slashes: bool,
    router: Router,
    plans: Vec<Plan>,
}

impl Policy {
    /// The facts of a request: its path normalised, its caller's address found.
    ///
    /// # Errors
    /// [`Malformed`] when the request cannot be matched safely: 400.
    pub fn describe<'r>(
        &self,
        method: &'r Method,
        uri: &'r Uri,
        headers: &'r HeaderMap,
        peer: Peer,
        client_certificate: Option<&'r str>,
    ) -> Result<Descriptor<'r>, Malformed> {
        Descriptor::new(&self.address, self.keeps_slashes, method, uri, headers, peer, client_certificate)
    }

    /// As [`Policy::describe`], for whoever has looked at the host: `host` is in lower case, without port or trailing dot.
    ///
    /// # Errors
    /// As [`Policy::describe`].
    pub fn describe_for<'r>(
        &self,
        host: Cow<'r, str>,
        method: &'r Method,
        uri: &'r Uri,
        headers: &'r HeaderMap,
        peer: Peer,
        client_certificate: Option<&'r str>,
    ) -> Result<Descriptor<'r>, Malformed> {
        Descriptor::of_host(&self.address, self.keeps_slashes, host, method, uri, headers, peer, client_certificate)
    }

    /// The most specific route for a request; `None`: 404.
    ///
    /// A CORS preflight asks about another request, so it takes that one's route, unless a route lists `OPTIONS`.
    pub fn route<'d>(&self, request: &'d Descriptor<'_>) -> Option<Match<'d>> {
        let find = |method| self.router.find(method, &request.host, &request.path, request.headers);
        let Some(asked) = self.preflight(request) else { return find(request.method) };
        let own = find(request.method);
        match own {
            Some(own) if self.routes[own.route].pattern.methods.contains(request.method) => Some(own),
            own => find(&asked).or(own),
        }
    }

    /// Whether a request that no route takes asks for a host that none names, where only such hosts are forwarded to.
    pub fn is_unlisted(&self, request: &Descriptor<'_>) -> bool {
        self.egress && !self.routes.iter().any(|route| route.pattern.host.matches(&request.host))
    }

    /// The method a CORS preflight asks about; `None` for any other request, and for one that says who asks: a browser
    /// sends no key with its question.
    pub fn preflight(&self, request: &Descriptor<'_>) -> Option<Method> {
        let asked = request.preflight()?;
        let keyed = self.key_headers().any(|name| request.headers.contains_key(name));
        if keyed { None } else { Some(asked) }
    }

    /// The header fields that identities are read from by name.
    fn key_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.identities.iter().flat_map(|identity| &identity.sources).filter_map(|source| match source {
            source::Source::Header(name) => Some(name),
            _ => None,
        })
    }

    /// Removes fields that some upstreams cannot tell from a key: CGI and its heirs read `x_api_key` as `x-api-key`, so
    /// a caller could be limited by one key and served by another.
    pub fn drop_lookalikes(&self, headers: &mut HeaderMap) {
        drop_lookalikes(headers, |real| self.key_headers().any(|name| name.as_str() == real));
    }

    /// Who is asking, as far as the limits and templates of the route want to know. `now`: seconds since the Unix
    /// epoch, for the times of tokens.
    ///
    /// # Errors
    /// When an identity refuses: 401, or 400 when [`IdentityReason::is_malformed`].
    pub fn identify(
        &self,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        now: u64,
    ) -> Result<Identified, IdentityRefusal> {
        let mut who = Identified::default();
        self.identify_into(&mut who, matched, request, now).map(|()| who)
    }

    /// As [`Policy::identify`], in place: who asks is a few hundred bytes, too many to be handed back and forth.
    ///
    /// # Errors
    /// As [`Policy::identify`].
    pub fn identify_into(
        &self,
        who: &mut Identified,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        now: u64,
    ) -> Result<(), IdentityRefusal> {
        self.plans[matched.route].identify(self.evidence(matched, request, now), who)
    }

    /// As [`Policy::identify`], but the identity with this index is taken at its word: the known caller of this name,
    /// else whoever has this key. For tests of a file, whose known callers' keys nobody has; never for a request.
    ///
    /// # Errors
    /// As [`Policy::identify`].
    pub fn identify_as(
        &self,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        now: u64,
        assumed: (usize, &str),
    ) -> Result<Identified, IdentityRefusal> {
        let evidence = Evidence { assumed: Some(assumed), ..self.evidence(matched, request, now) };
        let mut who = Identified::default();
        self.plans[matched.route].identify(evidence, &mut who).map(|()| who)
    }

    /// What the request draws from. `body`: the length of its body in bytes, if that is known.
    pub fn claims(&self, matched: &Match<'_>, who: &Identified, headers: &HeaderMap, body: Option<u64>) -> Claims {
        let mut claims = Claims::default();
        self.claims_into(&mut claims, matched, who, headers, body);
        claims
    }

    /// As [`Policy::claims`], added to `claims`, in place for the same reason.
    pub fn claims_into(
        &self,
        claims: &mut Claims,
        matched: &Match<'_>,
        who: &Identified,
        headers: &HeaderMap,
        body: Option<u64>,
    ) {
        self.plans[matched.route].claims(self, who, headers, body, claims);
    }

    /// Header edits with their templates filled, to be applied when the headers are at hand.
    pub fn edits<'p>(
        &self,
        edits: &'p HeaderEdits,
        matched: &Match<'_>,
        who: &Identified,
        request: &Descriptor<'_>,
    ) -> FilledEdits<'p> {
        let fill = |(name, template): &'p (HeaderName, Template)| {
            (name, template.header_value(|placeholder, into| self.fill(placeholder, matched, who, request, into)))
        };
        FilledEdits { remove: &edits.remove, set: edits.set.iter().map(fill).collect() }
    }

    /// A redirect's Location.
    pub fn location(
        &self,
        template: &Template,
        matched: &Match<'_>,
        who: &Identified,
        request: &Descriptor<'_>,
    ) -> HeaderValue {
        template.location(|placeholder, into| self.fill(placeholder, matched, who, request, into))
    }

    fn fill(
        &self,
        placeholder: &Placeholder,
        matched: &Match<'_>,
        who: &Identified,
        request: &Descriptor<'_>,
        into: &mut Vec<u8>,
    ) {
        let route = &self.routes[matched.route];
        match placeholder {
            Placeholder::Tier => into.extend(who.tier().map_or(&[][..], |tier| tier.as_bytes())),
            Placeholder::Caller => into.extend(who.caller.as_ref().map_or(&[][..], |caller| caller.name.as_bytes())),
            Placeholder::Route => into.extend_from_slice(route.name.as_bytes()),
            Placeholder::Address => {
                into.extend(request.client.map(|client| client.to_string()).unwrap_or_default().bytes())
            }
            Placeholder::Host => into.extend_from_slice(request.host.as_bytes()),
            Placeholder::Path(name) => {
                let capture = route.pattern.capture(name).and_then(|index| matched.captures.get(index));
                into.extend(capture.map_or(&[][..], |text| text.as_bytes()));
            }
            Placeholder::Identity(index) => {
                let resolved = who.resolved.iter().find(|one| one.identity == *index);
                match resolved.and_then(|one| one.caller.as_ref()) {
                    Some(caller) => into.extend_from_slice(caller.name.as_bytes()),
                    None => into.extend(self.evidence(matched, request, who.at).text(*index)),
                }
            }
        }
    }

    /// The identities, by index, that a request of the route with this index may be resolved by: those its limits and
    /// templates name, and those that stand in for them.
    pub fn identities_of(&self, route: usize) -> Vec<usize> {
        let mut reached = self.plans[route].identities.clone();
        let mut next = 0;
        while let Some(&index) = reached.get(next) {
            if let WhenMissing::Use(other) = self.identities[index].when_missing
                && !reached.contains(&other)
            {
                reached.push(other);
            }
            next += 1;
        }
        reached
    }

    fn evidence<'e, 'r>(&'e self, matched: &'e Match<'_>, request: &'e Descriptor<'r>, now: u64) -> Evidence<'e, 'r> {
        Evidence {
            address: &self.address,
            identities: &self.identities,
            request,
            pattern: &self.routes[matched.route].pattern,
            captures: &matched.captures,
            now,
            assumed: None,
        }
    }
}

/// Header edits with their templates filled.
#[derive(Clone, Debug, Default)]
pub struct FilledEdits<'p> {
    remove: &'p [HeaderName],
    set: Vec<(&'p HeaderName, HeaderValue)>,
}

impl FilledEdits<'_> {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    /// Changes `headers`: removals first, then settings, each in place of all lines of its name. Spellings of those
    /// names with underscores go, too.
    pub fn apply(self, headers: &mut HeaderMap) {
        if self.is_empty() {
            return;
        }
        drop_lookalikes(headers, |real| {
            let removed = self.remove.iter().any(|name| name.as_str() == real);
            removed || self.set.iter().any(|(name, _)| name.as_str() == real)
        });
        for name in self.remove {
            headers.remove(name);
        }
        for (name, value) in self.set {
            headers.insert(name, value);
        }
    }
}

/// Whether a name has an underscore. Eight bytes at a time, the last word over the one before it: every request's names
/// are looked at.
pub fn has_underscore(name: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Mycroft's test for a zero byte.
    let found = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'_'));
        word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
    };
    match name.last_chunk() {
        Some(last) => found(last) || name.as_chunks().0.iter().any(found),
        None => name.contains(&b'_'),
    }
}

/// Removes every field whose name, with its underscores read as hyphens, is another's for which `guarded` holds.
pub fn drop_lookalikes(headers: &mut HeaderMap, guarded: impl Fn(&str) -> bool) {
    let underscored = |name: &HeaderName| has_underscore(name.as_str().as_bytes());
    if !headers.keys().any(underscored) {
        return;
    }
    let lookalike = |name: &&HeaderName| underscored(name) && guarded(&name.as_str().replace('_', "-"));
    let found: Vec<HeaderName> = headers.keys().filter(lookalike).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// A limit as the file names it: its variants, what splits it into buckets, what a request costs.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub name: Arc<str>,
    /// The numbers for callers without a tier of their own.
    pub live: Arc<Limit>,
    /// The numbers per tier, sorted by tier name.
    pub tiers: Vec<(Arc<str>, Arc<Limit>)>,
    /// The candidate, judged beside whichever variant is live and only counted.
    pub candidate: Option<Arc<Limit>>,
    /// What splits it into buckets.
    pub scope: Scope,
    /// What one request costs.
    pub cost: Cost,
    /// How the cost is corrected from the response.
    pub settle: Option<Settle>,
    /// Which requests count.
    pub count: Count,
    /// Response statuses (of the upstream or our own 502/504) after which the charge is given back.
    pub refund_on: Vec<StatusMatch>,
}

/// How a limit is split into buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One bucket for all.
    Everyone,
    /// One bucket for each caller, told apart by these identities together.
    Identities(Vec<ScopePart>),
}

/// One part of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// The caller's address (IPv6 by prefix).
    Address,
    /// A named identity, by index in [`Policy::identities`].
    Identity(usize),
}

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The same for each.
    Fixed(u64),
    /// Read from a request header; unreadable or absent: `default`; then held between `least` and `most`.
    Header {
        /// The header.
        name: http::HeaderName,
        /// When it is absent or no number.
        default: u64,
        /// The least it may say.
        least: u64,
        /// The most it may say.
        most: u64,
    },
    /// The request's Content-Length in steps of `per` bytes, rounded up, held between `least` and `most`;
    /// unknown length: `most`.
    ContentLength {
        /// Bytes per unit.
        per: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
}

/// How a charge is corrected from the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// Where the real cost stands.
    pub from: SettleFrom,
    /// Units charged at admission.
    pub estimate: u64,
    /// The most a response may make it cost.
    pub most: u64,
}

/// Where the real cost of a request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleFrom {
    /// A response header.
    Header(http::HeaderName),
    /// Bytes of response body sent, in steps of `per`, rounded up.
    Bytes {
        /// Bytes per unit.
        per: u64,
    },
    /// A number in the JSON (or last SSE `data:`) body, by its path of member names.
    Json(Vec<String>),
}

/// Which requests a limit counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// All of them.
    #[default]
    All,
    /// Only those whose response has one of these statuses; the others are given back.
    Statuses(Vec<StatusMatch>),
}

/// A status, or a class of them (`"5xx"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusMatch {
    /// The lowest status that matches.
    pub from: u16,
    /// The highest.
    pub to: u16,
}

/// How refusals and quota fields are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    /// The dialects sent, in order.
    pub headers: Vec<Dialect>,
    /// What `X-RateLimit-Reset` counts in.
    pub reset: Reset,
    /// A refusal body in place of problem+json.
    pub body: Option<RefusalBody>,
}

/// A dialect of quota fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// draft-ietf-httpapi-ratelimit-headers-11: `RateLimit`, `RateLimit-Policy`.
    Draft11,
    /// The names of the draft's open pull request: `a`, `w`, `c`, `RateLimit-Partition`.
    DraftNext,
    /// One `RateLimit` field as `limit=, remaining=, reset=`.
    Draft07,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset`.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRateLimit,
}

/// What a legacy reset field counts in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// Seconds left.
    #[default]
    Seconds,
    /// Seconds since the Unix epoch.
    Epoch,
    /// Milliseconds since the Unix epoch.
    EpochMillis,
}

/// A refusal body of the file's own; `{…}` placeholders are filled from the refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalBody {
    /// Its content type.
    pub content_type: http::HeaderValue,
    /// The template.
    pub template: String,
}

/// Where a request came from, before any header is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's address; `None` on a Unix socket.
    pub address: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Whether the connection is encrypted.
    pub tls: bool,
}

/// How long an upstream may take, each bound in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// To connect.
    pub connect: Micros,
    /// From the end of the request to the head of the answer.
    pub response: Micros,
    /// Between two pieces of a body, either way.
    pub idle: Micros,
}

#[cfg(test)]
mod tests;
