//! Checks a request against its limits, and holds it until its token is due (shaping).

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Gateway;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use crate::rejection::Rejection;
use tollgate_limit::{Placement, Timestamp};
use tollgate_limiter::{Decision, Denied, wait_until};
use tollgate_store::clock::Clock;

impl Gateway {
    /// Draws all claims of the request or none, and waits until the token is due.
    pub(super) async fn judge(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
    ) -> Result<(), Rejection> {
        let drawn = self.draw_claims(snapshot, context).await?;
        drawn.map_err(|denied| denial(context, denied))
    }

    /// The same; the inner error is the refusal by limits.
    pub(super) async fn draw_claims(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
    ) -> Result<Result<(), Denied>, Rejection> {
        let now = context.at();
        let claims = context.claims().list(&snapshot.policy);
        let (decision, decided) = match snapshot.limiter.try_check(&claims, now) {
            Some(decision) => (decision, now),
            None => {
                let asked = snapshot.limiter.ask(&claims, now, context.deadline());
                (Box::pin(asked).await, self.side.clock.now())
            }
        };
        let shared = claims
            .iter()
            .any(|claim| claim.limit.placement == Placement::Shared);
        drop(claims);
        if shared {
            context.store_took(decided.since(now));
        }
        match decision {
            Decision::Allow(permit) => {
                let hold = permit.hold();
                context.permitted(permit);
                if hold.0 > 0 {
                    let due = decided.after(hold);
                    Box::pin(wait_counted(&self.side.clock, due, &self.side.held)).await;
                }
                context.keep_charges();
                Ok(Ok(()))
            }
            Decision::Deny(denied) => Ok(Err(denied)),
            Decision::Unavailable(unavailable) => Err(Rejection::StoreDown(unavailable)),
        }
    }
}

/// The refusal of a request that the limits deny.
pub(super) fn denial(context: &mut RequestContext, denied: Denied) -> Rejection {
    let overload = context.is_overload(&denied);
    let refused = context.denied(denied);
    if overload {
        Rejection::Overloaded
    } else {
        Rejection::Denied(refused)
    }
}

/// Counts a request among the waiting ones until dropped, so that every way the wait can end is
/// counted.
struct Waiting<'c>(&'c AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until `clock` has reached `due`. `held` counts the waiting requests.
pub(super) async fn wait_counted(clock: &Clock, due: Timestamp, held: &AtomicUsize) {
    held.fetch_add(1, Ordering::Relaxed);
    let _waiting = Waiting(held);
    wait_until(clock, due).await;
}
