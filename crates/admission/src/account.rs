//! What a request draws from, what was judged of it, and what its response can still change: from its
//! arrival to the end of its response.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};

use crate::settle::{self, Head, Owed, Used};
use crate::{Judged, UnderWay, denial};
use tollgate_limit::{Limit, Micros, Placement, Timestamp};
use tollgate_limiter::{Deadline, Permit};
use tollgate_policy::{Claims, Policy};
use tollgate_response::Refused;

#[derive(Debug)]
pub struct Account {
    pub at: Timestamp,
    pub deadline: Deadline,
    pub route: Option<usize>,
    /// The target of the route that the claims are for: 0 is its own.
    pub target: usize,
    pub claims: Claims,
    pub judged: Judged,
    /// Which charges its response can still change.
    pub owed: Owed,
}

impl Account {
    #[inline]
    pub fn new(at: Timestamp) -> Self {
        Self {
            at,
            deadline: Deadline::default(),
            route: None,
            target: 0,
            claims: Claims::default(),
            judged: Judged::Not,
            owed: Owed::default(),
        }
    }

    /// Whether the shared store must be asked about what it draws from.
    pub fn asks_store(&self, limits: &[Arc<Limit>]) -> bool {
        let mut limits = self.claims.charges().iter().map(|one| &limits[one.limit]);
        limits.any(|limit| limit.placement == Placement::Shared)
    }

    /// Makes the charges final, except for the corrections that the response can bring. Until then
    /// a client that leaves gets its charges back.
    pub fn keep_charges(&mut self) {
        if let Judged::Permitted(permit) = &mut self.judged {
            permit.forwarded();
        }
    }

    /// Records which charges the response can still change, of those for the `rules`.
    pub fn owe(&mut self, policy: &Policy, rules: impl Iterator<Item = usize>) {
        let mut owed = Owed::new(rules.map(|rule| &policy.rules[rule]));
        let over = self
            .route
            .and_then(|route| policy.routes[route].over_limit(self.target));
        let by_response = over.is_some_and(|over| over.model.is_none());
        owed.price(&self.claims, policy, by_response);
        owed.reservations = std::mem::take(&mut self.owed.reservations);
        self.owed = owed;
    }

    /// Notes what the request reserves, by a draw at `now`, until its response has ended.
    pub(crate) fn reserve(&mut self, policy: &Policy, under_way: &Arc<UnderWay>, now: Timestamp) {
        let Some(route) = self.route.map(|route| &policy.routes[route]) else {
            return;
        };
        let over = route.over_limit(self.target).map(|over| over.upstream);
        let upstream = over.or(route.target.upstream());
        let timeouts = upstream.map(|upstream| policy.upstreams[upstream].timeouts);
        // A service that does not forward has no time of its own.
        let takes = timeouts.map_or(Micros::ZERO, |its| its.total.unwrap_or(its.response));
        let end = now.after(takes);
        for drawn in self.claims.charges().iter().filter(|drawn| drawn.enforced) {
            let rule = &policy.rules[drawn.rule];
            if rule.reserves() {
                let bucket = (Arc::clone(&rule.name), self.claims.key(drawn).clone());
                self.owed.hold(under_way.reserve(bucket, drawn.cost, end));
            }
        }
    }

    /// The refusal by the limits, of which these reservations are under way; `None`: it sheds load for an upstream at its capacity, which is
    /// not the caller's fault.
    pub fn refused(
        &self,
        policy: &Policy,
        under_way: Option<&UnderWay>,
        now: Timestamp,
    ) -> Option<Refused> {
        let denied = self.judged.denied()?;
        let sheds_load = denial::sheds_load(denied, &self.claims, &policy.limits);
        (!sheds_load).then(|| {
            let mut refused = denial::contents(denied, &self.claims, policy);
            if let Some(under_way) = under_way {
                under_way.complete(&mut refused, denied, &self.claims, policy, now);
            }
            refused
        })
    }

    /// Takes out the charges that a later report can correct; `None`: all are final.
    pub fn take_open(&mut self) -> Option<(Permit, Owed)> {
        let Judged::Permitted(permit) = &mut self.judged else {
            return None;
        };
        let owed = std::mem::take(&mut self.owed);
        permit.take_open().map(|open| (open, owed))
    }

    /// Removes headers that could make the response omit its cost, where a limit reads it.
    pub fn keep_readable<B>(&self, request: &mut Request<B>) {
        if self.owed.reads_body() {
            let method: Method = request.method().clone();
            settle::want_readable(&method, request.headers_mut());
        }
    }

    pub fn answered(&self, took: Micros, lost: bool) {
        if let Judged::Permitted(permit) = &self.judged {
            permit.answered(took, lost);
        }
    }

    pub fn on_head(&mut self, head: Head<'_>) {
        if let (Judged::Permitted(permit), false) = (&mut self.judged, self.owed.is_empty()) {
            self.owed.on_head(permit, head);
        }
    }

    pub fn on_data(&mut self, piece: &Bytes) {
        if !self.owed.is_empty() {
            self.owed.on_data(piece);
        }
    }

    /// Settles the rest after `bytes` of body; returns what was used. `whole`: all was sent.
    pub fn on_end(&mut self, bytes: u64, whole: bool) -> Option<Vec<Used>> {
        let (Judged::Permitted(permit), false) = (&mut self.judged, self.owed.is_empty()) else {
            return None;
        };
        let owed = std::mem::take(&mut self.owed);
        Some(owed.on_end(permit, bytes, whole))
    }
}
