//! Identifies the caller, and derives from it the buckets a request draws from.

use tollgate_limiter::Look;
use tollgate_policy::route::Match;
use tollgate_policy::{Claims, Descriptor, Identified, IdentityReason, IdentityRefusal};
use tollgate_store::StoreError;

use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use super::{Gateway, judge};
use crate::rejection::Rejection;

/// The result of identifying the caller.
#[derive(Default)]
pub(super) struct Identification {
    /// The refusal of an unidentified request, sent after the request has been charged.
    pub(super) refusal: Option<Rejection>,
    /// The error of the shared store if it did not answer; it is not asked again.
    pub(super) store_error: Option<StoreError>,
}

impl Gateway {
    /// Identifies `who` sends the request and records the claims. A browser's preflight sends no
    /// credentials, and a request that its identity refuses has no valid ones: both draw from
    /// limits by address and for everyone. `length` is the length of the request's body.
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
        // Limits by address and for everyone decide before a signature is verified, because
        // verification costs far more.
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

/// Charges a request that its identity refuses to the limits that count such refusals.
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

/// Checks whether the limits would admit the request, without drawing from them. Returns the error
/// of the shared store if it did not answer.
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
