//! Finds out who asks, and from that what a request draws from.

use tollgate_limiter::Look;
use tollgate_policy::route::Match;
use tollgate_policy::{Claims, Descriptor, Identified, IdentityReason, IdentityRefusal};
use tollgate_store::StoreError;

use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use super::{Gateway, judge};
use crate::rejection::Rejection;

/// What is known once the caller has been looked for.
#[derive(Default)]
pub(super) struct Identification {
    /// What an unidentified request is refused with, after it has been charged.
    pub(super) refusal: Option<Rejection>,
    /// Why the shared store need not be asked again, if it has not answered.
    pub(super) store_error: Option<StoreError>,
}

impl Gateway {
    /// Finds `who` asks, and writes down the claims. A browser's preflight sends no credentials, and a request whose
    /// identity refuses has none that hold: both draw from limits by address and for everyone. `length` is that of the
    /// request's body.
    pub(super) async fn identify(
        &self,
        snapshot: &Snapshot,
        matched: &Match<'_>,
        described: &Descriptor<'_>,
        length: Option<u64>,
        who: &mut Identified,
        context: &mut RequestContext,
    ) -> Result<Identification, Rejection> {
        let (policy, now) = (&snapshot.policy, context.seconds());
        let headers = described.headers;
        if policy.preflight(described).is_some() && length == Some(0) {
            policy.place_into(who, matched, described, now);
            policy.claims_into(context.claims_mut(), matched, who, headers, length);
            return Ok(Identification::default());
        }
        let Err(refusal) = policy.identify_known_into(who, matched, described, now) else {
            policy.claims_into(context.claims_mut(), matched, who, headers, length);
            return Ok(Identification::default());
        };
        policy.place_into(who, matched, described, now);
        policy.claims_into(context.claims_mut(), matched, who, headers, length);
        if refusal.reason != IdentityReason::Unverified {
            return Ok(unidentified(snapshot, context, refusal, None));
        }
        // Limits by address and for everyone decide before a signature is verified, which costs far more.
        let store_error = Box::pin(look(snapshot, context)).await?;
        let mut verified = Identified::default();
        if let Err(refusal) = policy.identify_into(&mut verified, matched, described, now) {
            return Ok(unidentified(snapshot, context, refusal, store_error));
        }
        *who = verified;
        *context.claims_mut() = Claims::default();
        policy.claims_into(context.claims_mut(), matched, who, headers, length);
        Ok(Identification {
            refusal: None,
            store_error,
        })
    }
}

/// A request that is refused for its identity draws from the limits that count such a refusal.
fn unidentified(
    snapshot: &Snapshot,
    context: &mut RequestContext,
    refusal: IdentityRefusal,
    store_error: Option<StoreError>,
) -> Identification {
    let rejection = snapshot.unidentified(refusal);
    context
        .claims_mut()
        .retain_counting(&snapshot.policy, rejection.status());
    Identification {
        refusal: Some(rejection),
        store_error,
    }
}

/// Whether the limits would admit the request, without drawing from them; why the shared store did not answer, if so.
async fn look(
    snapshot: &Snapshot,
    context: &mut RequestContext,
) -> Result<Option<StoreError>, Rejection> {
    let claims = context.claims().list(&snapshot.policy);
    if claims.is_empty() {
        return Ok(None);
    }
    let look = snapshot.limiter.look(&claims, context.at()).await;
    drop(claims);
    match look {
        Look::Open => Ok(None),
        Look::Unavailable(error) => Ok(Some(error)),
        Look::Denied(denied) => Err(judge::denial(context, denied)),
    }
}
