//! The decision of the limits on a request, and on each of its claims.

use tollgate_limit::{Micros, Standing, Verdict};
use tollgate_limiter::{Denied, Permit};
use tollgate_policy::Charge;

/// The decision of the limits.
pub(super) enum Judged {
    /// None: the limits were not asked, or did not answer.
    Not,
    Permitted(Permit),
    Denied(Denied),
}

impl Judged {
    pub(super) fn standings(&self) -> &[Standing] {
        match self {
            Self::Not => &[],
            Self::Permitted(permit) => permit.standings(),
            Self::Denied(denied) => denied.standings(),
        }
    }

    /// Whether no store was asked about the claim at `place`, so that its standing is meaningless.
    pub(super) fn is_unasked(&self, place: usize) -> bool {
        match self {
            Self::Not => true,
            Self::Permitted(permit) => permit.is_unasked(place),
            Self::Denied(denied) => denied.is_unasked(place),
        }
    }

    /// Whether the claim at `place` was granted because its store did not answer.
    pub(super) fn is_ungoverned(&self, place: usize) -> bool {
        matches!(self, Self::Permitted(permit) if permit.is_ungoverned(place))
    }

    pub(super) fn retry_after(&self) -> Option<Micros> {
        if let Self::Denied(denied) = self {
            denied.retry_after()
        } else {
            None
        }
    }

    /// The word that the log writes for the claim at `place`.
    pub(super) fn outcome(&self, place: usize, charge: &Charge) -> &'static str {
        if self.is_unasked(place) && !self.is_ungoverned(place) {
            return "unasked";
        }
        let standing = self.standings().get(place);
        let allowed =
            standing.is_some_and(|standing| matches!(standing.verdict, Verdict::Allow { .. }));
        match (allowed, charge.enforced) {
            (true, _) if self.is_ungoverned(place) => "ungoverned",
            (true, _) => "allow",
            (false, true) => "deny",
            (false, false) => "shadow_deny",
        }
    }
}
