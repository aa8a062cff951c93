//! Requests on their way from the log to the judge: 16 bytes each, in sorted blocks that are merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One request: when it began, how long it took, and which of the distinct requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Microseconds since the Unix epoch.
    pub(crate) at: u64,
    /// Microseconds, at most 71 minutes.
    pub(crate) lasting: u32,
    /// The distinct request, by number.
    pub(crate) class: u32,
}

/// By what events are ordered.
pub(crate) trait Order: Copy {
    /// The key of an event.
    type Key: Ord + Copy;
    /// Its value.
    fn key(self, event: &Event) -> Self::Key;
}

/// By time, as a limiter sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByTime;

impl Order for ByTime {
    type Key = u64;

    fn key(self, event: &Event) -> u64 {
        event.at
    }
}

/// By class, and by time within each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByClass;

impl Order for ByClass {
    type Key = (u32, u64);

    fn key(self, event: &Event) -> (u32, u64) {
        (event.class, event.at)
    }
}

/// Events in the order in which they were read.
#[derive(Debug, Default)]
pub(crate) struct Events {
    blocks: Vec<Vec<Event>>,
}

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        match self.blocks.last_mut() {
            Some(block) if block.len() < BLOCK => block.push(event),
            _ => self.blocks.push(vec![event]),
        }
    }

    /// Gives each event another class and duration; those without are dropped.
    pub(crate) fn relabel(&mut self, mut to: impl FnMut(&Event) -> Option<(u32, u32)>) {
        for block in &mut self.blocks {
            block.retain_mut(|event| match to(event) {
                Some((class, lasting)) => {
                    (event.class, event.lasting) = (class, lasting);
                    true
                }
                None => false,
            });
        }
        self.blocks.retain(|block| !block.is_empty());
    }

    /// Sorts each block; those that are equal stay as they were read.
    pub(crate) fn sort<O: Order>(&mut self, order: O) {
        for block in &mut self.blocks {
            if !block.is_sorted_by_key(|event| order.key(event)) {
                block.sort_by_key(|event| order.key(event));
            }
        }
    }

    /// All of them in order; they must have been sorted by it.
    pub(crate) fn merged<O: Order>(&self, order: O) -> Merged<'_, O> {
        let mut merged = Merged {
            order,
            blocks: self.blocks.iter().map(|block| block.iter()).collect(),
            next: BinaryHeap::new(),
            current: None,
        };
        for place in 0..merged.blocks.len() {
            merged.queue(place);
        }
        merged
    }
}

/// Sorted blocks as one sequence.
pub(crate) struct Merged<'e, O: Order> {
    order: O,
    blocks: Vec<std::slice::Iter<'e, Event>>,
    /// The first event of each block that is not being read; of equal ones the earlier block's.
    next: BinaryHeap<Reverse<(O::Key, usize)>>,
    current: Option<usize>,
}

impl<O: Order> Merged<'_, O> {
    fn first(&self, place: usize) -> Option<O::Key> {
        let event = self.blocks[place].as_slice().first()?;
        Some(self.order.key(event))
    }

    fn queue(&mut self, place: usize) {
        if let Some(key) = self.first(place) {
            self.next.push(Reverse((key, place)));
        }
    }
}

impl<O: Order> Iterator for Merged<'_, O> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let rival = self.next.peek().map(|Reverse(rival)| *rival);
        let place = match (self.current, rival) {
            (None, None) => return None,
            (Some(place), None) => place,
            (None, Some((_, place))) => {
                self.next.pop();
                place
            }
            // A block is read on while it is ahead: logs are nearly sorted.
            (Some(place), Some(rival)) => match self.first(place) {
                Some(key) if (key, place) < rival => place,
                _ => {
                    self.next.pop();
                    self.queue(place);
                    rival.1
                }
            },
        };
        let event = self.blocks[place].next().copied();
        let is_left = !self.blocks[place].as_slice().is_empty();
        self.current = is_left.then_some(place);
        event
    }
}

/// Events of a block: 16 MB, and its sorting takes half as much.
const BLOCK: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_of_any_blocks_come_in_order_and_equal_ones_as_read(
            blocks in prop::collection::vec(prop::collection::vec((0_u64..20, 0_u32..3), 1..20), 0..6),
        ) {
            let mut events = Events::default();
            let mut all = Vec::new();
            for block in blocks {
                let made: Vec<Event> = block
                    .iter()
                    .map(|&(at, class)| {
                        let event = Event { at, class, lasting: u32::try_from(all.len()).unwrap_or(0) };
                        all.push(event);
                        event
                    })
                    .collect();
                events.blocks.push(made);
            }
            let mut by_time = all.clone();
            by_time.sort_by_key(|event| event.at);
            events.sort(ByTime);
            prop_assert_eq!(events.merged(ByTime).collect::<Vec<_>>(), by_time);
            all.sort_by_key(|event| (event.class, event.at));
            events.sort(ByClass);
            let got: Vec<_> = events.merged(ByClass).map(|event| (event.class, event.at)).collect();
            let expected: Vec<_> = all.iter().map(|event| (event.class, event.at)).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
