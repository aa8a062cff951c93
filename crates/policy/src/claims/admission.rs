//! The order in which a request is identified and its claims are found.
//!
//! A browser's preflight sends no credentials, and a request that its identity refuses has no valid
//! ones: both draw from limits by address and for everyone. These limits also decide before a
//! signature is verified, because verification costs far more.

use std::sync::Arc;

use http::StatusCode;

use crate::identity::jwt::JwtError;
use crate::identity::{Evidence, IdentityReason, IdentityRefusal, Signatures};
use crate::routes::router::Match;
use crate::{BodyFacts, Claims, Descriptor, Identified, Policy, SentBody};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Complete,
    /// An identity refuses the request; the claims are those of limits that count such refusals.
    Refused(IdentityRefusal),
    /// A signature must be verified ([`Policy::claim_verified`]); until then the claims are those
    /// of limits by address and for everyone.
    Unverified,
}

impl Policy {
    /// Identifies `who` sends the request, without verifying signatures, and adds what it draws
    /// from to `claims`. `length`: the length of its body in bytes, if known; `now`: seconds since
    /// the Unix epoch.
    pub fn claim(
        &self,
        who: &mut Identified,
        claims: &mut Claims,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        length: Option<u64>,
        now: u64,
    ) -> Claimed {
        let headers = request.headers;
        let body = sent(request, length);
        // Whether a proxy has a body for a preflight is not known; it costs as one of unknown length.
        let may_be_empty = length == Some(0) || request.is_body_elsewhere;
        if may_be_empty && self.preflight(request).is_some() {
            self.place_into(who, matched, request, now);
            claims.add_route(self, 0, matched, who, headers, body);
            claims.drop_reservations(self);
            return Claimed::Complete;
        }
        let evidence = Evidence {
            signatures: Signatures::Leave,
            ..self.evidence(matched, request, now)
        };
        let Err(refusal) = self.plans[matched.route].identify(evidence, who) else {
            claims.add_route(self, 0, matched, who, headers, body);
            return match self.unpriced(claims) {
                Some(refusal) => Claimed::Refused(self.lacking(refusal, matched, body)),
                None => Claimed::Complete,
            };
        };
        self.place_into(who, matched, request, now);
        claims.add_route(self, 0, matched, who, headers, body);
        if refusal.reason == IdentityReason::Unverified {
            return Claimed::Unverified;
        }
        claims.retain_counting(self, refusal.status());
        Claimed::Refused(self.lacking(refusal, matched, body))
    }

    /// Adds what a request draws from that is refused with `status` before it is identified: limits
    /// by address and for everyone that count such refusals.
    pub fn claim_refused(
        &self,
        claims: &mut Claims,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        status: StatusCode,
        now: u64,
    ) {
        let mut who = Identified::default();
        self.place_into(&mut who, matched, request, now);
        claims.add_route(self, 0, matched, &who, request.headers, None.into());
        claims.retain_counting(self, status);
    }

    /// Verifies the signature of a request whose claims are [`Claimed::Unverified`], and completes
    /// its claims.
    /// On an error the claims are those of limits that count such refusals.
    pub fn claim_verified(
        &self,
        who: &mut Identified,
        claims: &mut Claims,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        length: Option<u64>,
        now: u64,
    ) -> Result<(), IdentityRefusal> {
        let mut verified = Identified::default();
        let evidence = self.evidence(matched, request, now);
        let body = sent(request, length);
        if let Err(refusal) = self.plans[matched.route].identify(evidence, &mut verified) {
            claims.retain_counting(self, refusal.status());
            return Err(self.lacking(refusal, matched, body));
        }
        *who = verified;
        *claims = Claims::default();
        claims.add_route(self, 0, matched, who, request.headers, body);
        match self.unpriced(claims) {
            Some(refusal) => Err(self.lacking(refusal, matched, body)),
            None => Ok(()),
        }
    }

    /// The refusal of a request for a model without a price; the claims are then those of limits
    /// that count such refusals.
    pub(crate) fn unpriced(&self, claims: &mut Claims) -> Option<IdentityRefusal> {
        let rule = self.rules.get(claims.unpriced?)?;
        let refusal = IdentityRefusal {
            identity: Arc::clone(&rule.name),
            reason: IdentityReason::ModelUnknown,
            lacking: None,
        };
        claims.retain_counting(self, refusal.status());
        Some(refusal)
    }

    /// What is known of the body of a request that a proxy asks about: nothing. It is taken to be as
    /// long as a body that would be read.
    pub fn body_of_proxy(&self) -> BodyFacts {
        BodyFacts::elsewhere(&self.wanted, None, Some(self.body.most as u64))
    }

    /// What is known of the body of a request that belongs to a service: its length, if the client
    /// announces one.
    pub fn body_of_service(&self, length: Option<u64>) -> BodyFacts {
        BodyFacts::elsewhere(&self.wanted, length, None)
    }
}

/// The body of a request: what was read of it, or its announced length.
pub fn sent<'r>(request: &Descriptor<'r>, length: Option<u64>) -> SentBody<'r> {
    SentBody {
        length: request.body.get().map_or(length, BodyFacts::length),
        facts: request.body.get(),
    }
}

impl IdentityRefusal {
    /// The status of the refusal: 400 if the request is malformed, 503 if the gateway has no keys to
    /// verify its token, otherwise 401.
    pub const fn status(&self) -> StatusCode {
        match self.reason {
            IdentityReason::Token(JwtError::NoKeys) => StatusCode::SERVICE_UNAVAILABLE,
            reason if reason.is_malformed() => StatusCode::BAD_REQUEST,
            _ => StatusCode::UNAUTHORIZED,
        }
    }
}
