//! Identifies the caller, and derives from it the buckets a request draws from.

use tollgate_policy::{Claimed, Identified};

use super::Gateway;
use super::admit::Routed;
use super::over_limit::RefusedTargets;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use crate::rejection::Rejection;

impl Gateway {
    /// Writes the caller of the request to `who`, and its claims to the context
    /// ([`tollgate_policy::Claimed`]). Returns the refusal of an unidentified request, which is sent
    /// after the request has been charged.
    pub(super) async fn identify(
        &self,
        snapshot: &Snapshot,
        request: Routed<'_, '_, '_>,
        who: &mut Identified,
        context: &mut RequestContext,
    ) -> Result<Option<Rejection>, Rejection> {
        let (policy, now) = (&snapshot.policy, context.seconds());
        let Routed {
            matched,
            described,
            length,
            ..
        } = request;
        let into = (&mut *who, context.claims_mut());
        let refused = match policy.claim(into, matched, described, length, now) {
            Claimed::Complete => None,
            Claimed::Refused(refusal) => Some(refusal),
            Claimed::Unverified => {
                Box::pin(look(snapshot, context, request, who)).await?;
                let into = (who, context.claims_mut());
                let verified = policy.claim_verified(into, matched, described, length, now);
                verified.err()
            }
        };
        Ok(refused.map(|refusal| snapshot.unidentified(refusal)))
    }
}

/// Checks whether the limits of some target of the route would admit the request, without drawing
/// from them.
async fn look(
    snapshot: &Snapshot,
    context: &mut RequestContext,
    request: Routed<'_, '_, '_>,
    who: &Identified,
) -> Result<(), Rejection> {
    let (policy, limiter) = (&snapshot.policy, &snapshot.limiter);
    let mut refused = RefusedTargets::default();
    loop {
        let claims = context.claims().list(policy);
        if claims.is_empty() {
            break;
        }
        let looked = limiter.look(&claims, context.at(), context.deadline());
        let Err(denied) = looked.await else { break };
        drop(claims);
        if let Err(last) = refused.pass_on(policy, request, who, context, denied) {
            // Only now: where a target may take the request, the draws count their refusals.
            return Err(refused.of_look(snapshot, context, last).await);
        }
    }
    if context.target() > 0 {
        // The request is decided about from its route's own target on.
        context.set_target(0, request.claims(policy, who, 0));
    }
    Ok(())
}
