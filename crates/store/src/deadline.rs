//! The one deadline for all work of a request on a shared store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::batch::Unanswered;

use tollgate_limit::{Micros, Timestamp};

/// The moment by which the work of one request on its shared store has ended, whatever the store
/// does.
///
/// The first visit to the store sets it, `answer_within` later. The other visits of the request get
/// what is left of that time. A store in the process never sets it, so no clock is read for one.
#[derive(Debug, Default)]
pub struct Deadline {
    /// In microseconds; zero: not set yet.
    at: AtomicU64,
    /// The draw that the store has not answered.
    unanswered: Mutex<Option<Arc<Unanswered>>>,
}

impl Deadline {
    /// The deadline of a visit that begins at `now`. The first visit sets it to `within` later.
    pub(crate) fn of_visit(&self, now: Timestamp, within: Micros) -> Timestamp {
        let set = Timestamp::from_micros(self.at.load(Ordering::Relaxed));
        if set != Timestamp::default() {
            return set;
        }
        let until = now.after(within);
        self.at.store(until.as_micros(), Ordering::Relaxed);
        until
    }

    /// Records a draw that the store may have made.
    pub(crate) fn keep_unanswered(&self, draw: Option<Arc<Unanswered>>) {
        *self.unanswered.lock() = draw;
    }

    /// The last draw, if the store has not answered it.
    pub(crate) fn take_unanswered(&self) -> Option<Arc<Unanswered>> {
        self.unanswered.lock().take()
    }
}

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
    }
}
