//! Keeps the last refusals by limits, so that an operator can ask why a request was refused.
//!
//! Every worker has a ring of its own behind a lock that only an operator's question contends for.
//! Beside it every worker counts which keys were refused most, and which were admitted with at most
//! a fifth of their units left; another admitted request never comes here.

mod busiest;
mod latest;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;

use crate::request::near;
use busiest::Busiest;
pub(crate) use busiest::Event;
pub use busiest::{Busy, PAUSE, PERIOD};
pub use latest::{Example, Latest};
use ring::Ring;
use tollgate_limit::{KeyBytes, Limit, Micros, Standing, Timestamp, Verdict};
use tollgate_limiter::{Block, Denied, OpenCharge, Outcome};
use tollgate_policy::{Claims, Policy};
use tollgate_response::DecisionId;
use tollgate_telemetry::TraceParent;

/// The last refusals of all workers. Clones share them.
#[derive(Clone, Debug)]
pub struct Refusals {
    workers: Arc<Mutex<Vec<Arc<Mutex<Kept>>>>>,
    /// The bytes of one worker's ring.
    budget: usize,
    /// The keys that one worker counts.
    room: usize,
}

#[derive(Clone, Debug)]
pub struct RefusalWriter {
    kept: Arc<Mutex<Kept>>,
    room: usize,
}

#[derive(Debug, Default)]
struct Kept {
    ring: Ring,
    refused: Busiest,
    /// Keys by the requests that left them at most a fifth of their units.
    near: Busiest,
    /// Keys by the requests that a limit in shadow mode, or a candidate, would have refused.
    shadow: Busiest,
    /// The number of requests that left few units since the start, by limit.
    near_totals: HashMap<Arc<str>, u64>,
    /// Buckets of limits with events that were spent from since an operator's thread looked.
    spent: HashMap<(Arc<str>, KeyBytes), Spent>,
}

/// A bucket that was spent from, of a limit whose use is an event.
#[derive(Clone, Debug)]
pub struct Spent {
    pub limit: Arc<Limit>,
    pub key: KeyBytes,
    /// When the window that was spent from ends, by the clock of its store.
    pub window_end: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Refused,
    /// Admitted requests that left at most a fifth of the units.
    Near,
    /// Admitted requests that a limit in shadow mode, or a candidate, would have refused.
    Shadow,
}

#[derive(Clone, Debug)]
pub struct Counts {
    /// The keys with the most events, in no order.
    pub keys: Vec<Busy>,
    pub from: Timestamp,
    /// The most events that a key which is not listed can have had.
    pub unseen: u64,
}

/// One refused request, with the policy under which it was decided.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub policy: Arc<Policy>,
    refused: Arc<RefusedRequest>,
}

impl Deref for Refusal {
    type Target = RefusedRequest;

    fn deref(&self) -> &RefusedRequest {
        &self.refused
    }
}

/// A refused request. Its texts are copied, because a header's value would keep the whole head of the
/// request alive.
#[derive(Debug)]
pub struct RefusedRequest {
    pub(crate) id: u64,
    pub(crate) trace: Option<TraceParent>,
    /// When its head had arrived.
    pub at: Timestamp,
    pub status: StatusCode,
    pub reason: &'static str,
    pub method: String,
    /// The requested host as sent; empty: none, or not readable.
    pub host: String,
    /// The requested path without its query, up to [`PATH_MAX`] bytes.
    pub path: String,
    pub client: Option<IpAddr>,
    pub route: Option<usize>,
    pub caller: Option<String>,
    pub tier: Option<String>,
    /// The target of its route whose limits refused it: 0 is its own, the others those of `over_limit`.
    pub target: usize,
    /// What each limit decided, in the order of the route, each before its candidate.
    pub limits: Vec<JudgedLimit>,
    /// When a retry would have been admitted, without other draws from its buckets.
    pub retry_after: Option<Micros>,
}

impl Refusal {
    /// The upstream whose limits refused the request; `None`: its route has no other one.
    pub fn upstream(&self) -> Option<&Arc<str>> {
        let route = &self.policy.routes[self.route?];
        if route.over_limit.is_empty() {
            return None;
        }
        let other = route.over_limit(self.target).map(|over| over.upstream);
        let upstream = other.or(route.target.upstream())?;
        Some(&self.policy.upstreams[upstream].name)
    }
}

/// What one limit decided about a refused request.
#[derive(Clone, Debug)]
pub struct JudgedLimit {
    /// The limit, by index in [`Policy::limits`].
    pub limit: usize,
    pub key: KeyBytes,
    pub cost: u64,
    /// Whether its refusal refuses the request.
    pub enforced: bool,
    pub outcome: &'static str,
    refuses: bool,
    /// How the bucket stood; `None`: it was not asked, or a block or a penalty refused the key.
    pub standing: Option<Standing>,
    /// The block that refused the key; `None`: none did.
    pub block: Option<Block>,
}

impl JudgedLimit {
    /// What each limit of `claims` decided; `denied` is `None` if no bucket was asked.
    pub(crate) fn all(claims: &Claims, denied: Option<&Denied>) -> Vec<Self> {
        let charges = claims.charges().iter().enumerate();
        charges
            .map(|(place, charge)| {
                let outcome = denied.and_then(|denied| denied.outcomes().get(place));
                let block = outcome.and_then(Outcome::block);
                let standing = outcome.and_then(Outcome::asked).copied();
                Self {
                    limit: charge.limit,
                    key: claims.key(charge).clone(),
                    cost: charge.cost,
                    enforced: charge.enforced,
                    outcome: outcome.map_or("unasked", Outcome::word),
                    refuses: outcome.is_some_and(Outcome::refuses),
                    standing: standing.filter(|_| block.is_none()),
                    block,
                }
            })
            .collect()
    }
}

impl Refusals {
    pub fn new(workers: usize) -> Self {
        Self {
            workers: Arc::default(),
            budget: RINGS / workers.max(1),
            room: (KEYS / workers.max(1)).max(KEYS_LEAST),
        }
    }

    pub fn writer(&self) -> RefusalWriter {
        let kept = Arc::new(Mutex::new(Kept {
            ring: Ring::new(self.budget),
            ..Kept::default()
        }));
        self.workers.lock().push(Arc::clone(&kept));
        RefusalWriter {
            kept,
            room: self.room,
        }
    }

    /// The buckets of limits with events that were spent from since the last call.
    pub fn take_spent(&self) -> Vec<Spent> {
        let take = |worker: Arc<Mutex<Kept>>| std::mem::take(&mut worker.lock().spent);
        let workers = self.workers().into_iter();
        workers
            .flat_map(|worker| take(worker).into_values())
            .collect()
    }

    fn workers(&self) -> Vec<Arc<Mutex<Kept>>> {
        self.workers.lock().clone()
    }

    pub fn find(&self, id: &str) -> Option<Refusal> {
        let wanted = |number| DecisionId::of(number).as_str() == id;
        self.rings().find_map(|ring| ring.find(wanted))
    }

    /// The refusals of each worker, copied by reference, so that no worker waits while they are searched.
    fn rings(&self) -> impl Iterator<Item = Ring> {
        let workers = self.workers().into_iter();
        workers.map(|worker| worker.lock().ring.clone())
    }

    /// How many refusals are kept, and when the oldest was decided.
    pub fn kept(&self) -> (usize, Option<Timestamp>) {
        self.workers()
            .iter()
            .fold((0, None), |(count, oldest), worker| {
                let (more, first) = worker.lock().ring.kept();
                (count + more, oldest.into_iter().chain(first).min())
            })
    }

    /// The latest refusal of each limit and for each reason, among the last ones of each worker.
    pub fn latest(&self) -> Latest {
        let mut latest = Latest::default();
        for worker in self.workers() {
            worker.lock().ring.latest(&mut latest);
        }
        latest
    }

    /// The keys with the most events of the last ten to twenty minutes before `now`.
    pub fn counts(&self, counted: Counted, now: Timestamp) -> Counts {
        let mut sums: HashMap<(Arc<str>, KeyBytes), Busy> = HashMap::new();
        let (mut from, mut unseen) = (now, 0);
        for worker in self.workers() {
            // Copied, so that the worker does not wait while the keys are added up.
            let busiest = match counted {
                Counted::Refused => worker.lock().refused.clone(),
                Counted::Near => worker.lock().near.clone(),
                Counted::Shadow => worker.lock().shadow.clone(),
            };
            let (begun, missed) = busiest.visit(now, self.room, &mut |busy| {
                sums.entry((Arc::clone(&busy.limit.name), busy.key.clone()))
                    .and_modify(|sum| sum.add(busy))
                    .or_insert_with(|| busy.clone());
            });
            from = from.min(begun);
            unseen += missed;
        }
        Counts {
            keys: sums.into_values().collect(),
            from,
            unseen,
        }
    }

    /// The buckets whose key is wanted, with their limit under the numbers of the request: those
    /// that are counted, and those of the last refusals.
    pub fn buckets(
        &self,
        now: Timestamp,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Vec<(Arc<Limit>, KeyBytes)> {
        let mut found = Vec::new();
        for counted in [Counted::Refused, Counted::Near, Counted::Shadow] {
            let keys = self.counts(counted, now).keys.into_iter();
            let keys = keys.filter(|busy| wanted(&busy.key));
            found.extend(keys.map(|busy| (busy.limit, busy.key)));
        }
        for ring in self.rings() {
            ring.buckets(wanted, &mut found);
        }
        found
    }

    /// The number of admitted requests that left at most a fifth of the units, by limit, since the start.
    pub fn near_totals(&self) -> HashMap<Arc<str>, u64> {
        let mut sums: HashMap<Arc<str>, u64> = HashMap::new();
        for worker in self.workers() {
            for (limit, total) in &worker.lock().near_totals {
                *sums.entry(Arc::clone(limit)).or_default() += total;
            }
        }
        sums
    }
}

impl Busy {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.error += other.error;
        let (early, late) = if self.last <= other.last {
            (&*self, other)
        } else {
            (other, &*self)
        };
        self.since = if late.since.since(early.last) >= busiest::PAUSE {
            late.since
        } else {
            early.since.min(late.since)
        };
        if other.last > self.last {
            self.last = other.last;
            self.until = other.until;
            self.cost = other.cost;
            self.limit = Arc::clone(&other.limit);
        }
    }
}

impl RefusalWriter {
    /// Keeps a request that was refused with these `claims`; `denied` is `None` if no bucket was
    /// asked, because the store did not respond.
    pub(crate) fn keep(
        &self,
        policy: &Arc<Policy>,
        refused: RefusedRequest,
        claims: &Claims,
        denied: Option<&Denied>,
    ) {
        let at = refused.at;
        let mut kept = self.kept.lock();
        kept.ring.push(policy, refused);
        let Some(denied) = denied else { return };
        for place in denied.refused() {
            let charge = &claims.charges()[place];
            let event = Event {
                limit: &policy.limits[charge.limit],
                key: claims.key(charge),
                at,
                until: until(denied.outcomes()[place].standing.verdict, at),
                cost: charge.cost,
            };
            kept.refused.count(event, self.room);
        }
    }

    /// Counts an admitted request that a limit which only counts would have refused.
    pub(crate) fn would_refuse(&self, event: Event<'_>) {
        self.kept.lock().shadow.count(event, self.room);
    }

    /// Counts a key whose charge was settled, after `first` units were charged for it at the draw.
    pub(crate) fn settled(&self, charge: &OpenCharge<'_>, first: u64, now: Timestamp) {
        // Noted whatever is left: requests at the same time may have used what this one has not seen.
        self.spent(charge.limit, charge.key, charge.window_end);
        let comes_near = |few| charge.left > few && charge.left_after(first) <= few;
        if near(charge.limit).is_some_and(comes_near) {
            self.near(charge.limit, charge.key, now);
        }
    }

    /// Notes that a bucket was spent from, if its use is an event.
    pub(crate) fn spent(&self, limit: &Arc<Limit>, key: &[u8], window_end: Timestamp) {
        if limit.events.is_empty() || window_end == Timestamp::default() {
            return;
        }
        let (limit, key) = (Arc::clone(limit), KeyBytes::from_slice(key));
        let mut kept = self.kept.lock();
        // What is left out is seen with the next request of its key.
        if kept.spent.len() < SPENT_MAX {
            let name = (Arc::clone(&limit.name), key.clone());
            kept.spent.insert(
                name,
                Spent {
                    limit,
                    key,
                    window_end,
                },
            );
        }
    }

    /// Counts an admitted request that left few units.
    pub(crate) fn near(&self, limit: &Arc<Limit>, key: &[u8], at: Timestamp) {
        let event = Event {
            limit,
            key,
            at,
            until: None,
            cost: 1,
        };
        let mut kept = self.kept.lock();
        kept.near.count(event, self.room);
        if let Some(total) = kept.near_totals.get_mut(&*limit.name) {
            *total += 1;
        } else {
            if kept.near_totals.len() >= LIMITS_MAX {
                // Many reloads with ever new names.
                kept.near_totals.clear();
            }
            kept.near_totals.insert(Arc::clone(&limit.name), 1);
        }
    }
}

/// When a key that was judged at `at` is admitted; `None`: it is, or that is not known.
pub(crate) fn until(verdict: Verdict, at: Timestamp) -> Option<Timestamp> {
    match verdict {
        Verdict::Deny { retry_after } => retry_after.map(|wait| at.after(wait)),
        Verdict::Allow { .. } => None,
    }
}

/// The beginning of `text`, at most `longest` bytes.
pub(crate) fn shortened(text: &str, longest: usize) -> String {
    let mut ends = (0..=text.len().min(longest)).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

/// The bytes of all rings together.
const RINGS: usize = 8 << 20;

/// The bytes of everything that is kept: the rings, and a kilobyte for each counted key of two
/// periods: refused, near, and those that would be refused.
pub const MEMORY: usize = RINGS + 6 * KEYS * 1_024;

/// The keys that all workers together count for each of two periods, and for each kind of events.
const KEYS: usize = 1_024;

/// The least of them for one worker.
const KEYS_LEAST: usize = 64;

/// The buckets that one worker notes as spent from between two looks.
const SPENT_MAX: usize = 1_024;

/// The limits whose requests near the end are counted.
const LIMITS_MAX: usize = 4_096;

/// The longest part of a path that is kept.
pub const PATH_MAX: usize = 512;

/// The longest method, host, and name of a caller or a tier that are kept.
pub(crate) const NAME_MAX: usize = 256;
