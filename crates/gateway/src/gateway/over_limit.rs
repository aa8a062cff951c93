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

impl Gateway {
    /// Draws all claims of the request or none: those of its route's own target, or of the next one
    /// that takes what limits of the target before it refuse.
    pub(super) async fn judge_targets(
        &self,
        snapshot: &Snapshot,
        request: Routed<'_, '_, '_>,
        who: &Identified,
        context: &mut RequestContext,
    ) -> Result<(), Rejection> {
        let mut refused = RefusedTargets::default();
        while let Err(denied) = self.draw_claims(snapshot, context).await? {
            refused
                .pass_on(&snapshot.policy, request, who, context, denied)
                .map_err(|last| refused.rejection(context, last))?;
        }
        if context.target() > 0 {
            context.count_passed_on();
        }
        Ok(())
    }
}

/// The targets whose limits refused the request, with what the request would have drawn there.
#[derive(Default)]
pub(super) struct RefusedTargets(Vec<(usize, Claims, Denied)>);

impl RefusedTargets {
    /// Makes the claims of the request those of the next target.
    ///
    /// # Errors
    /// `denied`, if no other target takes the request.
    pub(super) fn pass_on(
        &mut self,
        policy: &Policy,
        request: Routed<'_, '_, '_>,
        who: &Identified,
        context: &mut RequestContext,
        denied: Denied,
    ) -> Result<(), Denied> {
        let target = context.target();
        let next = policy.routes[request.matched.route].over_limit.get(target);
        let next = next.filter(|_| request.passes_on);
        let claims = next
            .filter(|over| tollgate_admission::denial::passes_on(&denied, context.claims(), over))
            .map(|_| request.claims(policy, who, target + 1))
            // A limit that refuses the model charges nothing.
            .filter(|claims| !claims.refuses_model());
        let Some(claims) = claims else {
            return Err(denied);
        };
        let refused = context.set_target(target + 1, claims);
        self.0.push((target, refused, denied));
        Ok(())
    }

    /// The rejection of a request that its last target refuses, too: the refusal that ends first,
    /// because a lone caller that waits for it is admitted.
    pub(super) fn rejection(&mut self, context: &mut RequestContext, last: Denied) -> Rejection {
        let mut soonest: Option<(usize, Claims, Denied)> = None;
        for refused in self.0.drain(..) {
            let known = soonest.as_ref();
            if known
                .is_none_or(|known| tollgate_admission::denial::ends_before(&refused.2, &known.2))
            {
                soonest = Some(refused);
            }
        }
        match soonest {
            Some((target, claims, denied))
                if !tollgate_admission::denial::ends_before(&last, &denied) =>
            {
                context.set_target(target, claims);
                denial(context, denied)
            }
            _ => denial(context, last),
        }
    }

    /// The same for refusals that a look has found. They are counted: no draw will.
    pub(super) async fn of_look(
        &mut self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
        mut last: Denied,
    ) -> Rejection {
        let (policy, limiter) = (&snapshot.policy, &snapshot.limiter);
        let (at, deadline) = (context.at(), context.deadline());
        let refused = self
            .0
            .iter_mut()
            .map(|(_, claims, denied)| (&*claims, denied));
        for (claims, denied) in refused.chain([(context.claims(), &mut last)]) {
            let claims = claims.list(policy);
            limiter.count_look(&claims, denied, at, deadline).await;
        }
        self.rejection(context, last)
    }
}
