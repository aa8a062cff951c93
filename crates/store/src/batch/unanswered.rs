//! Draws that the store has not answered in time. If their requests are refused, the units that the
//! store turns out to have charged are given back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::{Adjust, Correction, LaneState, Reply, Wants};
use tollgate_limit::{Corrects, Draw};

/// A draw that the store may have made. The request and the call share it, because the request
/// knows whether it was admitted without the store, and the call learns what was drawn.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    state: Mutex<DrawState>,
    /// The refunds of leased units that the request took beside the draw.
    leased: Mutex<Vec<Correction>>,
}

#[derive(Debug, Default)]
enum DrawState {
    /// The call has no answer yet, and the request may have been admitted.
    #[default]
    Waits,
    /// The request was refused, or its caller is gone.
    Forgone,
    /// Units were charged, which these corrections refund, and the request may have been admitted.
    Granted(Vec<Correction>),
    /// No answer comes any more.
    Unknown,
}

impl Unanswered {
    /// Records the refunds of leased units that the request took beside the draw, to be made if it is refused.
    pub(crate) fn keep_leased(&self, refunds: Vec<Correction>) {
        *self.leased.lock() = refunds;
    }

    /// The request was refused, or its caller is gone: what is known to be charged is refunded.
    pub(super) fn forgo(&self, shared: &LaneState, mut refund: impl FnMut(Correction)) {
        let leased = std::mem::take(&mut *self.leased.lock());
        leased.into_iter().for_each(&mut refund);
        let before = std::mem::replace(&mut *self.state.lock(), DrawState::Forgone);
        match before {
            DrawState::Waits | DrawState::Forgone => {}
            DrawState::Granted(refunds) => refunds.into_iter().for_each(refund),
            DrawState::Unknown => shared.count_unknown_draw(),
        }
    }

    /// The call was answered: units were charged that `refunds` give back. Returns those to be made.
    pub(super) fn granted(&self, refunds: Vec<Correction>) -> Vec<Correction> {
        let mut state = self.state.lock();
        if matches!(*state, DrawState::Forgone) {
            return refunds;
        }
        *state = DrawState::Granted(refunds);
        Vec::new()
    }

    /// The call will not be answered. Returns whether the request was refused.
    pub(super) fn lost(&self) -> bool {
        let mut state = self.state.lock();
        let was_refused = matches!(*state, DrawState::Forgone);
        if !was_refused {
            *state = DrawState::Unknown;
        }
        was_refused
    }
}

impl LaneState {
    /// Gives back what was drawn for a request that does not take its reply.
    pub(super) fn untaken(&self, reply: &Reply) {
        if let Ok(draw) = &reply.outcome {
            self.give_places_back(&reply.wants, draw);
            refunds(&reply.wants, draw).for_each(|refund| self.correct(refund));
        } else if let Some(draw) = &reply.unanswered {
            draw.forgo(self, |refund| self.correct(refund));
        }
    }

    /// A request was refused for which the store may have charged units, and nothing will tell.
    pub(super) fn count_unknown_draw(&self) {
        self.counters.draws_unknown.fetch_add(1, Ordering::Relaxed);
        self.warn_of_lost("a request was refused without its response, and may be charged there");
    }
}

/// The refunds of what `draw` charged, other than places.
pub(super) fn refunds(wants: &Wants, draw: &Draw) -> impl Iterator<Item = Correction> {
    let corrects = Corrects::draw_of(draw.at);
    let standings = wants.iter().zip(&draw.standings);
    let charged = standings.filter(|(wanted, standing)| {
        let is_charged = draw.granted && standing.verdict.is_allow() && wanted.cost > 0;
        is_charged && !wanted.shape.holds()
    });
    charged.map(move |(wanted, standing)| {
        let algorithm = wanted.shape.algorithm();
        let change = algorithm.refund(wanted.cost, standing.window_end);
        let adjust = Adjust::Change(change, corrects);
        Correction::of(wanted.name, Arc::clone(&wanted.shape), adjust)
    })
}
