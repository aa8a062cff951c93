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

    pub(super) fn retry_after(&self) -> Option<Micros> {
        if let Self::Denied(denied) = self {
            denied.retry_after()
        } else {
            None
        }
    }

    /// The word that the log writes for the claim at `place`.
    pub(super) fn outcome(&self, place: usize, charge: &Charge) -> &'static str {
        match self {
            Self::Not => "unasked",
            Self::Denied(denied) => denied_outcome(denied, place, charge),
            Self::Permitted(permit) => {
                let standing = permit.standings().get(place);
                if permit.is_ungoverned(place) && standing.is_some_and(allows) {
                    "ungoverned"
                } else if permit.is_unasked(place) {
                    "unasked"
                } else {
                    word(standing, charge)
                }
            }
        }
    }
}

/// The same for a request that a limit refused.
pub(crate) fn denied_outcome(denied: &Denied, place: usize, charge: &Charge) -> &'static str {
    if denied.is_unasked(place) {
        "unasked"
    } else {
        word(denied.standings().get(place), charge)
    }
}

fn word(standing: Option<&Standing>, charge: &Charge) -> &'static str {
    match (standing.is_some_and(allows), charge.enforced) {
        (true, _) => "allow",
        (false, true) => "deny",
        (false, false) => "shadow_deny",
    }
}

fn allows(standing: &Standing) -> bool {
    matches!(standing.verdict, Verdict::Allow { .. })
}
