//! Keeps the last refusals by limits, so that an operator can ask why a request was refused.
//!
//! Every worker has a ring of its own behind a lock that only an operator's question contends for.
//! A ring has a budget of bytes; the oldest refusals make room for new ones. An admitted request
//! never comes here.

mod ring;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use http::{Method, StatusCode};
use parking_lot::Mutex;

use crate::gateway::{DecisionId, denied_outcome};
use ring::{Record, Ring};
use tollgate_limit::{Micros, Timestamp};
use tollgate_limiter::Denied;
use tollgate_policy::identity::Caller;
use tollgate_policy::{Charge, Claims, Policy};

/// The last refusals of all workers. Clones share them.
#[derive(Clone, Debug)]
pub struct Refusals {
    rings: Arc<Mutex<Vec<Arc<Mutex<Ring>>>>>,
    /// The bytes of one worker's ring.
    budget: usize,
}

/// One worker's end.
#[derive(Debug)]
pub struct RefusalWriter(Arc<Mutex<Ring>>);

/// The properties of a request that its explanation shows. Copied, because a header's value would
/// keep the whole head of the request alive.
pub(crate) struct Asked<'r> {
    pub(crate) method: &'r Method,
    pub(crate) host: &'r str,
    pub(crate) path: &'r str,
    pub(crate) client: Option<IpAddr>,
    pub(crate) route: Option<usize>,
    pub(crate) caller: Option<Arc<Caller>>,
}

/// The decision on a refused request.
pub(crate) struct Decided<'r> {
    pub(crate) id: u64,
    pub(crate) at: Timestamp,
    pub(crate) status: StatusCode,
    pub(crate) reason: &'static str,
    pub(crate) claims: &'r Claims,
    /// `None`: no bucket was asked, because the store did not answer.
    pub(crate) denied: Option<&'r Denied>,
}

/// One refused request, as it was decided.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The policy it was decided under.
    pub policy: Arc<Policy>,
    /// When its head had arrived.
    pub at: Timestamp,
    /// The status of the refusal.
    pub status: StatusCode,
    /// The word for the refusal in logs and metrics.
    pub reason: &'static str,
    /// The request's method.
    pub method: Method,
    /// The requested host as sent; empty: none, or not readable.
    pub host: String,
    /// The requested path without its query, up to [`PATH_MAX`] bytes.
    pub path: String,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The route, by index.
    pub route: Option<usize>,
    /// The known caller.
    pub caller: Option<Arc<Caller>>,
    /// The buckets that it asked for.
    pub claims: Claims,
    denied: Option<Denied>,
}

impl Refusal {
    /// The decision of the bucket at `place` in [`Claims::charges`]; `None`: it was not asked.
    pub fn standing(&self, place: usize) -> Option<&tollgate_limit::Standing> {
        let denied = self.denied.as_ref()?;
        denied
            .standings()
            .get(place)
            .filter(|_| !denied.is_unasked(place))
    }

    /// The word of the access log for the claim at `place`.
    pub fn outcome(&self, place: usize, charge: &Charge) -> &'static str {
        self.denied
            .as_ref()
            .map_or("unasked", |denied| denied_outcome(denied, place, charge))
    }

    /// When a retry would have been admitted, if nobody else drew from its buckets.
    pub fn retry_after(&self) -> Option<Micros> {
        self.denied.as_ref()?.retry_after()
    }
}

impl Refusals {
    /// For a gateway with this many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            rings: Arc::default(),
            budget: MEMORY / workers.max(1),
        }
    }

    /// The writing end of another worker.
    pub fn writer(&self) -> RefusalWriter {
        let ring = Arc::new(Mutex::new(Ring::new(self.budget)));
        self.rings.lock().push(Arc::clone(&ring));
        RefusalWriter(ring)
    }

    /// The refusal with this decision id, if it is still kept.
    pub fn find(&self, id: &str) -> Option<Refusal> {
        let rings = self.rings.lock().clone();
        rings.iter().find_map(|ring| {
            ring.lock()
                .find(|number| DecisionId::of(number).as_str() == id)
        })
    }

    /// How many refusals are kept, and when the oldest was decided.
    pub fn kept(&self) -> (usize, Option<Timestamp>) {
        let rings = self.rings.lock().clone();
        rings.iter().fold((0, None), |(count, oldest), ring| {
            let (more, first) = ring.lock().kept();
            let oldest = match (oldest, first) {
                (Some(one), Some(other)) => Some(std::cmp::min(one, other)),
                (one, other) => one.or(other),
            };
            (count + more, oldest)
        })
    }
}

impl RefusalWriter {
    /// Keeps a refusal.
    pub(crate) fn keep(&self, policy: &Arc<Policy>, asked: Asked<'_>, decided: &Decided<'_>) {
        let record = Record::new(asked, decided);
        self.0.lock().push(policy, record);
    }
}

/// The bytes of all rings together.
pub const MEMORY: usize = 8 << 20;

/// The longest part of a path that is kept.
pub const PATH_MAX: usize = 512;

/// The longest host that is kept: that of a name in DNS, and a port.
const HOST_MAX: usize = 260;
