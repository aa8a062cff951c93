//! Distinct requests: all that decides what becomes of one, in a few dozen bytes each.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use indexmap::IndexSet;
use std::hash::BuildHasher;

use crate::simulation::Response;
use crate::subject::{Charge, Side};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Class<'c> {
    all: &'c Classes,
    entry: Entry,
}

#[derive(Debug, Default)]
pub(crate) struct Classes {
    entries: Vec<Entry>,
    charges: Vec<Charge>,
    responses: IndexSet<Response, FixedState>,
    table: HashTable<u32>,
}

/// What is known of a request beside its charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Facts {
    /// What the log says became of it; `None`: nothing of limits.
    pub(crate) recorded: Option<bool>,
    /// Whether a limiter refused it when the log was written.
    pub(crate) was_refused: bool,
    /// Where charges depend on it.
    pub(crate) response: Option<Response>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where its charges begin: those of the first policy, then those of the second.
    start: u32,
    head: Head,
}

/// All of a request but its charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Head {
    /// By policy: how many charges it has.
    counts: [u8; 2],
    recorded: Option<bool>,
    was_refused: bool,
    /// By policy: the route's number plus one; 0: none takes it.
    routes: [u32; 2],
    /// The response's number plus one; 0: it does not matter.
    response: u32,
}

impl Classes {
    /// The number of a request with these charges under one policy or two.
    pub(crate) fn number(&mut self, sides: &[Side], facts: Facts) -> u32 {
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let response = facts.response.map_or(0, |response| {
            let number = match self.responses.get_index_of(&response) {
                Some(number) => number,
                None => self.responses.insert_full(response).0,
            };
            small(number + 1)
        });
        let mut head = Head {
            counts: [0; 2],
            recorded: facts.recorded,
            was_refused: facts.was_refused,
            routes: [0; 2],
            response,
        };
        let start = self.charges.len();
        for (place, side) in sides.iter().take(2).enumerate() {
            head.routes[place] = side.route.map_or(0, |route| route + 1);
            // More than these are never judged.
            let charges = &side.charges[..side.charges.len().min(CHARGES)];
            head.counts[place] = u8::try_from(charges.len()).unwrap_or(0);
            self.charges.extend_from_slice(charges);
        }
        let entry = Entry {
            start: small(start),
            head,
        };
        let hash = hash(&entry, &self.charges);
        let (entries, charges) = (&self.entries, &self.charges);
        let same = |number: &u32| {
            let other = &entries[*number as usize];
            other.head == head && drawn(other, charges) == &charges[start..]
        };
        if let Some(number) = self.table.find(hash, same) {
            let number = *number;
            self.charges.truncate(start);
            return number;
        }
        let number = small(self.entries.len());
        self.entries.push(entry);
        let (entries, charges) = (&self.entries, &self.charges);
        self.table.insert_unique(hash, number, |number| {
            self::hash(&entries[*number as usize], charges)
        });
        number
    }

    pub(crate) fn get(&self, number: u32) -> Option<Class<'_>> {
        let entry = *self.entries.get(number as usize)?;
        Some(Class { all: self, entry })
    }
}

impl<'c> Class<'c> {
    /// What it draws from under the policy at `place`.
    pub(crate) fn charges(&self, place: usize) -> &'c [Charge] {
        let all = drawn(&self.entry, &self.all.charges);
        let (first, second) = all.split_at(usize::from(self.entry.head.counts[0]));
        if place == 0 { first } else { second }
    }

    /// The route that takes it under the policy at `place`.
    pub(crate) fn route(&self, place: usize) -> Option<usize> {
        (self.entry.head.routes[place] as usize).checked_sub(1)
    }

    /// What the log says became of it; `None`: nothing of limits.
    pub(crate) fn recorded(&self) -> Option<bool> {
        self.entry.head.recorded
    }

    /// Whether a limiter refused it when the log was written.
    pub(crate) fn was_refused(&self) -> bool {
        self.entry.head.was_refused
    }

    /// Its response, where charges depend on it.
    pub(crate) fn response(&self) -> Option<Response> {
        let number = (self.entry.head.response as usize).checked_sub(1)?;
        self.all.responses.get_index(number).copied()
    }
}

fn drawn<'c>(entry: &Entry, charges: &'c [Charge]) -> &'c [Charge] {
    let start = entry.start as usize;
    let count: usize = entry.head.counts.into_iter().map(usize::from).sum();
    charges.get(start..start + count).unwrap_or_default()
}

fn hash(entry: &Entry, charges: &[Charge]) -> u64 {
    FixedState::default().hash_one((entry.head, drawn(entry, charges)))
}

/// Charges of a request under one policy.
pub(crate) const CHARGES: usize = 32;
