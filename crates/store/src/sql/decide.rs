//! Decides a batch by the pure core on rows that a transaction has locked.

use std::collections::HashMap;
use std::sync::Arc;

use super::fields::{self, Opened};
use super::leased::Parts;
use super::mark::{Mark, reset_key};
use crate::batch::{Adjust, Answer, Batch, decide as decide_groups};
use crate::wire_form::{HOLD, HOLD_PINNED, Name, WireForm, signed};
use tollgate_limit::bucket::State;
use tollgate_limit::{Change, Corrects, Micros, StoredBucket, Timestamp};

/// The numbers of a stored row, `None` for a full bucket, or why it cannot be read.
pub(crate) type Stored = Result<Option<Vec<i64>>, &'static str>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Decider {
    /// Identifies this gateway: 52 random bits.
    pub(crate) id: i64,
    pub(crate) hold: Micros,
}

/// The decision, and the rows to write before it may be answered.
pub(crate) struct Decided {
    pub(crate) answer: Answer,
    /// The changed buckets with their rows and from when each may be deleted; `None`: it is full.
    pub(crate) written: Vec<(usize, Option<(Vec<i64>, i64)>)>,
    /// For each bucket, whether the function of the server leaves it to a transaction.
    pub(crate) elsewhere: Vec<bool>,
    pub(crate) reset: Vec<usize>,
}

pub(crate) struct Locked {
    /// The rows of the batch's buckets, in the batch's order.
    pub(crate) rows: Vec<Stored>,
    /// When each bucket was reset last, as far as is known.
    pub(crate) resets: Vec<Option<Timestamp>>,
    pub(crate) mark: Mark,
    pub(crate) now: Timestamp,
}

impl Decider {
    /// A new gateway. Heartbeats follow real time, and not the clock of a test (`pinned`).
    pub(crate) fn new(pinned: bool) -> Self {
        Self {
            id: signed(fastrand::u64(1..1 << 52)),
            hold: if pinned { HOLD_PINNED } else { HOLD },
        }
    }

    pub(crate) fn decide(&self, batch: &Batch, locked: Locked) -> Decided {
        let Locked {
            rows,
            mut resets,
            mark,
            now,
        } = locked;
        let (corrections, reset) = corrections_due(batch, &mut resets, now);
        let mut opened = Vec::with_capacity(rows.len());
        let mut parts = Vec::with_capacity(rows.len());
        let mut unreadable = Vec::new();
        for (place, (row, (_, shape))) in (0..).zip(rows.into_iter().zip(&batch.buckets)) {
            let read = row.and_then(|row| {
                let (plain, held) = Parts::open(row, batch, &corrections, place, mark, now)?;
                Ok((
                    fields::open(shape, plain.as_deref(), now, self.hold, mark)?,
                    held,
                ))
            });
            let (bucket, held) = read.unwrap_or_else(|_| {
                // Requests that need it fail, and its row is not changed.
                unreadable.push(place);
                (Opened::unreadable(shape), Parts::default())
            });
            opened.push(bucket);
            parts.push(held);
        }
        let (answer, changed) = self.answer(
            batch,
            &corrections,
            unreadable,
            &mut opened,
            &mut parts,
            now,
        );
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
                (
                    bucket,
                    row.map(|(row, gone)| parts[bucket].close(row, gone)),
                )
            })
            .collect();
        Decided {
            answer,
            written,
            elsewhere,
            reset,
        }
    }

    fn answer(
        &self,
        batch: &Batch,
        corrections: &[(u32, Adjust)],
        unreadable: Vec<u32>,
        opened: &mut [Opened],
        parts: &mut [Parts],
        now: Timestamp,
    ) -> (Answer, Vec<bool>) {
        let parts_of = parts.iter().zip(&*opened);
        let written = parts_of.map(|(parts, opened)| parts.changed || opened.pulled);
        let mut written: Vec<bool> = written.collect();
        let until = signed(now.after(self.hold).as_micros());
        for (place, adjust) in corrections {
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
                Adjust::Change(Change::Release { units }, _) if shape.holds() => {
                    fields::hold(shape, bucket, self.id, -signed(*units), until);
                    true
                }
                Adjust::Change(change, _) => bucket.settle(shape, *change, now),
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
        let found: Vec<StoredBucket> = batch.buckets.iter().zip(&*opened).map(seen).collect();
        let beside =
            |((found, parts), (_, shape)): ((&StoredBucket, &Parts), &(Name, Arc<WireForm>))| {
                parts.beside(shape, found.state().cloned(), now)
            };
        let stored = found.iter().zip(&*parts).zip(&batch.buckets);
        let before: Vec<Option<State>> = stored.map(beside).collect();
        let mut states = before.clone();
        let granted = decide_groups(batch, &unreadable, &mut states, now);
        let mut leased = Vec::with_capacity(batch.leases.len());
        for (place, request) in &batch.leases {
            if unreadable.contains(place) {
                leased.push(0);
                continue;
            }
            let place = *place as usize;
            let units =
                parts[place].lease(&batch.buckets[place].1, *request, &mut states[place], now);
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
                opened[place].kept = StoredBucket::from_parts(found.algorithm().clone(), state, 0);
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

impl Locked {
    /// Fails with a conflict when a row was deleted before it was locked.
    pub(crate) fn of(
        batch: &Batch,
        order: &[usize],
        rows: impl ExactSizeIterator<Item = Stored>,
        resets: &HashMap<u128, Timestamp>,
        mark: Mark,
        now: Timestamp,
    ) -> Result<Self, String> {
        if rows.len() != order.len() {
            return Err("a bucket's row was swept before it was locked".into());
        }
        let mut stored: Vec<Stored> = vec![Ok(None); order.len()];
        for (row, &bucket) in rows.zip(order) {
            stored[bucket] = row;
        }
        let reset = |(name, _): &(Name, _)| resets.get(&reset_key(name.hash)).copied();
        Ok(Self {
            rows: stored,
            resets: batch.buckets.iter().map(reset).collect(),
            mark,
            now,
        })
    }
}

/// The corrections to make, without those that return to a bucket what was drawn before its last reset;
/// and the buckets that are reset now.
fn corrections_due(
    batch: &Batch,
    resets: &mut [Option<Timestamp>],
    now: Timestamp,
) -> (Vec<(u32, Adjust)>, Vec<usize>) {
    let (mut due, mut reset) = (Vec::new(), Vec::new());
    for &(bucket, adjust) in batch.unmade_corrections() {
        let place = bucket as usize;
        if let Adjust::Change(change, corrects) = adjust {
            if corrects == Corrects::Reset {
                resets[place] = Some(now);
                reset.push(place);
            }
            if corrects.is_of_before(resets[place], change) {
                continue;
            }
        }
        due.push((bucket, adjust));
    }
    (due, reset)
}

/// The places of a batch's buckets in the order of their keys, in which every call locks them.
pub(crate) fn key_order(batch: &Batch) -> Vec<usize> {
    let mut order: Vec<usize> = (0..batch.buckets.len()).collect();
    order.sort_unstable_by_key(|&bucket| batch.buckets[bucket].0.hash);
    order
}
