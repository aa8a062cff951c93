//! The last events, in bounded memory, so that a reader who was away can go on where it stopped.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Message;

/// The last events, oldest first. Their numbers are consecutive.
#[derive(Debug, Default)]
pub(super) struct Ring {
    messages: VecDeque<Arc<Message>>,
    bytes: usize,
    next: u64,
}

impl Ring {
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Keeps the event with the number [`Self::next`]; the oldest ones make room for it.
    pub(super) fn push(&mut self, message: Arc<Message>) {
        self.bytes += message.wire.len();
        self.messages.push_back(message);
        self.next += 1;
        while self.messages.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.messages.pop_front() else {
                return;
            };
            self.bytes -= oldest.wire.len();
        }
    }

    /// The events from number `from` on; `None`: some of them are forgotten, or not yet there.
    pub(super) fn since(&self, from: u64) -> Option<Vec<Arc<Message>>> {
        let count = usize::try_from(self.next.checked_sub(from)?).ok()?;
        let skipped = self.messages.len().checked_sub(count)?;
        Some(self.messages.iter().skip(skipped).cloned().collect())
    }
}

/// The most events that are kept.
const EVENTS_MAX: usize = 1_000;

const BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn message(bytes: usize) -> Arc<Message> {
        Arc::new(Message::new(Kind::Reload, None, &"x".repeat(bytes)))
    }

    fn filled(events: usize, bytes: usize) -> Ring {
        let mut ring = Ring::default();
        (0..events).for_each(|_| ring.push(message(bytes)));
        ring
    }

    #[test]
    fn ring_returns_later_events_and_reports_lost_ones() {
        let ring = filled(EVENTS_MAX + 10, 1);
        assert_eq!(ring.next(), 1_010);
        assert_eq!(ring.since(1_010).map(|all| all.len()), Some(0));
        assert_eq!(ring.since(1_007).map(|all| all.len()), Some(3));
        assert_eq!(ring.since(10).map(|all| all.len()), Some(EVENTS_MAX));
        assert!(ring.since(9).is_none(), "forgotten");
        assert!(ring.since(1_011).is_none(), "of another process");
    }

    #[test]
    fn ring_is_bounded_in_bytes() {
        let ring = filled(100, BYTES_MAX / 10);
        assert!(ring.messages.len() < 10, "{}", ring.messages.len());
        let last = u64::try_from(ring.messages.len()).expect("few");
        assert!(ring.since(100 - last).is_some());
        let one = filled(1, 2 * BYTES_MAX);
        assert_eq!((one.messages.len(), one.bytes), (0, 0));
        assert!(one.since(0).is_none());
    }
}
