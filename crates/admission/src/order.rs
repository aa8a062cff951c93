//! The order of admission, without I/O: each step says what must be done next, and the driver of it
//! does that, with the body and the clock that it has.
//!
//! 1. What decides is read from the body, where the route or its limits ask for it.
//! 2. The caller is identified, and the claims are found. Before a signature is verified, which costs
//!    far more than a bucket, the limits that need none are looked at.
//! 3. All claims are charged or none: those of the route's own target, or of the next one that takes
//!    what limits of the target before it refuse.
//! 4. A request is held until its units are due (`max_wait`).
//! 5. A caller that its identity refuses is refused only now: it was charged, too.

use http::StatusCode;

use crate::{Account, Judged, RequestView, denial};
use tollgate_limit::Timestamp;
use tollgate_limiter::{Deciding, Decision, Denied, Limiter, Unavailable};
use tollgate_policy::{Claimed, Claims, Identified, IdentityRefusal, WantedFacts};

/// What must be done next.
#[derive(Debug)]
pub enum Step {
    /// Read of the body what it is asked for, and tell the view ([`RequestView::read`]).
    Read(WantedFacts),
    Look,
    /// Draw, and wait for what [`Admission::draw`] returns.
    Draw,
    Hold(Timestamp),
    Admit,
    Refuse(Refusal),
}

#[derive(Debug)]
pub enum Refusal {
    NoRoute,
    /// It was turned away ([`RequestView::turned_away`]); the charge for that stays.
    TurnedAway,
    Unidentified(IdentityRefusal),
    /// Its limits deny it, as the account says.
    Denied,
    /// A store does not respond, and its limit needs it.
    Unavailable(Unavailable),
}

/// The admission of one request.
#[derive(Debug, Default)]
pub struct Admission {
    /// Who sends the request, as far as that is known.
    pub who: Identified,
    stage: Stage,
    /// Why the request is refused once it was charged.
    refusal: Option<Refusal>,
    unavailable: Option<Unavailable>,
    /// The targets whose limits refused the request, with what it would have drawn there.
    targets: Vec<(usize, Claims, Denied)>,
}

/// What was asked for last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Arrived,
    /// A look at the limits of a target.
    Looking,
    Drawing,
    Holding,
}

impl Admission {
    /// Goes on with the request. `limiter`: the one that looks and draws; `now`: the moment at which
    /// what the last step asked for was done.
    pub fn step(
        &mut self,
        account: &mut Account,
        request: &RequestView<'_, '_>,
        limiter: &Limiter,
        now: Timestamp,
    ) -> Step {
        match self.stage {
            Stage::Arrived => self.identify(account, request),
            Stage::Looking => self.looked(account, request, limiter),
            Stage::Drawing => self.drawn(account, request, now),
            Stage::Holding => self.admit(account, request),
        }
    }

    /// Charges a request that is turned away to the limits by address and for everyone that count
    /// such refusals: a client that sends many is limited.
    fn turn_away(
        &mut self,
        account: &mut Account,
        request: &RequestView<'_, '_>,
        status: StatusCode,
    ) -> Step {
        let Some(matched) = &request.matched else {
            return Step::Refuse(Refusal::TurnedAway);
        };
        account.route = Some(matched.route);
        let (described, seconds) = (request.described, request.seconds);
        request
            .policy
            .claim_refused(&mut account.claims, matched, described, status, seconds);
        self.refuse_charged(Refusal::TurnedAway)
    }

    /// Whether the request is refused even if its limits admit it.
    pub const fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    fn identify(&mut self, account: &mut Account, request: &RequestView<'_, '_>) -> Step {
        if let Some(status) = request.turned_away {
            return self.turn_away(account, request, status);
        }
        if request.is_unread() {
            return Step::Read(request.asked);
        }
        let Some(matched) = &request.matched else {
            return Step::Refuse(Refusal::NoRoute);
        };
        account.route = Some(matched.route);
        match request.policy.claim(
            &mut self.who,
            &mut account.claims,
            matched,
            request.described,
            request.length,
            request.seconds,
        ) {
            Claimed::Complete => self.draw_next(),
            Claimed::Refused(refusal) => self.refuse_charged(Refusal::Unidentified(refusal)),
            Claimed::Unverified if account.claims.is_empty() => self.verify(account, request),
            Claimed::Unverified => self.look_next(),
        }
    }

    fn look_next(&mut self) -> Step {
        self.stage = Stage::Looking;
        Step::Look
    }

    /// Looks whether the limits that need no signature would admit the request, without charging
    /// them.
    pub async fn look(&mut self, account: &mut Account, limiter: &Limiter) {
        let list = account.claims.list(limiter.limits());
        let looked = limiter.look(&list, account.at, &account.deadline).await;
        if let Err(denied) = looked {
            account.judged = Judged::Denied(denied);
        }
    }

    fn looked(
        &mut self,
        account: &mut Account,
        request: &RequestView<'_, '_>,
        limiter: &Limiter,
    ) -> Step {
        let Judged::Denied(_) = account.judged else {
            return self.verify(account, request);
        };
        if self.pass_on(account, request) {
            return self.look_next();
        }
        // No target takes the request, so no draw counts the refusals.
        let at = account.at;
        let count = |claims: &Claims, denied: &mut Denied| {
            limiter.count_look(&claims.list(limiter.limits()), denied, at);
        };
        if let Judged::Denied(denied) = &mut account.judged {
            count(&account.claims, denied);
        }
        for (_, claims, denied) in &mut self.targets {
            count(claims, denied);
        }
        self.refuse(account)
    }

    /// Verifies the signature. The request is decided about from its route's own target on.
    fn verify(&mut self, account: &mut Account, request: &RequestView<'_, '_>) -> Step {
        self.targets.clear();
        if account.target > 0 {
            account.target = 0;
            account.claims = request.claims(&self.who, 0).unwrap_or_default();
        }
        let Some(matched) = &request.matched else {
            return Step::Refuse(Refusal::NoRoute);
        };
        match request.policy.claim_verified(
            &mut self.who,
            &mut account.claims,
            matched,
            request.described,
            request.length,
            request.seconds,
        ) {
            Ok(()) => self.draw_next(),
            Err(refusal) => self.refuse_charged(Refusal::Unidentified(refusal)),
        }
    }

    fn draw_next(&mut self) -> Step {
        self.stage = Stage::Drawing;
        Step::Draw
    }

    fn refuse_charged(&mut self, refusal: Refusal) -> Step {
        self.refusal = Some(refusal);
        self.draw_next()
    }

    /// Draws. What it returns must be waited for: the shared store is asked.
    #[must_use = "the draw may not be over"]
    pub fn draw<'a>(
        &'a mut self,
        account: &'a mut Account,
        limiter: &'a Limiter,
    ) -> Option<impl Future<Output = ()> + 'a> {
        let Account {
            at,
            deadline,
            claims,
            judged,
            ..
        } = account;
        match limiter.decide(&claims.list(limiter.limits()), *at) {
            Deciding::Decided(decision) => {
                self.judged(judged, decision);
                None
            }
            Deciding::Asking(draw) => Some(async move {
                let decision = draw.ask(deadline).await;
                self.judged(judged, decision);
            }),
        }
    }

    fn judged(&mut self, judged: &mut Judged, decision: Decision) {
        match decision {
            Decision::Allow(permit) => *judged = Judged::Permitted(permit),
            Decision::Deny(denied) => *judged = Judged::Denied(denied),
            Decision::Unavailable(unavailable) => self.unavailable = Some(unavailable),
        }
    }

    fn drawn(
        &mut self,
        account: &mut Account,
        request: &RequestView<'_, '_>,
        now: Timestamp,
    ) -> Step {
        if let Some(unavailable) = self.unavailable.take() {
            return Step::Refuse(Refusal::Unavailable(unavailable));
        }
        match &account.judged {
            Judged::Permitted(permit) if permit.hold().0 > 0 => {
                self.stage = Stage::Holding;
                Step::Hold(now.after(permit.hold()))
            }
            Judged::Permitted(_) => self.admit(account, request),
            Judged::Denied(_) => {
                if self.refusal.is_none() && self.pass_on(account, request) {
                    Step::Draw
                } else {
                    self.refuse(account)
                }
            }
            Judged::Not => Step::Draw,
        }
    }

    /// Makes the claims of the request those of the next target of its route, if that takes what
    /// limits of this one refuse. Nothing was charged for a target that refuses.
    fn pass_on(&mut self, account: &mut Account, request: &RequestView<'_, '_>) -> bool {
        let Judged::Denied(denied) = &account.judged else {
            return false;
        };
        let target = account.target;
        let claims = request
            .next_target(target)
            .filter(|over| denial::passes_on(denied, &account.claims, over))
            .and_then(|_| request.claims(&self.who, target + 1))
            // A limit that refuses the model charges nothing.
            .filter(|claims| !claims.refuses_model());
        let Some(claims) = claims else {
            return false;
        };
        account.target = target + 1;
        let refused = std::mem::replace(&mut account.claims, claims);
        if let Judged::Denied(denied) = std::mem::take(&mut account.judged) {
            self.targets.push((target, refused, denied));
        }
        true
    }

    /// Refuses a request that its last target refuses, too, by the refusal that ends first: a lone
    /// caller that waits for it is admitted.
    fn refuse(&mut self, account: &mut Account) -> Step {
        for (target, claims, denied) in self.targets.drain(..).rev() {
            let known = account.judged.denied();
            if known.is_none_or(|known| !denial::ends_before(known, &denied)) {
                account.target = target;
                account.claims = claims;
                account.judged = Judged::Denied(denied);
            }
        }
        Step::Refuse(Refusal::Denied)
    }

    /// Admits a request that its limits admit, or refuses it for another reason: what it was charged
    /// stays charged.
    fn admit(&mut self, account: &mut Account, request: &RequestView<'_, '_>) -> Step {
        account.keep_charges();
        if let Some(refusal) = self.refusal.take() {
            return Step::Refuse(refusal);
        }
        if let Some(route) = account.route {
            let limits = request.policy.routes[route]
                .limits_of(account.target)
                .iter();
            account.owe(request.policy, limits.map(|limit| limit.rule));
            if let Some(under_way) = request.under_way {
                account.reserve(request.policy, under_way);
            }
        }
        Step::Admit
    }
}

#[cfg(test)]
mod tests;
