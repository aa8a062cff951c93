//! The recorded requests at one moment, read in the order of time.

use std::collections::HashMap;
use std::sync::Arc;

use super::{COST, GENERATION, HEAD};
use tollgate_limit::{KeyBytes, Timestamp};

/// The recent requests at one moment.
#[derive(Debug)]
pub struct Requests {
    /// By worker, in the order of time: requests one after another.
    pub(super) streams: Vec<Vec<Arc<Vec<u64>>>>,
    /// Numbers of routes, limits and tiers by their words.
    pub numbers: HashMap<Box<str>, u16>,
    /// The policy that is in force.
    pub generation: u32,
    pub(super) keys: HashMap<u64, KeyBytes>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'r> {
    /// Its time.
    pub at: Timestamp,
    /// The hash of the key by its client's address.
    pub address: u64,
    /// Route, tier, generation and number of charges: equal words mean the same.
    pub kind: u64,
    charges: &'r [u64],
}

/// One limit that a request drew from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenCharge {
    /// The hash of its key.
    pub key: u64,
    /// The number of the limit's words.
    pub rule: u16,
    /// Units.
    pub cost: u64,
}

impl Requests {
    /// Calls `each` for every request, in the order of time.
    pub fn each(&self, mut each: impl FnMut(Seen<'_>)) {
        let mut streams: Vec<Reader<'_>> = self
            .streams
            .iter()
            .map(|chunks| Reader::new(chunks))
            .collect();
        let mut heads: Vec<Option<Seen<'_>>> = streams.iter_mut().map(Iterator::next).collect();
        loop {
            // Workers are few.
            let first = heads.iter().enumerate();
            let first = first.filter_map(|(place, head)| Some((head.as_ref()?.at, place)));
            let Some((_, place)) = first.min() else {
                return;
            };
            let rival = heads.iter().enumerate();
            let rival = rival.filter(|(other, _)| *other != place);
            let rival = rival.filter_map(|(_, head)| Some(head.as_ref()?.at)).min();
            // A stream is read on while it is not later than the others.
            while let Some(seen) = heads[place]
                && rival.is_none_or(|rival| seen.at <= rival)
            {
                each(seen);
                heads[place] = streams[place].next();
            }
        }
    }

    /// The key of this hash, if it was kept.
    pub fn key(&self, hash: u64) -> Option<&KeyBytes> {
        self.keys.get(&hash)
    }
}

struct Reader<'r> {
    chunks: &'r [Arc<Vec<u64>>],
    rest: &'r [u64],
}

impl<'r> Reader<'r> {
    fn new(chunks: &'r [Arc<Vec<u64>>]) -> Self {
        Self { chunks, rest: &[] }
    }
}

impl<'r> Iterator for Reader<'r> {
    type Item = Seen<'r>;

    fn next(&mut self) -> Option<Seen<'r>> {
        while self.rest.is_empty() {
            let (first, chunks) = self.chunks.split_first()?;
            (self.rest, self.chunks) = (first.as_slice(), chunks);
        }
        let (head, rest) = self.rest.split_first_chunk::<HEAD>()?;
        let charges = usize::try_from(head[2] & 0xff).unwrap_or(0);
        let (charges, rest) = rest.split_at_checked(2 * charges)?;
        self.rest = rest;
        Some(Seen {
            at: Timestamp::from_micros(head[0]),
            address: head[1],
            kind: head[2],
            charges,
        })
    }
}

impl Seen<'_> {
    /// The number of its route's words.
    pub fn route(&self) -> u16 {
        u16::try_from(self.kind >> 48).unwrap_or(0)
    }

    /// The number of its caller's tier; 0: none.
    pub fn tier(&self) -> u16 {
        u16::try_from(self.kind >> 32 & 0xffff).unwrap_or(0)
    }

    /// The policy under which it was recorded.
    pub fn generation(&self) -> u32 {
        u32::try_from(self.kind >> 8).unwrap_or(0) & GENERATION
    }

    /// The limits it drew from, of which there are [`Self::len`].
    pub fn charge(&self, place: usize) -> SeenCharge {
        SeenCharge {
            key: self.charges[2 * place],
            rule: u16::try_from(self.charges[2 * place + 1] >> 48).unwrap_or(0),
            cost: self.charges[2 * place + 1] & COST,
        }
    }

    /// How many limits it drew from.
    pub fn len(&self) -> usize {
        self.charges.len() / 2
    }

    /// Whether it drew from no limit.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// A number that differs where route, tier, generation or the list of limits differs.
    pub fn signature(&self) -> u64 {
        let rules = self
            .charges
            .iter()
            .skip(1)
            .step_by(2)
            .map(|word| word >> 48);
        rules.fold(self.kind, |hash, rule| {
            (hash ^ rule)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        })
    }
}
