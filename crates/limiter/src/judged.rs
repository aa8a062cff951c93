//! The decision of the limits on a request, and on each of its claims: what a response reports and
//! what a log says.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Denied, Permit};
use tollgate_limit::{Algorithm, Limit, Micros, Role, Standing, Verdict, words};
use tollgate_policy::route::OverLimit;
use tollgate_policy::{Charge, Claims, Policy};
use tollgate_response::quota_headers::Fact;
use tollgate_response::{Refused, SpentBudget};

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

impl Denied {
    /// The contents of the refusal of a request with these `claims`.
    pub fn contents(&self, claims: &Claims, policy: &Policy) -> Refused {
        let refusing = || {
            self.refused()
                .map(|place| (place, &policy.limits[claims.charges()[place].limit]))
        };
        Refused {
            violated: refusing()
                .map(|(_, limit)| Arc::clone(&limit.name))
                .collect(),
            retry_after: self.retry_after(),
            blocked: self.is_blocked(),
            budget: self
                .refused()
                .any(|place| policy.rules[claims.charges()[place].rule].is_budget()),
            by_penalty: self.is_penalty(),
            budgets: self.budgets(claims, policy),
            never_fits: refusing().any(|(place, limit)| {
                // A concurrency limit has no retry time either, but its slots become free.
                matches!(
                    self.standings()[place].verdict,
                    Verdict::Deny { retry_after: None }
                ) && !matches!(limit.algorithm, Algorithm::InFlight(_))
            }),
        }
    }

    /// The budgets that refuse a request with these `claims`: limits that count money, or say that a
    /// budget is used up. A block is none of them.
    fn budgets(&self, claims: &Claims, policy: &Policy) -> Vec<SpentBudget> {
        let mut budgets = Vec::new();
        for place in self.refused().filter(|_| !self.is_blocked()) {
            let charge = &claims.charges()[place];
            let (rule, limit) = (&policy.rules[charge.rule], &policy.limits[charge.limit]);
            if !rule.is_budget() && limit.currency.is_none() {
                continue;
            }
            let Some(quota) = limit.rate_words() else {
                continue;
            };
            let standing = &self.standings()[place];
            let in_words = |units| words::units(units, limit.currency.as_deref());
            // Under a ceiling, what a request states above the highest cost, or unreadably, counts
            // as one unit more than the limit can ever grant: that is no cost of the request.
            let beyond = limit.algorithm.greatest_cost().saturating_add(1);
            let is_known = charge.cost < u64::MAX && !(rule.ceiling && charge.cost == beyond);
            budgets.push(SpentBudget {
                limit: Arc::clone(&limit.name),
                quota,
                left: rule
                    .scope
                    .is_of_caller()
                    .then(|| in_words(standing.remaining)),
                cost: is_known.then(|| in_words(charge.cost)),
                reset: standing.reset,
            });
        }
        budgets
    }

    /// Whether the request passes on to the next target of its route: a limit refuses that this
    /// target replaces. A block by an operator is for all targets.
    pub fn passes_on(&self, claims: &Claims, over: &OverLimit) -> bool {
        let replaced = |place: usize| over.instead_of.contains(&claims.charges()[place].rule);
        !self.is_blocked() && self.refused().any(replaced)
    }

    /// Whether a lone caller that retries is admitted earlier by this refusal's limits than by
    /// those of `other`, another target's. The refusal that ends first is the one that is sent.
    pub fn ends_before(&self, other: &Self) -> bool {
        match (self.retry_after(), other.retry_after()) {
            (Some(this), Some(other)) => this < other,
            (this, other) => this.is_some() && other.is_none(),
        }
    }

    /// Whether the refusal of a request with these `claims` sheds load for an upstream at its
    /// capacity, which is not the caller's fault.
    pub fn sheds_load(&self, claims: &Claims, limits: &[Arc<Limit>]) -> bool {
        !self.is_blocked()
            && self
                .refused()
                .all(|place| limits[claims.charges()[place].limit].algorithm.sheds_load())
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
