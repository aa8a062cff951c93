//! Finds how many concurrent requests an upstream can handle, from its response times.
//!
//! This is the gradient controller of Netflix's concurrency-limits (GradientLimit; "Performance
//! Under Load", Netflix Technology Blog, 2018), which follows TCP Vegas (Brakmo and Peterson, "TCP
//! Vegas: End to End Congestion Avoidance on a Global Internet", IEEE JSAC 13(8), 1995): responses
//! that take longer than before were queued. Losses (timeouts, 503) lower the limit by a factor, as
//! in Chiu and Jain ("Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in
//! Computer Networks", 1989). It computes in integers: fixed point of 1/1024.
//!
//! Responses are collected in windows. At the end of each window:
//! ```text
//! gradient = clamp(1.5 x unloaded time / this window's time, 1/2, 1)
//! limit   += 0.2 x (limit x gradient + headroom - limit)
//! ```
//! unless fewer than half of the places were in use, because then the times say nothing about the
//! limit. The unloaded time is the lowest time measured. Twice a minute the limit is halved for a
//! moment to measure it again. A mean that follows the load would eventually treat the queue as
//! normal (the first version of this file did: 349 places for 10).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use tollgate_limit::{Micros, Timestamp};
use tollgate_store::local::Places;

/// The controller of one concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Adaptive {
    least: u64,
    most: u64,
    /// The places in force, in 1/1024.
    limit: u64,
    /// The time of a response that did not queue, in 1/1024 microsecond; 0: not known yet.
    unloaded: u64,
    window: Window,
    phase: Phase,
}

/// Whether the controller is adjusting the limit or measuring the unloaded time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// This many windows remain until the next measurement.
    Finding { left: u32 },
    /// The limit is halved until queued requests have a response; then it returns to `limit`.
    Draining { limit: u64 },
    /// The limit is halved, and response times are the unloaded time.
    Measuring { limit: u64 },
}

/// Measurements since the last change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    since: Timestamp,
    answers: u64,
    /// The sum of their times, microseconds.
    took: u64,
    /// The highest number in flight.
    busy: u64,
    lost: bool,
}

impl Adaptive {
    /// A controller with between `least` and `most` places, starting with `first`.
    pub(super) fn new(least: u64, most: u64, first: u64) -> Self {
        let least = least.max(1);
        let most = most.clamp(least, PLACES_MAX);
        Self {
            least,
            most,
            limit: first.clamp(least, most) * ONE,
            unloaded: 0,
            window: Window::default(),
            phase: Phase::Finding { left: PROBE },
        }
    }

    /// The same controller between other bounds.
    pub(super) fn within(&self, least: u64, most: u64) -> Self {
        let Self { least, most, .. } = Self::new(least, most, 1);
        let mut within = Self {
            least,
            most,
            ..self.clone()
        };
        within.set(self.limit);
        within
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit / ONE
    }

    /// What the controller has found; a measurement in progress does not lower it.
    pub(super) fn learnt(&self) -> Places {
        let limit = match self.phase {
            Phase::Finding { .. } => self.limit,
            Phase::Draining { limit } | Phase::Measuring { limit } => limit,
        };
        Places {
            limit,
            unloaded: self.unloaded,
        }
    }

    pub(super) fn relearn(&mut self, places: Places) {
        *self = Self::new(self.least, self.most, 1);
        self.unloaded = places.unloaded.min(TOOK_MAX * ONE);
        self.set(places.limit);
    }

    /// Records a response after `took`, with `in_flight` requests outstanding (including this one).
    /// `lost`: there was none (a timeout, a refused connection, a 503). Returns the new limit.
    pub(super) fn answered(
        &mut self,
        now: Timestamp,
        took: Micros,
        in_flight: u64,
        lost: bool,
    ) -> u64 {
        if self.window.answers == 0 && !self.window.lost {
            self.window.since = now;
        }
        self.window.busy = self.window.busy.max(in_flight);
        if lost {
            self.window.lost = true;
        } else {
            self.window.answers += 1;
            self.window.took = self.window.took.saturating_add(took.0.clamp(1, TOOK_MAX));
        }
        let enough = self.window.answers >= ANSWERS_MIN || self.window.lost;
        if enough && now.since(self.window.since) >= WINDOW {
            let window = std::mem::take(&mut self.window);
            self.adjust(&window);
        }
        self.limit()
    }

    fn adjust(&mut self, window: &Window) {
        let took = window.took.saturating_mul(ONE) / window.answers.max(1);
        let left = match self.phase {
            Phase::Finding { left } => left,
            Phase::Draining { limit } => {
                self.phase = Phase::Measuring { limit };
                return;
            }
            Phase::Measuring { limit } => {
                if window.answers > 0 {
                    self.unloaded = took;
                }
                self.phase = Phase::Finding { left: PROBE };
                self.set(limit);
                return;
            }
        };
        if window.lost {
            self.set(self.limit / 10 * 9);
            return;
        }
        self.unloaded = if self.unloaded == 0 {
            took
        } else {
            self.unloaded.min(took)
        };
        if window.busy.saturating_mul(2) < self.limit() {
            return;
        }
        if left == 0 {
            self.phase = Phase::Draining { limit: self.limit };
            self.set(self.limit / 2);
            return;
        }
        self.phase = Phase::Finding { left: left - 1 };
        let gradient = (self.unloaded.saturating_mul(3) / 2).saturating_mul(ONE) / took.max(1);
        let gradient = gradient.clamp(ONE / 2, ONE);
        let wanted =
            self.limit / ONE * gradient + self.limit % ONE * gradient / ONE + HEADROOM * ONE;
        // Moves the limit by a fifth of the difference.
        self.set(self.limit - self.limit / 5 + wanted / 5);
    }

    fn set(&mut self, limit: u64) {
        self.limit = limit.clamp(self.least * ONE, self.most * ONE);
    }
}

/// The places of one adaptive limit, updated by every thread that forwards its requests. One
/// controller serves all keys of the limit.
#[derive(Debug)]
pub(super) struct PlacesFeedback {
    places: AtomicU64,
    controller: Mutex<Adaptive>,
}

impl PlacesFeedback {
    pub(super) fn new(controller: Adaptive) -> Self {
        Self {
            places: AtomicU64::new(controller.limit()),
            controller: Mutex::new(controller),
        }
    }

    pub(super) fn places(&self) -> u64 {
        self.places.load(Ordering::Relaxed)
    }

    pub(super) fn bounds(&self) -> (u64, u64) {
        let controller = self.controller.lock();
        (controller.least, controller.most)
    }

    /// The same feedback with other bounds.
    pub(super) fn within(&self, least: u64, most: u64) -> Self {
        Self::new(self.controller.lock().within(least, most))
    }

    pub(super) fn learnt(&self) -> Places {
        self.controller.lock().learnt()
    }

    pub(super) fn relearn(&self, places: Places) {
        let mut controller = self.controller.lock();
        controller.relearn(places);
        self.places.store(controller.limit(), Ordering::Relaxed);
    }

    /// Like [`Adaptive::answered`]. A response is skipped while another thread uses the controller,
    /// unless it was lost: the controller needs samples, not every response.
    pub(super) fn answered(&self, now: Timestamp, took: Micros, in_flight: u64, lost: bool) {
        let controller = if lost {
            Some(self.controller.lock())
        } else {
            self.controller.try_lock()
        };
        if let Some(mut controller) = controller {
            let places = controller.answered(now, took, in_flight, lost);
            self.places.store(places, Ordering::Relaxed);
        }
    }
}

const ONE: u64 = 1_024;

/// Places tried above the number that is known to work.
const HEADROOM: u64 = 4;

/// Busy windows between two measurements of the unloaded time.
const PROBE: u32 = 300;

/// The minimum length of a window and the minimum number of responses in it.
const WINDOW: Micros = Micros(100_000);
const ANSWERS_MIN: u64 = 10;

/// Bounds that keep every product within 64 bits: a minute, a million places.
const TOOK_MAX: u64 = 60_000_000;
const PLACES_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// An upstream that handles `capacity` requests at once, each taking 10 ms, and queues the others.
    fn settle_against(capacity: u64, controller: &mut Adaptive, rounds: u64) -> u64 {
        let mut now = Timestamp::from_micros(1_000_000);
        for _ in 0..rounds {
            let in_flight = controller.limit();
            let took = Micros(10_000 * in_flight.max(capacity) / capacity);
            now = now.after(Micros(10_000));
            controller.answered(now, took, in_flight, false);
        }
        controller.limit()
    }

    #[test]
    fn adaptive_finds_the_capacity_of_the_upstream() {
        for capacity in [10, 50, 200] {
            let mut controller = Adaptive::new(1, 1_000, 20);
            let found = settle_against(capacity, &mut controller, 20_000);
            assert!(
                found >= capacity && found <= capacity * 3,
                "{found} for {capacity}"
            );
        }
    }

    #[test]
    fn adaptive_continues_from_the_found_capacity() {
        let mut found = Adaptive::new(1, 1_000, 20);
        settle_against(50, &mut found, 20_000);
        let learnt = found.learnt();
        let mut next = Adaptive::new(1, 1_000, 20);
        next.relearn(learnt);
        assert_eq!((next.limit(), next.learnt()), (learnt.limit / ONE, learnt));
        let mut narrower = Adaptive::new(5, 30, 20);
        narrower.relearn(learnt);
        assert_eq!(narrower.limit(), 30, "the file's bounds");
        narrower.relearn(Places {
            limit: u64::MAX,
            unloaded: u64::MAX,
        });
        settle_against(10, &mut narrower, 1_000);
        assert!(narrower.limit() <= 30);
    }

    #[test]
    fn losses_lower_it_and_the_file_bounds_it() {
        let mut controller = Adaptive::new(5, 100, 100);
        let mut now = Timestamp::from_micros(1_000_000);
        for _ in 0..1_000 {
            now = now.after(Micros(100_001));
            controller.answered(now, Micros(1_000_000), 100, true);
            now = now.after(Micros(100_001));
            controller.answered(now, Micros(1_000_000), 100, true);
        }
        assert_eq!(controller.limit(), 5);
        settle_against(1_000_000, &mut controller, 3_000);
        assert_eq!(controller.limit(), 100);
    }

    #[test]
    fn an_idle_upstream_teaches_nothing() {
        let mut controller = Adaptive::new(1, 1_000, 50);
        let mut now = Timestamp::from_micros(1_000_000);
        for took in [10_000, 500_000] {
            for _ in 0..1_000 {
                now = now.after(Micros(20_000));
                controller.answered(now, Micros(took), 2, false);
            }
        }
        assert_eq!(controller.limit(), 50);
    }
}
