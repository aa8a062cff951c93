//! The one deadline for all work of a request on a shared store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::batch::{Correction, Unanswered};

use tollgate_limit::{Micros, Timestamp};

/// The moment by which the work of one request on its store has ended, whatever the store does.
///
/// The first visit to the store sets it, `answer_within` later. The other visits of the request get
/// what is left of that time. A store in the process never sets it, so no clock is read for one.
#[derive(Debug, Default)]
pub struct Deadline {
    /// In microseconds; zero: not set yet. The highest bit: each draw asks the store. (A field of its own would make
    /// the context of every request larger.)
    at: AtomicU64,
    /// The draw that the store has not answered.
    unanswered: Mutex<Option<Arc<Unanswered>>>,
}

impl Deadline {
    /// Has each draw of the request ask the store. Otherwise a refusal of the last 50 ms may be repeated
    /// although units came back meanwhile.
    pub fn ask_always(&mut self) {
        *self.at.get_mut() |= ASKS_ALWAYS;
    }

    pub(crate) fn always_asks(&self) -> bool {
        self.at.load(Ordering::Relaxed) & ASKS_ALWAYS != 0
    }

    /// The deadline of a visit that begins at `now`. The first visit sets it to `within` later.
    pub(crate) fn of_visit(&self, now: Timestamp, within: Micros) -> Timestamp {
        let at = self.at.load(Ordering::Relaxed);
        let set = Timestamp::from_micros(at & !ASKS_ALWAYS);
        if set != Timestamp::default() {
            return set;
        }
        let until = now.after(within);
        let flag = at & ASKS_ALWAYS;
        self.at.store(until.as_micros() | flag, Ordering::Relaxed);
        until
    }

    pub(crate) fn keep_unanswered(&self, draw: Option<Arc<Unanswered>>) {
        *self.unanswered.lock() = draw;
    }

    /// Records the refunds of leased units that the request took beside a draw that the store may have made.
    pub(crate) fn keep_leased(&self, refunds: Vec<Correction>) {
        if let Some(draw) = &*self.unanswered.lock() {
            draw.keep_leased(refunds);
        }
    }

    /// The last draw, if the store has not answered it.
    pub(crate) fn take_unanswered(&self) -> Option<Arc<Unanswered>> {
        self.unanswered.lock().take()
    }
}

const ASKS_ALWAYS: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_second_visit_gets_the_time_that_the_first_has_left() {
        let (deadline, start) = (Deadline::default(), Timestamp::from_micros(1_000_000));
        let until = deadline.of_visit(start, Micros(20_000));
        assert_eq!(until, start.after(Micros(20_000)));
        let later = start.after(Micros(15_000));
        assert_eq!(deadline.of_visit(later, Micros(20_000)), until);
        assert_eq!(later.after(Micros(5_000)), until);
        let mut asking = deadline;
        assert!(!asking.always_asks());
        asking.ask_always();
        assert!(asking.always_asks());
        assert_eq!(asking.of_visit(later, Micros(20_000)), until);
    }
}
