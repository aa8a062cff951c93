//! The last refusals of one worker, up to a number of bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Example, JudgedLimit, Latest, Refusal, RefusedRequest};
use tollgate_limit::{KeyBytes, Limit, Timestamp};
use tollgate_policy::Policy;

#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    /// The refusals under each policy, in the order in which they were decided; the newest policy is
    /// the last one. A refusal does not name its policy, because all workers would write its count.
    by_policy: Vec<(Arc<Policy>, VecDeque<Arc<RefusedRequest>>)>,
    bytes: usize,
    budget: usize,
}

impl Ring {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget,
            ..Self::default()
        }
    }

    /// Keeps a refusal; the oldest ones make room for it.
    pub(super) fn push(&mut self, policy: &Arc<Policy>, refused: RefusedRequest) {
        // Requests that began before a reload may be refused after newer ones.
        let known = |(known, _): &(Arc<Policy>, _)| Arc::ptr_eq(known, policy);
        let place = self.by_policy.iter().position(known).unwrap_or_else(|| {
            if self.by_policy.len() >= POLICIES_MAX {
                let (_, forgotten) = self.by_policy.remove(0);
                self.bytes -= forgotten.iter().map(|one| bytes(one)).sum::<usize>();
            }
            self.by_policy.push((Arc::clone(policy), VecDeque::new()));
            self.by_policy.len() - 1
        });
        self.bytes += bytes(&refused);
        self.by_policy[place].1.push_back(Arc::new(refused));
        let mut lists = self.by_policy.iter_mut().map(|(_, list)| list);
        while self.bytes > self.budget
            && let Some(list) = lists.next()
        {
            while self.bytes > self.budget
                && let Some(oldest) = list.pop_front()
            {
                self.bytes -= bytes(&oldest);
            }
        }
    }

    fn newest(&self) -> impl Iterator<Item = (&Arc<Policy>, &Arc<RefusedRequest>)> {
        let lists = self.by_policy.iter().rev();
        lists.flat_map(|(policy, list)| list.iter().rev().map(move |one| (policy, one)))
    }

    pub(super) fn find(&self, wanted: impl Fn(u64) -> bool) -> Option<Refusal> {
        let (policy, refused) = self.newest().find(|(_, one)| wanted(one.id))?;
        Some(Refusal {
            policy: Arc::clone(policy),
            refused: Arc::clone(refused),
        })
    }

    /// Adds the latest refusal of each limit and for each reason to `latest`, as far as the newest
    /// refusals have them.
    pub(super) fn latest(&self, latest: &mut Latest) {
        for (policy, refused) in self.newest().take(LATEST_AMONG) {
            let example = Example {
                id: refused.id,
                trace: refused.trace,
                at: refused.at,
            };
            latest.add_reason(refused.reason, example);
            for one in refused.limits.iter().filter(|one| one.refuses) {
                latest.add_limit(&policy.limits[one.limit], example);
            }
        }
    }

    /// Adds the buckets whose key is wanted to `found`, each once.
    pub(super) fn buckets(
        &self,
        wanted: &dyn Fn(&[u8]) -> bool,
        found: &mut Vec<(Arc<Limit>, KeyBytes)>,
    ) {
        for (policy, refused) in self.newest() {
            for JudgedLimit { limit, key, .. } in &refused.limits {
                let limit = &policy.limits[*limit];
                let is_same = |(known, other): &(Arc<Limit>, KeyBytes)| {
                    known.name == limit.name && other == key
                };
                if wanted(key) && !found.iter().any(is_same) {
                    found.push((Arc::clone(limit), key.clone()));
                }
            }
        }
    }

    pub(super) fn kept(&self) -> (usize, Option<Timestamp>) {
        let oldest = self.by_policy.iter().filter_map(|(_, list)| list.front());
        let count = self.by_policy.iter().map(|(_, list)| list.len()).sum();
        (count, oldest.map(|one| one.at).min())
    }
}

/// The memory that a refusal takes, with what its allocations cost beside their contents.
fn bytes(refused: &RefusedRequest) -> usize {
    let RefusedRequest {
        method, host, path, ..
    } = refused;
    let names = [&refused.caller, &refused.tier].into_iter().flatten();
    let texts = [method, host, path].into_iter().chain(names);
    let keys = refused.limits.iter().map(|one| one.key.len());
    size_of::<RefusedRequest>()
        + size_of_val(&*refused.limits)
        + texts.map(String::len).chain(keys).sum::<usize>()
        + ALLOCATIONS
}

/// The policies whose refusals are kept: the one in force and the one before. Each may have lists of
/// many callers.
const POLICIES_MAX: usize = 2;

/// The newest refusals among which the latest of each limit is looked for.
const LATEST_AMONG: usize = 256;

const ALLOCATIONS: usize = 128;
