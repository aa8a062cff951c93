//! Identifies the caller, and derives from it the buckets a request draws from.

use tollgate_limiter::Look;
use tollgate_policy::{Claimed, Identified};
use tollgate_store::StoreError;

use super::Gateway;
use super::admit::Routed;
use super::over_limit::RefusedTargets;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
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
    /// Writes the caller of the request to `who`, and its claims to the context
    /// ([`tollgate_policy::Claimed`]).
    pub(super) async fn identify(
        &self,
        snapshot: &Snapshot,
        request: Routed<'_, '_, '_>,
        who: &mut Identified,
        context: &mut RequestContext,
    ) -> Result<Identification, Rejection> {
        let (policy, now) = (&snapshot.policy, context.seconds());
        let Routed {
            matched,
            described,
            length,
            ..
        } = request;
        let into = (&mut *who, context.claims_mut());
        let (refusal, store_error) = match policy.claim(into, matched, described, length, now) {
            Claimed::Complete => return Ok(Identification::default()),
            Claimed::Refused(refusal) => (refusal, None),
            Claimed::Unverified => {
                let store_error = Box::pin(look(snapshot, context, request, who)).await?;
                let into = (who, context.claims_mut());
                match policy.claim_verified(into, matched, described, length, now) {
                    Err(refusal) => (refusal, store_error),
                    Ok(()) => {
                        return Ok(Identification {
                            refusal: None,
                            store_error,
                        });
                    }
                }
            }
        };
        Ok(Identification {
            refusal: Some(snapshot.unidentified(refusal)),
            store_error,
        })
    }
}

/// Checks whether the limits of some target of the route would admit the request, without drawing
/// from them. Returns the error of the shared store if it did not answer.
async fn look(
    snapshot: &Snapshot,
    context: &mut RequestContext,
    request: Routed<'_, '_, '_>,
    who: &Identified,
) -> Result<Option<StoreError>, Rejection> {
    let policy = &snapshot.policy;
    let mut refused = RefusedTargets::default();
    let store_error = loop {
        let claims = context.claims().list(policy);
        if claims.is_empty() {
            break None;
        }
        let look = snapshot.limiter.look(&claims, context.at()).await;
        drop(claims);
        match look {
            Look::Open => break None,
            Look::Unavailable(error) => break Some(error),
            Look::Denied(denied) => refused.pass_on(policy, request, who, context, denied)?,
        }
    };
    if context.target() > 0 {
        // The request is decided about from its route's own target on.
        context.set_target(0, request.claims(policy, who, 0));
    }
    Ok(store_error)
}
