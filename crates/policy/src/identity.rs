//! Resolves identities: their sources, and the fallback when a key is missing or unknown. Knows no
//! limits.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use super::address::AddressPolicy;
use super::descriptor::Descriptor;
use super::jwt::{JwtError, JwtPolicy, VerifiedClaims};
use super::keys;
use super::route::Route;
use super::source::{self, Ambiguous};
use tollgate_limit::KeyBytes;

pub use super::address::{ForwardingHeader, NetSet};
pub use super::callers::{Caller, Callers, parse_digest};
pub use super::jwt::{JwtSettings, parse_algorithm};
pub use super::source::Source;

/// A named way to identify a caller.
#[derive(Debug)]
pub struct Identity {
    /// Its name in the file.
    pub name: Arc<str>,
    /// The sources of its key.
    pub sources: Vec<Source>,
    /// Whether the first source that is present is the key; otherwise all sources together are.
    pub first_of: bool,
    /// What happens when a source is absent.
    pub when_missing: WhenMissing,
    /// What happens when callers are listed and the key belongs to none of them.
    pub when_unknown: WhenUnknown,
    /// The tier of clients identified by address here, because their key is missing or unknown.
    pub address_tier: Option<Arc<str>>,
    /// Known callers, if listed. Replaced separately when their own file changes
    /// ([`Identity::replace_callers`]).
    pub callers: Option<ArcSwap<Callers>>,
    /// How its `jwt:` sources are verified.
    pub jwt: Option<JwtPolicy>,
}

impl Identity {
    /// Whether the address alone determines it, without any key.
    pub(super) fn is_address(&self) -> bool {
        let fallback = matches!(self.when_missing, WhenMissing::Use(_));
        !fallback
            && self
                .sources
                .iter()
                .all(|source| matches!(source, Source::Address))
    }

    /// Replaces the known callers immediately. Has no effect on an identity without listed callers:
    /// listing them decides what unknown keys mean, which is part of the policy.
    pub fn replace_callers(&self, callers: Callers) {
        if let Some(current) = &self.callers {
            current.store(Arc::new(callers));
        }
    }
}

/// What happens when an identity's key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenMissing {
    /// 401.
    Refuse,
    /// No limit by this identity.
    Skip,
    /// The client's address is used instead.
    UseAddress,
    /// Another identity, by index, is used instead.
    Use(usize),
}

/// What happens when callers are listed and the key belongs to none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnknown {
    /// 401.
    Refuse,
    /// The client's address is used instead.
    UseAddress,
    /// The key is accepted like a known one.
    Accept,
}

/// Why an identity refused a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("identity `{identity}`: {reason}")]
pub struct IdentityRefusal {
    /// The identity's name.
    pub identity: Arc<str>,
    /// Why.
    pub reason: IdentityReason,
}

/// Why an identity refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityReason {
    /// The key is absent, and `when_missing = "refuse"`: 401.
    #[error("the key is missing")]
    Missing,
    /// The same of a key in the body: 400, because credentials would not help.
    #[error("the body does not have the key")]
    MissingInBody,
    /// The key belongs to no known caller, and `when_unknown = "refuse"`: 401.
    #[error("the key is not known")]
    Unknown,
    /// The token is not valid: 401.
    #[error("the token is refused: {0}")]
    Token(JwtError),
    /// The token was not verified before, and no signature was to be verified. Never reported to a
    /// client.
    #[error("the token has not been verified")]
    Unverified,
    /// The key can be read in more than one way: 400.
    #[error("the key is ambiguous: {0}")]
    Ambiguous(Ambiguous),
    /// The request asks for a model without a price, and the limit refuses such requests: 400. The
    /// refusal names the limit.
    #[error("the model has no price")]
    ModelUnknown,
}

impl IdentityReason {
    /// Whether the request itself is malformed (400) instead of unauthorised (401).
    pub const fn is_malformed(self) -> bool {
        matches!(
            self,
            Self::MissingInBody | Self::Ambiguous(_) | Self::ModelUnknown
        )
    }
}

crate::labels! {
    IdentityReason {
        Self::Missing | Self::MissingInBody => "identity_missing",
        Self::Unknown => "identity_unknown",
        Self::Ambiguous(_) => "identity_ambiguous",
        Self::ModelUnknown => "model_unknown",
    } and {
        Self::Token(why) => why.label(),
        Self::Unverified => "token_unverified",
    }
}

/// One identity of one request, resolved.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The requested identity, by index.
    pub identity: usize,
    /// How it was resolved.
    pub how: How,
    /// The part of a bucket's key for this identity; empty when skipped.
    pub key: KeyBytes,
    /// The known caller.
    pub caller: Option<Arc<Caller>>,
    /// The tier, if the address is used instead.
    pub address_tier: Option<Arc<str>>,
}

/// How an identity was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A known caller.
    Known,
    /// By its key; callers are not listed.
    Key,
    /// The key is missing, so the address is used.
    MissingAddress,
    /// The key is unknown, so the address is used.
    UnknownAddress,
    /// The key is missing and the identity skips.
    Skipped,
}

/// Whether to verify a token that was not verified before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signatures {
    /// Verify its signature.
    Verify,
    /// Do not verify it: the result is [`IdentityReason::Unverified`].
    Leave,
}

/// The inputs from which identities are resolved.
#[derive(Clone, Copy)]
pub(super) struct Evidence<'e, 'r> {
    pub(super) address: &'e AddressPolicy,
    pub(super) identities: &'e [Identity],
    pub(super) request: &'e Descriptor<'r>,
    pub(super) route: &'e Route,
    pub(super) captures: &'e [&'e str],
    /// Seconds since the Unix epoch.
    pub(super) now: u64,
    pub(super) signatures: Signatures,
    /// An identity, by index, that is assumed instead of read: a known caller's name, otherwise a
    /// key.
    pub(super) assumed: Option<(usize, &'e str)>,
}

type Values<'v> = SmallVec<[Cow<'v, [u8]>; 2]>;

fn one_value(name: &str) -> Values<'_> {
    let mut values = Values::new();
    values.push(Cow::Borrowed(name.as_bytes()));
    values
}

impl<'e, 'r: 'e> Evidence<'e, 'r> {
    /// Resolves the identity `asked`, following `use:` to other identities; a compiled policy has
    /// no cycles.
    pub(super) fn resolve(self, asked: usize) -> Result<Resolved, IdentityRefusal> {
        let mut at = asked;
        let mut resolved = Resolved {
            identity: asked,
            how: How::Key,
            key: KeyBytes::new(),
            caller: None,
            address_tier: None,
        };
        loop {
            let identity = &self.identities[at];
            let refuse = |reason| {
                Err(IdentityRefusal {
                    identity: Arc::clone(&identity.name),
                    reason,
                })
            };
            let assumed = self
                .assumed
                .and_then(|(assumed, name)| (assumed == at).then_some(name));
            let values = match assumed
                .map_or_else(|| self.values(identity), |name| Ok(Some(one_value(name))))
            {
                Ok(values) => values,
                Err(reason) => return refuse(reason),
            };
            let Some(values) = values else {
                match identity.when_missing {
                    WhenMissing::Refuse if identity.sources.iter().any(Source::is_of_body) => {
                        return refuse(IdentityReason::MissingInBody);
                    }
                    WhenMissing::Refuse => return refuse(IdentityReason::Missing),
                    WhenMissing::Skip => resolved.how = How::Skipped,
                    WhenMissing::UseAddress => {
                        resolved.how = How::MissingAddress;
                        resolved.address_tier.clone_from(&identity.address_tier);
                        self.push_address(&mut resolved.key);
                    }
                    WhenMissing::Use(other) => {
                        at = other;
                        continue;
                    }
                }
                return Ok(resolved);
            };
            let known = identity.callers.as_ref().map(|callers| {
                let callers = callers.load();
                assumed
                    .and_then(|name| callers.named(name))
                    .or_else(|| callers.find(&values[0]))
                    .cloned()
            });
            match (known, identity.when_unknown) {
                (Some(Some(caller)), _) => {
                    resolved.how = How::Known;
                    keys::push_caller(&mut resolved.key, &caller.name);
                    resolved.caller = Some(caller);
                    return Ok(resolved);
                }
                (Some(None), WhenUnknown::Refuse) => return refuse(IdentityReason::Unknown),
                (Some(None), WhenUnknown::UseAddress) => {
                    resolved.how = How::UnknownAddress;
                    resolved.address_tier.clone_from(&identity.address_tier);
                    self.push_address(&mut resolved.key);
                    return Ok(resolved);
                }
                (None, _) | (Some(None), WhenUnknown::Accept) => {}
            }
            if at != asked {
                keys::push_fallback(&mut resolved.key, &identity.name);
            }
            values
                .iter()
                .for_each(|value| keys::push_value(&mut resolved.key, value));
            return Ok(resolved);
        }
    }

    pub(super) fn push_address(self, key: &mut KeyBytes) {
        keys::push_address(
            key,
            self.request.client.map(|client| self.address.key(client)),
        );
    }

    /// The values of an identity's sources. `None` when one is absent, or, for `first_of`, when all
    /// are.
    fn values(self, identity: &'e Identity) -> Result<Option<Values<'e>>, IdentityReason> {
        if identity.first_of {
            return self.first_value(identity);
        }
        let mut values = Values::new();
        let mut token = None;
        for source in &identity.sources {
            // All sources are read even after one is absent: an invalid token must not count as a
            // missing key.
            values.extend(self.value(identity, source, &mut token)?);
        }
        Ok((values.len() == identity.sources.len() && !values.is_empty()).then_some(values))
    }

    /// The value of the first source that is present. If clients write both sources, a second value
    /// that differs is ambiguous: the upstream may read the other one, and every invented first
    /// value would get a new bucket.
    fn first_value(self, identity: &'e Identity) -> Result<Option<Values<'e>>, IdentityReason> {
        let mut values = Values::new();
        let mut token = None;
        for source in &identity.sources {
            let value = self.value(identity, source, &mut token)?;
            match (values.first(), value) {
                (None, value) => values.extend(value),
                (Some(first), Some(value)) if source.is_unverified() && *first != value => {
                    return Err(IdentityReason::Ambiguous(Ambiguous::Twice));
                }
                (Some(_), _) => {}
            }
        }
        Ok((!values.is_empty()).then_some(values))
    }

    /// The value of one source in its one spelling.
    fn value(
        self,
        identity: &'e Identity,
        source: &Source,
        token: &mut Option<Arc<VerifiedClaims>>,
    ) -> Result<Option<Cow<'e, [u8]>>, IdentityReason> {
        let value = self.stated_value(identity, source, token)?;
        match value {
            Some(value) if source.is_unverified() => {
                source::one_spelling(value).map_err(IdentityReason::Ambiguous)
            }
            value => Ok(value),
        }
    }

    fn stated_value(
        self,
        identity: &'e Identity,
        source: &Source,
        token: &mut Option<Arc<VerifiedClaims>>,
    ) -> Result<Option<Cow<'e, [u8]>>, IdentityReason> {
        let request = self.request;
        match source {
            Source::Address => {
                // A Unix socket without a forwarded address has no client address; an identity by
                // address is then missing.
                let client = request.client;
                Ok(client.map(|client| Cow::Owned(self.address.words(client).into_bytes())))
            }
            Source::Header(name) => {
                source::header(request, name).map_err(IdentityReason::Ambiguous)
            }
            Source::Bearer => {
                let token =
                    source::credentials(request, "bearer").map_err(IdentityReason::Ambiguous)?;
                Ok(token.map(Cow::Borrowed))
            }
            Source::BasicUser => Ok(source::basic_user(request)
                .map_err(IdentityReason::Ambiguous)?
                .map(Cow::Owned)),
            Source::Cookie(name) => {
                source::cookie(request, name).map_err(IdentityReason::Ambiguous)
            }
            Source::Query(name) => source::query(request, name).map_err(IdentityReason::Ambiguous),
            Source::Path(name) => {
                let capture = self
                    .route
                    .pattern
                    .capture(name)
                    .and_then(|index| self.captures.get(index));
                Ok(capture.map(|text| Cow::Borrowed(text.as_bytes())))
            }
            Source::JwtClaim(name) => {
                let Some(jwt) = &identity.jwt else {
                    return Ok(None);
                };
                let Some(bearer) =
                    source::credentials(request, "bearer").map_err(IdentityReason::Ambiguous)?
                else {
                    return Ok(None);
                };
                if token.is_none() {
                    *token = Some(
                        match jwt.find(bearer, self.now).map_err(IdentityReason::Token)? {
                            Ok(claims) => claims,
                            Err(_) if self.signatures == Signatures::Leave => {
                                return Err(IdentityReason::Unverified);
                            }
                            Err(unknown) => jwt
                                .verify_unknown(unknown, self.now)
                                .map_err(IdentityReason::Token)?,
                        },
                    );
                }
                let claim = token.as_ref().and_then(|token| token.find(name));
                Ok(claim.map(|claim| Cow::Owned(claim.as_bytes().to_vec())))
            }
            Source::ClientCertificate => {
                let subject = request
                    .client_certificate
                    .filter(|subject| !subject.is_empty());
                Ok(subject.map(|subject| Cow::Borrowed(subject.as_bytes())))
            }
            Source::Json(_) | Source::Form(_) | Source::GraphqlOperation => {
                Ok(request.body.and_then(|body| body.value(source)))
            }
        }
    }

    /// The value of each source of an identity, for display. Slow: it reads every source.
    pub(super) fn sources(
        self,
        index: usize,
    ) -> Vec<(String, Result<Option<String>, IdentityReason>)> {
        let identity = &self.identities[index];
        let mut token = None;
        let mut told = Vec::new();
        for source in &identity.sources {
            let value = self.value(identity, source, &mut token);
            let value =
                value.map(|found| found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
            told.push((source.words(), value));
        }
        told
    }

    /// An identity's key for a person or an upstream: the caller's name, or its values joined by
    /// `,`.
    pub(super) fn text(self, index: usize) -> Vec<u8> {
        let identity = &self.identities[index];
        match self.values(identity) {
            Ok(Some(values)) => values.join(&b","[..]),
            _ => Vec::new(),
        }
    }
}
