//! Decides a batch by the pure core on rows that a transaction has locked.

use std::sync::Arc;

use super::fields::{self, Opened};
use super::leased::Parts;
use super::mark::Mark;
use crate::batch::{Adjust, Answer, Batch, decide as decide_groups};
use crate::wire_form::{HOLD, HOLD_PINNED, Name, WireForm, signed};
use tollgate_limit::bucket::State;
use tollgate_limit::{Change, Kept, Micros, Timestamp};

/// A stored row as the transaction found it: its numbers, `None` for a full bucket, or why it
/// cannot be read.
pub(crate) type Stored = Result<Option<Vec<i64>>, &'static str>;

/// The gateway that decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decider {
    /// Identifies this gateway: 52 random bits.
    pub(crate) id: i64,
    /// How long a place in flight lasts.
    pub(crate) hold: Micros,
}

/// The decision, and the rows to write before it may be answered.
pub(crate) struct Decided {
    pub(crate) answer: Answer,
    /// The changed buckets and their rows, with the time from which each may be deleted; `None`: the
    /// bucket is full.
    pub(crate) written: Vec<(usize, Option<(Vec<i64>, i64)>)>,
    /// For each bucket, whether the functions of the server leave it to a transaction.
    pub(crate) elsewhere: Vec<bool>,
}

impl Decider {
    /// A new gateway. Heartbeats follow real time; the clock of a test (`pinned`) may run ahead of
    /// them.
    pub(crate) fn new(pinned: bool) -> Self {
        Self {
            id: signed(fastrand::u64(1..1 << 52)),
            hold: if pinned { HOLD_PINNED } else { HOLD },
        }
    }

    /// Decides `batch` on the rows of its buckets, in the batch's order.
    pub(crate) fn decide(
        &self,
        batch: &Batch,
        stored: Vec<Stored>,
        mark: Mark,
        now: Timestamp,
    ) -> Decided {
        let mut opened = Vec::with_capacity(stored.len());
        let mut parts = Vec::with_capacity(stored.len());
        let mut unreadable = Vec::new();
        for (place, (stored, (_, shape))) in (0..).zip(stored.into_iter().zip(&batch.buckets)) {
            let read = stored.and_then(|stored| {
                let (plain, held) = Parts::open(stored, batch, place, now)?;
                Ok((
                    fields::open(shape, plain.as_deref(), now, self.hold, mark)?,
                    held,
                ))
            });
            let (bucket, held) = read.unwrap_or_else(|_| {
                // Requests that need it fail, and its row is not changed; the rest of the batch is
                // not affected.
                unreadable.push(place);
                (Opened::unreadable(shape), Parts::default())
            });
            opened.push(bucket);
            parts.push(held);
        }
        let (answer, changed) = self.answer(batch, unreadable, &mut opened, &mut parts, now);
        let elsewhere = (0..)
            .zip(&parts)
            .map(|(place, parts)| {
                let numbers = batch.buckets[place as usize].1.algorithm();
                parts.are_out()
                    || answer.unreadable.contains(&place)
                    || opened[place as usize].kept.largest() > numbers.burst()
            })
            .collect();
        let written = (0..opened.len())
            .filter(|&bucket| changed[bucket])
            .map(|bucket| {
                let row = fields::close(&batch.buckets[bucket].1, &opened[bucket], mark.print, now);
                (bucket, row.map(|row| parts[bucket].close(row)))
            })
            .collect();
        Decided {
            answer,
            written,
            elsewhere,
        }
    }

    /// Decides the batch; returns the results and the changed buckets.
    fn answer(
        &self,
        batch: &Batch,
        unreadable: Vec<u32>,
        opened: &mut [Opened],
        parts: &mut [Parts],
        now: Timestamp,
    ) -> (Answer, Vec<bool>) {
        let mut written: Vec<bool> = parts
            .iter()
            .zip(&*opened)
            .map(|(parts, opened)| parts.changed || opened.pulled)
            .collect();
        let until = signed(now.after(self.hold).as_micros());
        for (place, adjust) in batch.unmade_corrections() {
            let place = *place as usize;
            if parts[place].corrected || opened[place].foreign {
                continue;
            }
            let (shape, bucket) = (&batch.buckets[place].1, &mut opened[place]);
            written[place] |= match adjust {
                Adjust::Hold(units) => {
                    fields::renew(shape, bucket, self.id, *units, until);
                    true
                }
                Adjust::Change(Change::Release { units }) if shape.holds() => {
                    fields::hold(shape, bucket, self.id, -signed(*units), until);
                    true
                }
                Adjust::Change(change) => bucket.settle(shape, *change, now),
            };
        }
        // Requests are decided in their own numbers; a draw converts the bucket to them.
        let mut costs = vec![false; opened.len()];
        for part in batch.groups.iter().flat_map(|group| &group.parts) {
            costs[part.bucket as usize] |= part.cost > 0;
        }
        let seen = |((_, shape), bucket): (&(Name, Arc<WireForm>), &Opened)| {
            bucket.kept.under(shape.algorithm(), now)
        };
        let found: Vec<Kept> = batch.buckets.iter().zip(&*opened).map(seen).collect();
        let beside = |((found, parts), (_, shape)): ((&Kept, &Parts), &(Name, Arc<WireForm>))| {
            parts.beside(shape, found.state().cloned(), now)
        };
        let before: Vec<Option<State>> = found
            .iter()
            .zip(&*parts)
            .zip(&batch.buckets)
            .map(beside)
            .collect();
        let mut states = before.clone();
        let granted = decide_groups(batch, &unreadable, &mut states, now);
        let mut leased = Vec::with_capacity(batch.wishes.len());
        for (place, wish) in &batch.wishes {
            if unreadable.contains(place) {
                leased.push(0);
                continue;
            }
            let place = *place as usize;
            let units = parts[place].lease(&batch.buckets[place].1, *wish, &mut states[place], now);
            costs[place] |= units > 0;
            leased.push(units);
        }
        for (place, (state, found)) in states.into_iter().zip(found).enumerate() {
            if !costs[place] || state == before[place] {
                continue;
            }
            written[place] = true;
            let shape = &batch.buckets[place].1;
            if shape.holds() {
                let units = |state: &Option<State>| match state {
                    Some(State::Held(held)) => signed(held.units),
                    _ => 0,
                };
                let more = units(&state) - units(&before[place]);
                fields::hold(shape, &mut opened[place], self.id, more, until);
            } else {
                opened[place].kept = Kept::from_parts(found.algorithm().clone(), state, 0);
            }
        }
        let answer = Answer {
            now,
            before,
            granted,
            leased,
            unreadable,
        };
        (answer, written)
    }
}

/// The places of a batch's buckets in the order of their keys, in which every call locks them.
pub(crate) fn key_order(batch: &Batch) -> Vec<usize> {
    let mut order: Vec<usize> = (0..batch.buckets.len()).collect();
    order.sort_unstable_by_key(|&bucket| batch.buckets[bucket].0.hash);
    order
}
