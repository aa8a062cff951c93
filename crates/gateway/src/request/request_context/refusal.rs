//! Keeps refusals by limits, and counts keys that are near their end, for an operator who asks.

use http::Request;
use http::header::HOST;

use super::RequestContext;
use crate::refusals::{Decided, Event, ExplainedRequest};
use crate::rejection::Rejection;
use crate::request::snapshot::brings_near;
use tollgate_admission::Judged;
use tollgate_limit::{Limit, Verdict};

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
            let few = self.snapshot.near[charge.limit];
            let Some(standing) = outcome.asked() else {
                continue;
            };
            let limit = &self.snapshot.policy.limits[charge.limit];
            let (key, at) = (self.account.claims.key(charge), self.account.at);
            let in_force = outcome.numbers.as_ref().unwrap_or(limit);
            if standing.verdict.is_allow() && reaches_event(in_force, standing.remaining()) {
                writer.spent(limit, key, standing.window_end);
            }
            match standing.verdict {
                Verdict::Deny { retry_after } => writer.would_refuse(Event {
                    limit,
                    key,
                    at,
                    until: retry_after.map(|wait| at.after(wait)),
                    cost: charge.cost,
                }),
                Verdict::Allow { .. } if few.is_some_and(|few| standing.remaining() <= few) => {
                    writer.near(limit, key, at);
                }
                Verdict::Allow { .. } => {}
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
        for charge in permit.open_charges() {
            writer.spent(charge.limit, charge.key, charge.window_end);
            let first = self.account.claims.charges()[charge.place].cost;
            if brings_near(&charge, first) {
                writer.near(charge.limit, charge.key, self.side.shared.clock.now());
            }
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
        let asked = ExplainedRequest {
            method: request.method(),
            host,
            path: request.uri().path(),
            client: self.client,
            route: self.account.route,
            caller: self.caller.as_deref(),
        };
        writer.keep(
            &self.snapshot.policy,
            &asked,
            &Decided {
                id: self.id,
                trace: self.trace,
                at: self.account.at,
                status: rejection.status(),
                reason: rejection.label(),
                claims: &self.account.claims,
                target: self.account.target,
                denied,
            },
        );
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
