//! A request as its admission sees it: its facts, its route, and what its body was asked for.

use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;

use crate::UnderWay;
use tollgate_policy::routes::OverLimit;
use tollgate_policy::{
    BodyFacts, Claims, Descriptor, Identified, Match, Policy, WantedFacts, sent,
};

/// A request with its route. Code that moves the request meanwhile makes the view anew.
pub struct RequestView<'d, 'r> {
    pub policy: &'d Policy,
    pub described: &'d Descriptor<'r>,
    /// Its route, as far as what is known of its body tells.
    pub matched: Option<Match<'d>>,
    pub asked: WantedFacts,
    /// Routes that may take it instead, as its body says.
    pub asking: SmallVec<[usize; 2]>,
    pub length: Option<u64>,
    /// When it arrived, in seconds since the Unix epoch, by which the validity of a token is checked.
    pub seconds: u64,
    /// Whether another target of its route may take it: only the gateway itself forwards it there.
    pub passes_on: bool,
    /// Where its reservations are noted while it is under way.
    pub under_way: Option<&'d Arc<UnderWay>>,
    pub turned_away: Option<StatusCode>,
    read: bool,
}

impl<'d, 'r> RequestView<'d, 'r> {
    /// Finds the route of a request, as far as that is possible without its body.
    pub fn new(
        policy: &'d Policy,
        described: &'d Descriptor<'r>,
        length: Option<u64>,
        seconds: u64,
    ) -> Self {
        let found = policy.find_route(described);
        Self {
            policy,
            asked: policy.asked(&found),
            described,
            matched: found.matched,
            asking: found.asking,
            length,
            seconds,
            passes_on: false,
            under_way: None,
            turned_away: None,
            read: false,
        }
    }

    /// Adds what the body says, as far as it can be read. A body can select another route.
    pub fn read(&mut self, facts: Option<&'r BodyFacts>) {
        self.described.body.set(facts);
        self.read = true;
        if self.asked.routes() {
            self.matched = self.policy.route(self.described);
        }
    }

    /// Whether the body must be read before the request is admitted.
    pub fn is_unread(&self) -> bool {
        !self.read && !self.asked.is_empty()
    }

    pub(crate) fn claims(&self, who: &Identified, target: usize) -> Option<Claims> {
        let body = sent(self.described, self.length);
        let headers = self.described.headers;
        let matched = self.matched.as_ref()?;
        Some(
            self.policy
                .claims_of_target(target, matched, who, headers, body),
        )
    }

    /// The target of its route after this one, if the request may go there.
    pub(crate) fn next_target(&self, target: usize) -> Option<&'d OverLimit> {
        let matched = self.matched.as_ref().filter(|_| self.passes_on)?;
        self.policy.routes[matched.route].over_limit.get(target)
    }
}
