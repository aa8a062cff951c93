//! Draws claims that belong to no request of a client: of the descriptors of a rate limit service, and of
//! what a program names. Holds requests until their units are due.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Gateway;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use tollgate_limit::Timestamp;
use tollgate_limiter::{Deciding, Decision, wait_until};
use tollgate_store::clock::Clock;

impl Gateway {
    /// Draws the claims of the context, all of them or none.
    pub(super) async fn draw_claims(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
    ) -> Decision {
        let account = &context.account;
        let (limiter, now) = (&snapshot.limiter, account.at);
        let claims = account.claims.list(limiter.limits());
        let draw = match limiter.decide(&claims, now) {
            Deciding::Decided(decision) => return decision,
            Deciding::Asking(draw) => draw,
        };
        let decision = draw.ask(&account.deadline).await;
        drop(claims);
        context.store_took(self.side.clock.now().since(now));
        decision
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
