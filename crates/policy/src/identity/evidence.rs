//! Reads the sources of an identity from a request.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use smallvec::SmallVec;

use super::{
    How, Identity, IdentityReason, IdentityRefusal, Resolved, Source, WhenMissing, WhenUnknown,
};
use crate::descriptor::Descriptor;
use crate::identity::address::AddressPolicy;
use crate::identity::jwt::VerifiedClaims;
use crate::identity::keys;
use crate::identity::source::{self, Ambiguous};
use crate::routes::Route;
use tollgate_limit::KeyBytes;

/// Whether to verify a token that was not verified before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signatures {
    Verify,
    /// Do not verify it: the result is [`IdentityReason::Unverified`].
    Leave,
}

#[derive(Clone, Copy)]
pub(crate) struct Evidence<'e, 'r> {
    pub(crate) address: &'e AddressPolicy,
    pub(crate) identities: &'e [Identity],
    pub(crate) request: &'e Descriptor<'r>,
    pub(crate) route: &'e Route,
    pub(crate) captures: &'e [&'e str],
    pub(crate) now: u64,
    pub(crate) signatures: Signatures,
}

fn not_empty(text: Option<&str>) -> Option<Cow<'_, [u8]>> {
    let text = text.filter(|text| !text.is_empty());
    text.map(|text| Cow::Borrowed(text.as_bytes()))
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
    pub(crate) fn resolve(self, asked: usize) -> Result<Resolved, IdentityRefusal> {
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
                    lacking: None,
                })
            };
            let assumed = self
                .request
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
                    WhenMissing::Refuse => return refuse(identity.missing()),
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
            });
            match (known, identity.when_unknown) {
                (Some(Some(caller)), _) => {
                    resolved.how = How::Known;
                    keys::push(&mut resolved.key, keys::CALLER, caller.name.as_bytes());
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
                keys::push(&mut resolved.key, keys::FALLBACK, identity.name.as_bytes());
            }
            for value in &values {
                keys::push(&mut resolved.key, keys::VALUE, value);
            }
            return Ok(resolved);
        }
    }

    pub(crate) fn push_address(self, key: &mut KeyBytes) {
        keys::push_address(
            key,
            self.request.client.map(|client| self.address.key(client)),
        );
    }

    /// The values of an identity's sources. `None` when one is absent, or, for `first_of`, when all are.
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
                    return Err(Ambiguous::Twice.into());
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
        match self.stated_value(identity, source, token)? {
            Some(value) if source.is_unverified() => Ok(source::one_spelling(value)?),
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
            Source::Header(AUTHORIZATION) => Ok(source::authorization(request)?),
            Source::Header(name) => Ok(source::header(request, name)?),
            Source::Bearer => Ok(source::bearer(request)?.map(Cow::Borrowed)),
            Source::BasicUser => Ok(source::basic_user(request)?.map(Cow::Owned)),
            Source::Cookie(name) => Ok(source::cookie(request, name)?),
            Source::Query(name) => Ok(source::query(request, name)?),
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
                let Some(bearer) = source::bearer(request)? else {
                    return Ok(None);
                };
                if token.is_none() {
                    *token = Some(match jwt.find(bearer, self.now)? {
                        Ok(claims) => claims,
                        Err(_) if self.signatures == Signatures::Leave => {
                            return Err(IdentityReason::Unverified);
                        }
                        Err(unknown) => jwt.verify_unknown(unknown, self.now)?,
                    });
                }
                let claim = token.as_ref().and_then(|token| token.find(name));
                Ok(claim.map(|claim| Cow::Owned(claim.as_bytes().to_vec())))
            }
            Source::ClientCertificate => Ok(not_empty(request.client_certificate)),
            Source::Application => Ok(not_empty(request.application)),
            Source::Json(_)
            | Source::JsonDigest(_)
            | Source::Form(_)
            | Source::GraphqlOperation => {
                Ok(request.body.get().and_then(|body| body.value(source)))
            }
        }
    }

    /// The value of each source of an identity, for display. Slow: it reads every source.
    pub(crate) fn sources(
        self,
        index: usize,
    ) -> Vec<(String, Result<Option<String>, IdentityReason>)> {
        let identity = &self.identities[index];
        let mut token = None;
        let mut seen = Vec::new();
        for source in &identity.sources {
            let value = self.value(identity, source, &mut token);
            let value =
                value.map(|found| found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
            seen.push((source.words(), value));
        }
        seen
    }

    /// An identity's key for a person or an upstream: the caller's name, or its values joined by `,`.
    pub(crate) fn text(self, index: usize) -> Vec<u8> {
        let identity = &self.identities[index];
        match self.values(identity) {
            Ok(Some(values)) => values.join(&b","[..]),
            _ => Vec::new(),
        }
    }
}
