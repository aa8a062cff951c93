//! Keeps refusals by limits, and counts keys that are near their end, for an operator who asks.

use http::Request;
use http::header::HOST;

use super::RequestContext;
use crate::refusals::{Event, JudgedLimit, NAME_MAX, PATH_MAX, RefusedRequest, shortened, until};
use crate::rejection::Rejection;
use crate::request::near;
use tollgate_admission::Judged;
use tollgate_limit::Limit;
use tollgate_limiter::Denied;

impl RequestContext {
    /// Counts the keys that this request leaves few units, if its limits admit it, and those that it
    /// would have been refused for by limits that only count.
    pub(crate) fn count_near(&self) {
        let (Some(writer), Some(permit)) = (&self.side.refusals, self.account.judged.permit())
        else {
            return;
        };
        let charges = self.account.claims.charges().iter();
        for (charge, outcome) in charges.zip(permit.outcomes()) {
            let Some(standing) = outcome.asked() else {
                continue;
            };
            let limit = &self.snapshot.policy.limits[charge.limit];
            let (key, at) = (self.account.claims.key(charge), self.account.at);
            if !standing.verdict.is_allow() {
                writer.would_refuse(Event {
                    limit,
                    key,
                    at,
                    until: until(standing.verdict, at),
                    cost: charge.cost,
                });
                continue;
            }
            let in_force = outcome.numbers.as_ref().unwrap_or(limit);
            if reaches_event(in_force, standing.remaining()) {
                writer.spent(limit, key, standing.window_end);
            }
            if near(limit).is_some_and(|few| standing.remaining() <= few) {
                writer.near(limit, key, at);
            }
        }
    }

    /// Counts the keys that the response of this request leaves few units: it cost more than was
    /// charged at first, when they had more.
    pub(crate) fn count_near_after(&self) {
        let (Some(writer), Some(permit)) = (&self.side.refusals, self.account.judged.permit())
        else {
            return;
        };
        let now = self.side.shared.clock.now();
        for charge in permit.open_charges() {
            let first = self.account.claims.charges()[charge.place].cost;
            writer.settled(&charge, first, now);
        }
    }

    /// Keeps the refusal of a request that limits or their store refuse.
    pub(crate) fn keep_refusal<B>(&self, rejection: &Rejection, request: &Request<B>) {
        let Some(writer) = &self.side.refusals else {
            return;
        };
        let denied = match (&self.account.judged, rejection) {
            (Judged::Denied(denied), _) => Some(denied),
            (_, Rejection::StoreDown(_)) => None,
            _ => return,
        };
        let host = match request.headers().get(HOST) {
            Some(host) => host.to_str().unwrap_or_default(),
            None => request
                .uri()
                .authority()
                .map_or("", |authority| authority.as_str()),
        };
        let name = |text: &str| shortened(text, NAME_MAX);
        let caller = self.caller.as_deref();
        let tier = caller.and_then(|caller| caller.tier.as_deref());
        let refused = RefusedRequest {
            id: self.id,
            trace: self.trace,
            at: self.account.at,
            status: rejection.status(),
            reason: rejection.label(),
            method: name(request.method().as_str()),
            host: name(host),
            path: shortened(request.uri().path(), PATH_MAX),
            client: self.client,
            route: self.account.route,
            caller: caller.map(|caller| name(&caller.name)),
            tier: tier.map(name),
            target: self.account.target,
            limits: JudgedLimit::all(&self.account.claims, denied),
            retry_after: denied.and_then(Denied::retry_after),
        };
        writer.keep(&self.snapshot.policy, refused, &self.account.claims, denied);
    }
}

/// Whether so much is used that an event may be due. (Keys that are made up once each must not fill the
/// list of those that are looked at.)
fn reaches_event(limit: &Limit, remaining: u64) -> bool {
    let whole = limit.algorithm.burst();
    let used = u128::from(whole.saturating_sub(remaining)) * 100;
    let lowest = limit.events.iter().min();
    lowest.is_some_and(|percent| used >= u128::from(whole) * u128::from(*percent))
}
