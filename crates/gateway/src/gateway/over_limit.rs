//! Passes a request that limits of its route refuse on to the next target of the route
//! (`over_limit`). Nothing was charged for a target that refuses.

use super::Gateway;
use super::admit::Routed;
use super::judge::denial;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use crate::rejection::Rejection;
use tollgate_limiter::Denied;
use tollgate_policy::{Claims, Identified, Policy};
use tollgate_store::StoreError;

impl Gateway {
    /// Draws all claims of the request or none: those of its route's own target, or of the next one
    /// that takes what limits of the target before it refuse.
    pub(super) async fn judge_targets(
        &self,
        snapshot: &Snapshot,
        request: Routed<'_, '_, '_>,
        who: &Identified,
        context: &mut RequestContext,
        store_error: Option<StoreError>,
    ) -> Result<(), Rejection> {
        let mut refused = RefusedTargets::default();
        while let Err(denied) = self
            .draw_claims(snapshot, context, store_error.clone())
            .await?
        {
            refused.pass_on(&snapshot.policy, request, who, context, denied)?;
        }
        if context.target() > 0 {
            context.count_passed_on();
        }
        Ok(())
    }
}

/// The targets whose limits refused the request: of their refusals the one that ends first is sent,
/// because a lone caller that waits for it is admitted.
#[derive(Default)]
pub(super) struct RefusedTargets {
    /// Boxed, so that most requests do not pay for its space.
    soonest: Option<Box<(usize, Claims, Denied)>>,
}

impl RefusedTargets {
    /// Makes the claims of the request those of the next target.
    ///
    /// # Errors
    /// If no other target takes it.
    pub(super) fn pass_on(
        &mut self,
        policy: &Policy,
        request: Routed<'_, '_, '_>,
        who: &Identified,
        context: &mut RequestContext,
        denied: Denied,
    ) -> Result<(), Rejection> {
        let target = context.target();
        let next = policy.routes[request.matched.route].over_limit.get(target);
        let next = next.filter(|_| request.passes_on);
        let claims = next
            .filter(|over| denied.passes_on(context.claims(), over))
            .map(|_| request.claims(policy, who, target + 1))
            // A limit that refuses the model charges nothing.
            .filter(|claims| !claims.refuses_model());
        let Some(claims) = claims else {
            return Err(self.rejection(context, denied));
        };
        let refused = context.set_target(target + 1, claims);
        let known = self.soonest.as_ref();
        if known.is_none_or(|known| denied.ends_before(&known.2)) {
            self.soonest = Some(Box::new((target, refused, denied)));
        }
        Ok(())
    }

    /// The rejection of a request that its last target refuses.
    fn rejection(&mut self, context: &mut RequestContext, last: Denied) -> Rejection {
        match self.soonest.take() {
            Some(soonest) if !last.ends_before(&soonest.2) => {
                let (target, claims, denied) = *soonest;
                context.set_target(target, claims);
                denial(context, denied)
            }
            _ => denial(context, last),
        }
    }
}
