//! The decision of the limits on a request and its claims, for responses and logs.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Limit, Micros, Role};
use tollgate_limiter::{Denied, Outcome, Permit};
use tollgate_policy::{Charge, Claims};
use tollgate_response::quota_headers::Fact;

#[derive(Debug, Default)]
pub enum Judged {
    /// None: the limits were not asked, or did not respond.
    #[default]
    Not,
    Permitted(Permit),
    Denied(Denied),
}

impl Judged {
    /// What became of each claim; none, if the limits did not decide.
    pub fn outcomes(&self) -> &[Outcome] {
        match self {
            Self::Not => &[],
            Self::Permitted(permit) => permit.outcomes(),
            Self::Denied(denied) => denied.outcomes(),
        }
    }

    pub const fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            Self::Not | Self::Permitted(_) => None,
        }
    }

    pub const fn permit(&self) -> Option<&Permit> {
        match self {
            Self::Permitted(permit) => Some(permit),
            Self::Not | Self::Denied(_) => None,
        }
    }

    /// The time after which a lone caller is admitted, if the limits refuse and it is known.
    pub fn retry_after(&self) -> Option<Micros> {
        self.denied()?.retry_after()
    }

    pub fn refuses(&self) -> bool {
        self.denied().is_some()
    }

    /// The charges to report, with their outcomes: those on enforced live limits that were asked, in
    /// the order of the route.
    #[inline]
    pub fn reported<'j>(
        &'j self,
        claims: &'j Claims,
        limits: &'j [Arc<Limit>],
    ) -> impl Iterator<Item = (&'j Charge, &'j Outcome)> {
        let all = claims.charges().iter().zip(self.outcomes());
        all.filter(|(charge, outcome)| {
            let live = limits[charge.limit].role == Role::Live;
            charge.enforced && live && outcome.asked().is_some()
        })
    }

    #[inline]
    pub fn facts<'j>(
        &'j self,
        claims: &'j Claims,
        limits: &'j [Arc<Limit>],
    ) -> SmallVec<[Fact<'j>; 4]> {
        let facts = self.reported(claims, limits).map(|(charge, outcome)| Fact {
            limit: charge.limit,
            standing: &outcome.standing,
            cost: charge.cost,
            violated: outcome.refuses(),
            key: claims.key(charge),
        });
        facts.collect()
    }

    pub fn outcome(&self, place: usize) -> &'static str {
        self.outcomes().get(place).map_or("unasked", Outcome::word)
    }
}
