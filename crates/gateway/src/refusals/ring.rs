//! The refusals of one worker, in the order in which they were decided. A reader takes the full
//! chunks without copying them, and looks through them without holding up the worker.

use std::collections::VecDeque;
use std::sync::Arc;

use super::chunk::{Chunk, Record};
use super::{Decided, Example, ExplainedRequest, Latest, Refusal};
use tollgate_limit::{KeyBytes, Limit, Timestamp};
use tollgate_policy::Policy;

/// Refusals up to a number of bytes.
#[derive(Debug)]
pub(super) struct Ring {
    full: VecDeque<Arc<Chunk>>,
    open: Chunk,
    /// The policies that the records were decided under, with their numbers. Kept once for all
    /// records, so that a refusal changes no count that all workers share.
    policies: VecDeque<(u32, Arc<Policy>)>,
    /// The bytes of the full chunks.
    bytes: usize,
    budget: usize,
}

/// The refusals of one worker at one moment.
pub(super) struct Reading {
    chunks: Vec<Arc<Chunk>>,
    policies: VecDeque<(u32, Arc<Policy>)>,
}

impl Ring {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            full: VecDeque::new(),
            open: Chunk::default(),
            policies: VecDeque::new(),
            bytes: 0,
            budget,
        }
    }

    pub(super) fn push(
        &mut self,
        policy: &Arc<Policy>,
        asked: &ExplainedRequest<'_>,
        decided: &Decided<'_>,
    ) {
        let number = self.number(policy);
        self.open.push(number, asked, decided);
        if self.open.len() >= CHUNK {
            self.close();
        }
    }

    /// Begins another chunk, in the memory of the oldest one if there is no more.
    fn close(&mut self) {
        let mut spare = None;
        while self.bytes + self.open.capacity() + CHUNK > self.budget {
            let Some(oldest) = self.full.pop_front() else {
                break;
            };
            self.bytes -= oldest.capacity();
            // A reader may still have it. One with unusually long keys is not used again.
            spare = Arc::into_inner(oldest).filter(|oldest| oldest.capacity() <= 2 * CHUNK);
        }
        let mut next = spare.unwrap_or_else(|| Chunk::like(&self.open));
        next.clear();
        let full = std::mem::replace(&mut self.open, next);
        self.bytes += full.capacity();
        self.full.push_back(Arc::new(full));
    }

    /// The number of `policy`. Refusals of policies that are replaced twice are forgotten: each
    /// policy may have lists of many callers.
    fn number(&mut self, policy: &Arc<Policy>) -> u32 {
        // Requests that began before a reload may be refused after newer ones.
        let mut known = self.policies.iter().rev();
        if let Some((number, _)) = known.find(|(_, known)| Arc::ptr_eq(known, policy)) {
            return *number;
        }
        let last = self.policies.back();
        let number = last.map_or(0, |(number, _)| number.wrapping_add(1));
        self.policies.push_back((number, Arc::clone(policy)));
        if self.policies.len() > POLICIES_MAX {
            self.policies.pop_front();
        }
        number
    }

    /// The refusals so far. It copies the open chunk alone.
    pub(super) fn read(&self) -> Reading {
        let full = self.full.iter().map(Arc::clone);
        Reading {
            chunks: full.chain([Arc::new(self.open.clone())]).collect(),
            policies: self.policies.clone(),
        }
    }
}

impl Reading {
    /// The refusals whose policy is still known, the newest first.
    fn newest(&self) -> impl Iterator<Item = (&Chunk, usize, &Record, &Arc<Policy>)> {
        let chunks = self.chunks.iter().rev();
        let records = chunks.flat_map(|chunk| {
            let records = chunk.records.iter().enumerate().rev();
            records.map(move |(place, record)| (&**chunk, place, record))
        });
        records.filter_map(|(chunk, place, record)| {
            let mut policies = self.policies.iter();
            let (_, policy) = policies.find(|(number, _)| *number == record.policy)?;
            Some((chunk, place, record, policy))
        })
    }

    pub(super) fn find(&self, wanted: impl Fn(u64) -> bool) -> Option<Refusal> {
        let mut newest = self.newest();
        let (chunk, place, _, policy) = newest.find(|(_, _, record, _)| wanted(record.id))?;
        Some(chunk.refusal(place, policy))
    }

    /// Adds the latest refusal of each limit and for each reason to `latest`, as far as the newest
    /// refusals have them.
    pub(super) fn latest(&self, latest: &mut Latest) {
        for (chunk, place, record, policy) in self.newest().take(LATEST_AMONG) {
            let example = || Example {
                id: record.id,
                trace: chunk.trace(place),
                at: record.at,
            };
            latest.add_reason(record.reason, example);
            for limit in chunk.refused_by(place) {
                latest.add_limit(&policy.limits[limit], example);
            }
        }
    }

    /// Adds the buckets whose key is wanted to `found`, each once.
    pub(super) fn buckets(
        &self,
        wanted: &dyn Fn(&[u8]) -> bool,
        found: &mut Vec<(Arc<Limit>, KeyBytes)>,
    ) {
        for (chunk, place, _, policy) in self.newest() {
            for (limit, key) in chunk.keys(place) {
                let limit = &policy.limits[limit];
                let is_same = |(known, other): &(Arc<Limit>, KeyBytes)| {
                    known.name == limit.name && other[..] == *key
                };
                if wanted(key) && !found.iter().any(is_same) {
                    found.push((Arc::clone(limit), KeyBytes::from_slice(key)));
                }
            }
        }
    }

    /// How many there are, and when the oldest was decided.
    pub(super) fn kept(&self) -> (usize, Option<Timestamp>) {
        let all = self.newest();
        all.fold((0, None), |(count, _), (_, _, record, _)| {
            (count + 1, Some(record.at))
        })
    }
}

/// The policies whose refusals are kept: the one in force and the one before.
const POLICIES_MAX: usize = 2;

/// The newest refusals among which the latest of each limit is looked for.
const LATEST_AMONG: usize = 256;

/// The bytes of a chunk, about a hundred refusals.
const CHUNK: usize = 32 << 10;
