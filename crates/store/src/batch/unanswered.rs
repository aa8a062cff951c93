//! Draws that the store has not answered in time. If their requests are refused, the units that the
//! store turns out to have charged are given back.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Correction, LaneState, Reply, Wanted, Wants};
use crate::wire_form::WireForm;
use tollgate_limit::{Change, Corrects, Draw, Kind};

/// A draw that the store may have made. The request and the call share it, because the request
/// knows whether it was admitted without the store, and the call learns what was drawn.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    state: Mutex<DrawState>,
    /// The refunds of leased units that the request took beside the draw, to be made if it is refused.
    pub(crate) leased: Mutex<Vec<Correction>>,
}

#[derive(Debug, Default)]
pub(crate) enum DrawState {
    /// The call has no answer yet, and the request may have been admitted.
    #[default]
    Waits,
    /// The request was refused.
    Forgone,
    /// These units were charged, and the request may have been admitted.
    Granted(Box<(Wants, Draw)>),
    /// No answer comes any more.
    Unknown,
}

impl Unanswered {
    /// The request was refused. Returns what was known of its draw before.
    pub(crate) fn forgo(&self) -> DrawState {
        std::mem::replace(&mut *self.state.lock(), DrawState::Forgone)
    }

    /// The call was answered: the units were charged. Returns them if they are to be given back.
    pub(super) fn granted(&self, wants: Wants, draw: Draw) -> Option<(Wants, Draw)> {
        let mut state = self.state.lock();
        match *state {
            DrawState::Forgone => Some((wants, draw)),
            DrawState::Waits | DrawState::Granted(..) | DrawState::Unknown => {
                *state = DrawState::Granted(Box::new((wants, draw)));
                None
            }
        }
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
            self.give_units_back(&reply.wants, draw);
        } else if let Some(draw) = &reply.unanswered {
            self.forgo(draw);
        }
    }

    /// Gives back what `draw` charged, other than places of concurrency limits.
    pub(super) fn give_units_back(&self, wants: &Wants, draw: &Draw) {
        for (wanted, change) in charged(wants, draw) {
            let corrects = Corrects::draw_of(draw.at);
            self.settle(wanted.name, Arc::clone(&wanted.shape), change, corrects);
        }
    }

    /// A request was refused, or its caller is gone: what its draw has charged is given back.
    pub(super) fn forgo(&self, draw: &Unanswered) {
        match draw.forgo() {
            DrawState::Waits | DrawState::Forgone => {}
            DrawState::Granted(drawn) => self.give_units_back(&drawn.0, &drawn.1),
            DrawState::Unknown => self.count_unknown_draw(),
        }
    }

    /// A request was refused for which the store may have charged units, and nothing will tell.
    pub(crate) fn count_unknown_draw(&self) {
        let counter = &self.counters.draws_unknown;
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.warn_of_lost("a request was refused without its response, and may be charged there");
    }
}

/// The claims that `draw` charged, other than places, each with the refund of its units.
pub(super) fn charged<'w>(
    wants: &'w Wants,
    draw: &'w Draw,
) -> impl Iterator<Item = (&'w Wanted, Change)> {
    let standings = wants.iter().zip(&draw.standings);
    standings
        .filter(|(wanted, standing)| {
            let is_charged = draw.granted && standing.verdict.is_allow() && wanted.cost > 0;
            is_charged && !wanted.shape.holds()
        })
        .map(|(wanted, standing)| {
            let units = wanted.cost;
            let window_end = standing.window_end;
            // Units come back only to the window that they were taken from.
            let change = match is_windowed(&wanted.shape) && window_end.as_micros() > 0 {
                true => Change::RefundWithin { units, window_end },
                false => Change::Refund { units },
            };
            (wanted, change)
        })
}

fn is_windowed(shape: &WireForm) -> bool {
    let kind = shape.algorithm().kind();
    matches!(
        kind,
        Kind::Interval | Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog
    )
}
