//! Identifies the caller of a request whose route is found, and says what the request draws from.

use http::HeaderMap;

use crate::Policy;
use crate::claims::plan;
use crate::claims::{Claims, Identified, SentBody};
use crate::descriptor::Descriptor;
use crate::identity::{Evidence, IdentityRefusal, Signatures};
use crate::routes::router::Match;

impl Policy {
    /// The request's identities, as far as the limits and templates of the route need them. `now`:
    /// seconds since the Unix epoch, for the times of tokens.
    pub fn identify(
        &self,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        now: u64,
    ) -> Result<Identified, IdentityRefusal> {
        let mut who = Identified::default();
        self.plans[matched.route]
            .identify(self.evidence(matched, request, now), &mut who)
            .map(|()| who)
    }

    /// Sets `who` from the address alone and discards its content. CORS preflights and requests
    /// whose identity refuses are charged this way: only on limits by address and limits for everyone.
    pub fn place_into(
        &self,
        who: &mut Identified,
        matched: &Match<'_>,
        request: &Descriptor<'_>,
        now: u64,
    ) {
        *who = Identified::default();
        self.plans[matched.route].place(self.evidence(matched, request, now), who);
    }

    /// What the request draws from. `body`: the length of its body in bytes, if known, or also what
    /// it says.
    pub fn claims<'b>(
        &self,
        matched: &Match<'_>,
        who: &Identified,
        headers: &HeaderMap,
        body: impl Into<SentBody<'b>>,
    ) -> Claims {
        self.claims_of_target(0, matched, who, headers, body)
    }

    /// What the request draws from if it goes to this target of its route: 0 is the route's own, 1
    /// the first of [`over_limit`](crate::routes::Route::over_limit).
    pub fn claims_of_target<'b>(
        &self,
        target: usize,
        matched: &Match<'_>,
        who: &Identified,
        headers: &HeaderMap,
        body: impl Into<SentBody<'b>>,
    ) -> Claims {
        let mut claims = Claims::default();
        claims.add_route(self, target, matched, who, headers, body.into());
        claims
    }

    /// The identities, by index, that a request of the route with this index may be resolved by:
    /// those its limits and templates name, and their fallbacks.
    pub fn identities_of(&self, route: usize) -> Vec<usize> {
        plan::reached(&self.plans[route].identities, &self.identities).into_vec()
    }

    pub(crate) fn evidence<'e, 'r>(
        &'e self,
        matched: &'e Match<'_>,
        request: &'e Descriptor<'r>,
        now: u64,
    ) -> Evidence<'e, 'r> {
        Evidence {
            address: &self.address,
            identities: &self.identities,
            request,
            route: &self.routes[matched.route],
            captures: &matched.captures,
            now,
            signatures: Signatures::Verify,
        }
    }
}
