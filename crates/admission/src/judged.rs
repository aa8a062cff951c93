//! The decision of the limits on a request, and on each of its claims: what a response reports and
//! what a log says.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Limit, Micros, Role, Standing, Verdict};
use tollgate_limiter::{Denied, Permit};
use tollgate_policy::{Charge, Claims};
use tollgate_response::quota_headers::Fact;

/// The decision of the limits.
#[derive(Debug, Default)]
pub enum Judged {
    /// None: the limits were not asked, or did not respond.
    #[default]
    Not,
    /// The limits admit the request.
    Permitted(Permit),
    /// A limit refuses it.
    Denied(Denied),
}

impl Judged {
    /// The standing of each bucket, in the order of the claims.
    pub fn standings(&self) -> &[Standing] {
        match self {
            Self::Not => &[],
            Self::Permitted(permit) => permit.standings(),
            Self::Denied(denied) => denied.standings(),
        }
    }

    /// Whether no store was asked about the claim at `place`, so that its standing is meaningless.
    pub fn is_unasked(&self, place: usize) -> bool {
        match self {
            Self::Not => true,
            Self::Permitted(permit) => permit.is_unasked(place),
            Self::Denied(denied) => denied.is_unasked(place),
        }
    }

    /// The standing of the bucket of the claim at `place`; `None`: no store was asked about it.
    fn asked(&self, place: usize) -> Option<&Standing> {
        let standing = self.standings().get(place);
        standing.filter(|_| !self.is_unasked(place))
    }

    /// The refusal, if the limits refuse.
    pub const fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            Self::Not | Self::Permitted(_) => None,
        }
    }

    /// The permit, if the limits admit the request.
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

    /// Whether a limit refuses the request.
    pub fn refuses(&self) -> bool {
        self.denied()
            .is_some_and(|denied| denied.refused().next().is_some())
    }

    /// The charges to report, with their places: those on enforced live limits that were asked, in
    /// the order of the route.
    #[inline]
    pub fn reported<'j>(
        &'j self,
        claims: &'j Claims,
        limits: &'j [Arc<Limit>],
    ) -> impl Iterator<Item = (usize, &'j Charge, &'j Standing)> {
        let all = claims.charges().iter().zip(self.standings()).enumerate();
        let told = |place, charge: &Charge| {
            charge.enforced && limits[charge.limit].role == Role::Live && !self.is_unasked(place)
        };
        all.filter(move |(place, (charge, _))| told(*place, charge))
            .map(|(place, (charge, standing))| (place, charge, standing))
    }

    /// The contents of the quota headers.
    #[inline]
    pub fn facts<'j>(
        &'j self,
        claims: &'j Claims,
        limits: &'j [Arc<Limit>],
    ) -> SmallVec<[Fact<'j>; 4]> {
        // Pushed one by one: there are few, and `collect` into a small vector checks for capacity
        // at every step.
        let mut facts = SmallVec::new();
        let denied = self.denied();
        self.reported(claims, limits)
            .for_each(|(place, charge, standing)| {
                let violated = denied.is_some_and(|denied| denied.is_refused_by(place));
                facts.push(Fact {
                    limit: charge.limit,
                    standing,
                    cost: charge.cost,
                    violated,
                });
            });
        facts
    }

    /// The word that the log writes for the claim at `place`.
    pub fn outcome(&self, place: usize, charge: &Charge) -> &'static str {
        let allows = |place| self.standings().get(place).is_some_and(allows);
        match self {
            Self::Permitted(permit) if permit.is_ungoverned(place) && allows(place) => "ungoverned",
            _ => outcome_word(self.asked(place), charge.enforced),
        }
    }
}

/// The word for the decision about one claim, in logs and explanations. `asked`: the standing of its
/// bucket; `None`: no bucket was asked. `enforced`: whether its refusal refuses the request.
pub fn outcome_word(asked: Option<&Standing>, enforced: bool) -> &'static str {
    match (asked.map(allows), enforced) {
        (None, _) => "unasked",
        (Some(true), _) => "allow",
        (Some(false), true) => "deny",
        (Some(false), false) => "shadow_deny",
    }
}

fn allows(standing: &Standing) -> bool {
    matches!(standing.verdict, Verdict::Allow { .. })
}
