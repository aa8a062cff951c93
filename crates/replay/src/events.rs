//! Requests between the log and the judge: a few bytes each, in sorted blocks that are merged.
//!
//! Within a block moments and classes are written as differences to the event before, so that a request of a log of
//! whole seconds takes about six bytes instead of sixteen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One request: when it began, how long it took, and which of the distinct requests it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Microseconds since the Unix epoch.
    pub(crate) at: u64,
    /// Microseconds, at most 71 minutes.
    pub(crate) lasting: u32,
    /// The distinct request, by number.
    pub(crate) class: u32,
}

/// By what events are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// By time, as a limiter sees them.
    #[default]
    Time,
    /// By class, and by time within each.
    Class,
}

impl Order {
    fn key(self, event: &Event) -> (u32, u64) {
        match self {
            Self::Time => (0, event.at),
            Self::Class => (event.class, event.at),
        }
    }
}

/// Events in the order in which they were read, or sorted.
#[derive(Debug, Default)]
pub(crate) struct Events {
    order: Order,
    blocks: Vec<Block>,
    /// The last ones read.
    open: Vec<Event>,
}

/// Sorted events, packed.
#[derive(Debug)]
struct Block {
    /// The first moment of the block, and the unit of all others (microseconds).
    base: u64,
    unit: u64,
    bytes: Box<[u8]>,
}

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        self.open.push(event);
        if self.open.len() == BLOCK {
            self.seal();
        }
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            self.blocks.push(Block::new(&mut self.open, self.order));
            self.open.clear();
        }
    }

    /// Sorts them; those that are equal stay as they were read.
    pub(crate) fn sort(&mut self, order: Order) {
        self.seal();
        self.open = Vec::new();
        if self.order != order {
            self.relabel(order, |event| Some((event.class, event.lasting)));
        }
    }

    /// Gives each event another class and duration, and sorts them; those without are dropped.
    pub(crate) fn relabel(
        &mut self,
        order: Order,
        mut to: impl FnMut(&Event) -> Option<(u32, u32)>,
    ) {
        self.seal();
        let mut events = std::mem::take(&mut self.open);
        for block in &mut self.blocks {
            events.clear();
            events.extend(block.cursor(self.order).filter_map(|event| {
                let (class, lasting) = to(&event)?;
                Some(Event {
                    class,
                    lasting,
                    ..event
                })
            }));
            *block = Block::new(&mut events, order);
        }
        self.order = order;
        self.blocks.retain(|block| !block.bytes.is_empty());
    }

    /// All of them in their order; they must have been sorted.
    pub(crate) fn merged(&self) -> Merged<'_> {
        let mut merged = Merged {
            order: self.order,
            blocks: self
                .blocks
                .iter()
                .map(|block| block.cursor(self.order))
                .collect(),
            next: BinaryHeap::new(),
            current: None,
        };
        for place in 0..merged.blocks.len() {
            merged.queue(place);
        }
        merged
    }
}

impl Block {
    fn new(events: &mut [Event], order: Order) -> Self {
        if !events.is_sorted_by_key(|event| order.key(event)) {
            events.sort_by_key(|event| order.key(event));
        }
        let base = events.iter().map(|event| event.at).min().unwrap_or(0);
        let fits = |unit: &u64| {
            events
                .iter()
                .all(|event| (event.at - base).is_multiple_of(*unit))
        };
        let unit = [1_000_000, 1_000].into_iter().find(fits).unwrap_or(1);
        let mut bytes = Vec::with_capacity(events.len() * 6);
        let mut before = Event {
            at: base,
            ..Event::default()
        };
        for event in events.iter() {
            match order {
                Order::Time => {
                    write(&mut bytes, (event.at - before.at) / unit);
                    write(&mut bytes, u64::from(event.class));
                }
                Order::Class => {
                    write(&mut bytes, u64::from(event.class - before.class));
                    let from = if event.class == before.class {
                        before.at
                    } else {
                        base
                    };
                    write(&mut bytes, (event.at - from) / unit);
                }
            }
            write(&mut bytes, u64::from(event.lasting));
            before = *event;
        }
        Self {
            base,
            unit,
            bytes: bytes.into(),
        }
    }

    fn cursor(&self, order: Order) -> Cursor<'_> {
        let mut cursor = Cursor {
            order,
            base: self.base,
            unit: self.unit,
            rest: &self.bytes,
            first: None,
        };
        cursor.first = cursor.read(Event {
            at: self.base,
            ..Event::default()
        });
        cursor
    }
}

/// Appends a number: seven bits a byte, the lowest first.
fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or(0));
}

/// Reads a block from its beginning.
struct Cursor<'e> {
    order: Order,
    base: u64,
    unit: u64,
    rest: &'e [u8],
    /// The next one.
    first: Option<Event>,
}

impl Cursor<'_> {
    fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }

    /// The event after `before`.
    fn read(&mut self, before: Event) -> Option<Event> {
        let first = self.number()?;
        let second = self.number()?;
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (at, class) = match self.order {
            Order::Time => (before.at + first * self.unit, small(second)),
            Order::Class => {
                let from = if first == 0 { before.at } else { self.base };
                (from + second * self.unit, before.class + small(first))
            }
        };
        let lasting = small(self.number()?);
        Some(Event { at, lasting, class })
    }
}

impl Iterator for Cursor<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let event = self.first?;
        self.first = self.read(event);
        Some(event)
    }
}

/// Sorted blocks as one sequence.
pub(crate) struct Merged<'e> {
    order: Order,
    blocks: Vec<Cursor<'e>>,
    /// The first event of each block that is not being read; of equal ones the earlier block's.
    next: BinaryHeap<Reverse<((u32, u64), usize)>>,
    current: Option<usize>,
}

impl Merged<'_> {
    fn first(&self, place: usize) -> Option<(u32, u64)> {
        let event = self.blocks[place].first?;
        Some(self.order.key(&event))
    }

    fn queue(&mut self, place: usize) {
        if let Some(key) = self.first(place) {
            self.next.push(Reverse((key, place)));
        }
    }
}

impl Iterator for Merged<'_> {
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
        let event = self.blocks[place].next();
        self.current = self.blocks[place].first.map(|_| place);
        event
    }
}

/// Events of a block: 16 MB before they are packed, and their sorting takes half as much.
const BLOCK: usize = 1 << 20;

#[cfg(test)]
mod tests;
