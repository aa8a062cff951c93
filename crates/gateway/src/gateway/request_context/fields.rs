//! Writes the gateway's own headers into the head of a response.

use http::{HeaderMap, Response};
use smallvec::SmallVec;

use super::RequestContext;
use crate::body::ResponseBody;
use crate::quota_headers::{Fact, QuotaFields, make_room};
use crate::rejection::{self, Asked, Rejection};
use tollgate_limit::{Micros, Role, Standing};
use tollgate_policy::Charge;

/// The headers of a response that are not in its header table but are written after it.
#[derive(Clone, Copy)]
pub(super) enum Lines {
    Nothing,
    /// The quota headers.
    Quota,
    /// All headers of a refusal with this retry time, and the quota headers.
    Refusal(Option<Micros>),
}

impl RequestContext {
    /// The response of the gateway itself. Where possible, and unless the route edits its headers
    /// (`edited`), it has no header table: its headers are written with the head.
    pub(in crate::gateway) fn refusal(
        &mut self,
        rejection: &Rejection,
        asked: &Asked,
        edited: bool,
    ) -> Response<ResponseBody> {
        let (snapshot, id) = (&self.snapshot, self.id());
        let own = snapshot.refusal_body(self.route);
        let prepared = self.refused().and_then(|denied| {
            let mut refusing = denied.refused();
            let only = refusing.next().filter(|_| refusing.next().is_none())?;
            Some(&snapshot.denials[self.claims.charges()[only].limit])
        });
        let bare = if edited {
            None
        } else {
            rejection.response_without_table(asked, own, prepared, id.as_str())
        };
        match bare {
            Some(response) => {
                self.lines = Lines::Refusal(rejection.retry_after());
                response
            }
            None => rejection.response(asked, own, id.as_str()),
        }
    }

    /// Adds quota headers to the response: after its header table when the head is written
    /// (`behind`, [`Self::write_fields`]), or in the table.
    pub(in crate::gateway) fn annotate(&mut self, headers: &mut HeaderMap, behind: bool) {
        if !behind {
            return self.with_facts(|quota, facts, refuses| {
                let writer = &mut self.side.quota.borrow_mut();
                quota.annotate(
                    headers,
                    facts,
                    refuses,
                    self.judged.retry_after(),
                    self.at,
                    writer,
                );
            });
        }
        if matches!(self.lines, Lines::Nothing)
            && !self.snapshot.quota.is_silent()
            && self.charges().next().is_some()
        {
            make_room(headers);
            self.lines = Lines::Quota;
        }
    }

    /// The charges to report, with their indices: those on enforced live limits that were asked, in
    /// the order of the route.
    fn charges(&self) -> impl Iterator<Item = (usize, &Charge, &Standing)> {
        let limits = &self.snapshot.policy.limits;
        let all = self
            .claims
            .charges()
            .iter()
            .zip(self.judged.standings())
            .enumerate();
        let told = |place, charge: &Charge| {
            charge.enforced
                && limits[charge.limit].role == Role::Live
                && !self.judged.is_unasked(place)
        };
        all.filter(move |(place, (charge, _))| told(*place, charge))
            .map(|(place, (charge, standing))| (place, charge, standing))
    }

    /// Passes the contents of the quota headers, and whether limits refuse, to `tell`.
    fn with_facts(&self, tell: impl FnOnce(&QuotaFields, &[Fact<'_>], bool)) {
        // Pushed one by one: there are few, and `collect` into a small vector checks for capacity
        // at every step.
        let mut facts = SmallVec::<[Fact<'_>; 4]>::new();
        let refused = self.refused();
        self.charges().for_each(|(place, charge, standing)| {
            let violated = refused.is_some_and(|denied| denied.is_refused_by(place));
            facts.push(Fact {
                limit: charge.limit,
                standing,
                cost: charge.cost,
                violated,
            });
        });
        let refuses = refused.is_some_and(|denied| denied.refused().next().is_some());
        tell(&self.snapshot.quota, &facts, refuses);
    }

    pub(super) fn write_fields(&self, out: &mut Vec<u8>) {
        match self.lines {
            Lines::Nothing => return,
            Lines::Quota => {}
            Lines::Refusal(wait) => rejection::write_headers(out, wait),
        }
        self.with_facts(|quota, facts, refuses| {
            quota.write(out, facts, refuses, self.judged.retry_after(), self.at);
        });
    }
}
