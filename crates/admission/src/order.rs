//! The order of admission, without I/O: each step says what must be done next, and the driver of it
//! does that, with the body and the clock that it has.
//!
//! 1. What decides is read from the body, where the route or its limits ask for it.
//! 2. The caller is identified, and the claims are found. Before a signature is verified, which costs
//!    far more than a bucket, the limits that need none are looked at.
//! 3. All claims are charged or none: those of the route's own target, or of the next one that takes
//!    what limits of the target before it refuse.
//! 4. A request that only reservations of others refuse waits in line for them, and draws again; one whose
//!    units are promised is held until they are due (both by `max_wait`).
//! 5. A caller that its identity refuses is refused only now: it was charged, too.

use std::sync::Arc;

use http::StatusCode;

use crate::under_way::Place;
use crate::{Account, Judged, RequestView, UnderWay, denial};
use tollgate_limit::Timestamp;
use tollgate_limiter::{Deadline, Deciding, Decision, Denied, Limiter, Unavailable};
use tollgate_policy::{Claimed, Claims, Identified, IdentityRefusal, WantedFacts};
use tollgate_store::clock::Clock;

/// What must be done next.
#[derive(Debug)]
pub enum Step {
    /// Read of the body what it is asked for, and tell the view ([`RequestView::read`]).
    Read(WantedFacts),
    Look,
    /// Draw, and wait for what [`Admission::draw`] returns.
    Draw,
    Wait,
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
    Unavailable(Unavailable),
}

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
    /// Its places at the buckets that it would wait for; empty for most requests.
    places: Vec<Place>,
    /// When it began to wait in line, and when it last drew after that.
    waits_since: Option<Timestamp>,
    drew_again: Option<Timestamp>,
}

/// What a step is taken with.
struct Turn<'t, 'd, 'r> {
    request: &'t RequestView<'d, 'r>,
    /// The one that looks and draws.
    limiter: &'t Limiter,
    /// The moment at which what the last step asked for was done.
    now: Timestamp,
}

/// What was asked for last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Arrived,
    /// A look at the limits of a target.
    Looking,
    Drawing,
    /// A wait in the line of the place with this number.
    Waiting(usize),
    Holding,
}

impl Admission {
    /// Goes on with the request. `limiter`: the one that looks and draws; `now`: the moment at which what
    /// the last step asked for was done.
    pub fn step(
        &mut self,
        account: &mut Account,
        request: &RequestView<'_, '_>,
        limiter: &Limiter,
        now: Timestamp,
    ) -> Step {
        let turn = &Turn {
            request,
            limiter,
            now,
        };
        match self.stage {
            Stage::Arrived => self.identify(account, turn),
            Stage::Looking => self.looked(account, turn),
            Stage::Drawing => self.drawn(account, turn),
            Stage::Waiting(_) => self.draw_again(account, now),
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

    pub const fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    fn identify(&mut self, account: &mut Account, turn: &Turn<'_, '_, '_>) -> Step {
        let request = turn.request;
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
            Claimed::Complete => self.draw_first(account, turn),
            Claimed::Refused(refusal) => self.refuse_charged(Refusal::Unidentified(refusal)),
            Claimed::Unverified if account.claims.is_empty() => self.verify(account, turn),
            Claimed::Unverified => self.look_next(),
        }
    }

    fn look_next(&mut self) -> Step {
        self.stage = Stage::Looking;
        Step::Look
    }

    /// Looks whether the limits without a signature would admit the request, uncharged.
    pub async fn look(&mut self, account: &mut Account, limiter: &Limiter) {
        let list = account.claims.list(limiter.limits());
        let looked = limiter.look(&list, account.at, &account.deadline).await;
        if let Err(denied) = looked {
            account.judged = Judged::Denied(denied);
        }
    }

    fn looked(&mut self, account: &mut Account, turn: &Turn<'_, '_, '_>) -> Step {
        let Judged::Denied(_) = account.judged else {
            return self.verify(account, turn);
        };
        if self.pass_on(account, turn.request) {
            return self.look_next();
        }
        // No target takes the request, so no draw counts the refusals.
        let (at, limiter) = (account.at, turn.limiter);
        let count = |claims: &Claims, denied: &mut Denied| {
            limiter.count_refusal(&claims.list(limiter.limits()), denied, at);
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
    fn verify(&mut self, account: &mut Account, turn: &Turn<'_, '_, '_>) -> Step {
        let request = turn.request;
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
            Ok(()) => self.draw_first(account, turn),
            Err(refusal) => self.refuse_charged(Refusal::Unidentified(refusal)),
        }
    }

    fn draw_next(&mut self) -> Step {
        self.stage = Stage::Drawing;
        Step::Draw
    }

    /// Draws for a target for the first time, or waits behind others for one of its buckets.
    fn draw_first(&mut self, account: &mut Account, turn: &Turn<'_, '_, '_>) -> Step {
        let Turn { request, now, .. } = *turn;
        let places = |under_way: &Arc<UnderWay>| under_way.places(&account.claims, request.policy);
        self.places = request.under_way.map(places).unwrap_or_default();
        if self.places.iter().any(Place::may_wait) {
            account.deadline.ask_always();
        }
        match self.places.iter_mut().position(Place::join_behind) {
            Some(place) => {
                self.waits_since.get_or_insert(now);
                self.stage = Stage::Waiting(place);
                Step::Wait
            }
            None => {
                self.places.iter_mut().for_each(Place::draw);
                self.draw_next()
            }
        }
    }

    /// Waits in line until the request may draw again, at most as long as its limit says.
    pub async fn wait(&mut self, clock: &Clock) {
        if let (Stage::Waiting(place), Some(since)) = (self.stage, self.waits_since) {
            let place = &self.places[place];
            place.turn(clock, since.after(place.max_wait)).await;
        }
    }

    /// Draws after a wait: at another moment, and with the time of a new visit to the store.
    fn draw_again(&mut self, account: &mut Account, now: Timestamp) -> Step {
        self.places.iter_mut().for_each(Place::draw);
        self.drew_again = Some(now);
        account.deadline = Deadline::default();
        account.deadline.ask_always();
        self.draw_next()
    }

    /// Has a request wait that is refused, if it may get the units of all limits that refuse it.
    fn wait_in_line(&mut self, account: &Account, now: Timestamp) -> Option<Step> {
        let denied = account.judged.denied().filter(|one| !one.is_blocked())?;
        let since = self.waits_since.unwrap_or(now);
        let mut first = None;
        for claim in denied.refused() {
            let at = self.places.iter().position(|place| place.claim == claim)?;
            let (place, standing) = (&mut self.places[at], &denied.outcomes()[claim].standing);
            if !place.may_get(standing, now, since.after(place.max_wait)) {
                return None;
            }
            first = first.or(Some((at, standing)));
        }
        let (at, standing) = first?;
        for (other, place) in self.places.iter_mut().enumerate() {
            if other != at {
                place.leave(None);
            }
        }
        if !self.places[at].wait_for(standing, now) {
            return None;
        }
        self.waits_since = Some(since);
        self.stage = Stage::Waiting(at);
        Some(Step::Wait)
    }

    /// Notes what an admitted request reserves, and leaves the line.
    fn granted(&mut self, account: &mut Account, request: &RequestView<'_, '_>, now: Timestamp) {
        if let (Some(under_way), None) = (request.under_way, &self.refusal) {
            account.reserve(request.policy, under_way, now);
        }
        for mut place in self.places.drain(..) {
            let standing = &account.judged.outcomes()[place.claim].standing;
            place.leave(Some((standing, now)));
        }
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
        let list = claims.list(limiter.limits());
        let at = self.drew_again.unwrap_or(*at);
        let deciding = match self.places.is_empty() {
            true => limiter.decide(&list, at),
            false => limiter.try_decide(&list, at),
        };
        match deciding {
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

    fn drawn(&mut self, account: &mut Account, turn: &Turn<'_, '_, '_>) -> Step {
        let Turn {
            request,
            limiter,
            now,
        } = *turn;
        if let Some(unavailable) = self.unavailable.take() {
            return Step::Refuse(Refusal::Unavailable(unavailable));
        }
        if let Judged::Permitted(permit) = &account.judged {
            let hold = permit.hold();
            self.granted(account, request, now);
            if hold.0 == 0 {
                return self.admit(account, request);
            }
            self.stage = Stage::Holding;
            return Step::Hold(now.after(hold));
        }
        if let Some(wait) = self.wait_in_line(account, now) {
            return wait;
        }
        let Judged::Denied(denied) = &mut account.judged else {
            return Step::Draw;
        };
        if !self.places.is_empty() {
            let list = account.claims.list(limiter.limits());
            limiter.count_refusal(&list, denied, now);
            self.places.clear();
        }
        if self.refusal.is_none() && self.pass_on(account, request) {
            self.draw_first(account, turn)
        } else {
            self.refuse(account)
        }
    }

    /// Makes the claims of the request those of the next target of its route, if that takes what
    /// limits of this one refuse. Nothing was charged for a target that refuses.
    fn pass_on(&mut self, account: &mut Account, request: &RequestView<'_, '_>) -> bool {
        let Judged::Denied(denied) = &account.judged else {
            return false;
        };
        let target = account.target;
        let next = request.next_target(target);
        let next = next.filter(|over| denial::passes_on(denied, &account.claims, over));
        let claims = next
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

    /// Admits a request, or refuses it for another reason than a limit: its charges stay.
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
        }
        Step::Admit
    }
}

#[cfg(test)]
mod tests;
