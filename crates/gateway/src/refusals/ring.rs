//! The refusals of one worker, in the order in which they were decided.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use http::{Method, StatusCode};

use super::{Asked, Decided, Example, HOST_MAX, Latest, PATH_MAX, Refusal};
use tollgate_limit::Timestamp;
use tollgate_limiter::Denied;
use tollgate_policy::identity::Caller;
use tollgate_policy::{Claims, Policy};
use tollgate_telemetry::TraceParent;

/// Refusals up to a number of bytes.
#[derive(Debug)]
pub(super) struct Ring {
    records: VecDeque<Record>,
    /// The policies that the records were decided under, with their numbers. Kept once for all
    /// records, so that a refusal changes no count that all workers share.
    policies: VecDeque<(u32, Arc<Policy>)>,
    bytes: usize,
    budget: usize,
}

/// One refusal.
#[derive(Debug)]
pub(super) struct Record {
    id: u64,
    trace: Option<TraceParent>,
    at: Timestamp,
    policy: u32,
    status: StatusCode,
    reason: &'static str,
    method: Method,
    /// The host, followed by the path.
    target: Box<str>,
    host_length: usize,
    client: Option<IpAddr>,
    route: Option<usize>,
    caller: Option<Arc<Caller>>,
    claims: Claims,
    /// The target of the route that the claims are for.
    route_target: usize,
    denied: Option<Denied>,
}

impl Record {
    pub(super) fn new(asked: Asked<'_>, decided: &Decided<'_>) -> Self {
        let host = shortened(asked.host, HOST_MAX);
        let mut target = String::with_capacity(host.len() + asked.path.len().min(PATH_MAX));
        target.push_str(host);
        target.push_str(shortened(asked.path, PATH_MAX));
        Self {
            id: decided.id,
            trace: decided.trace,
            at: decided.at,
            policy: 0,
            status: decided.status,
            reason: decided.reason,
            method: asked.method.clone(),
            target: target.into_boxed_str(),
            host_length: host.len(),
            client: asked.client,
            route: asked.route,
            caller: asked.caller,
            claims: decided.claims.clone(),
            route_target: decided.target,
            denied: decided.denied.cloned(),
        }
    }

    fn bytes(&self) -> usize {
        // A method is kept in place unless it is an unusual one.
        size_of::<Self>()
            + self.target.len()
            + self.method.as_str().len()
            + self.claims.heap_bytes()
            + self.denied.as_ref().map_or(0, Denied::heap_bytes)
    }
}

impl Ring {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            records: VecDeque::new(),
            policies: VecDeque::new(),
            bytes: 0,
            budget,
        }
    }

    pub(super) fn push(&mut self, policy: &Arc<Policy>, mut record: Record) {
        record.policy = self.number(policy);
        self.bytes += record.bytes();
        self.records.push_back(record);
        while self.bytes > self.budget && self.records.len() > 1 {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(oldest) = self.records.pop_front() {
            self.bytes -= oldest.bytes();
        }
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
        if self.policies.len() > POLICIES_MAX
            && let Some((gone, _)) = self.policies.pop_front()
        {
            let bytes = &mut self.bytes;
            self.records.retain(|record| {
                let stays = record.policy != gone;
                *bytes -= if stays { 0 } else { record.bytes() };
                stays
            });
        }
        number
    }

    pub(super) fn find(&self, wanted: impl Fn(u64) -> bool) -> Option<Refusal> {
        let record = self.records.iter().rev().find(|record| wanted(record.id))?;
        let (_, policy) = self
            .policies
            .iter()
            .find(|(number, _)| *number == record.policy)?;
        let (host, path) = record.target.split_at(record.host_length);
        Some(Refusal {
            policy: Arc::clone(policy),
            at: record.at,
            status: record.status,
            reason: record.reason,
            method: record.method.clone(),
            host: host.to_owned(),
            path: path.to_owned(),
            client: record.client,
            route: record.route,
            caller: record.caller.clone(),
            claims: record.claims.clone(),
            target: record.route_target,
            denied: record.denied.clone(),
        })
    }

    /// Adds the latest refusal of each limit and for each reason to `latest`, as far as the newest
    /// refusals have them: a scrape must not hold up the worker.
    pub(super) fn latest(&self, latest: &mut Latest) {
        for record in self.records.iter().rev().take(LATEST_AMONG) {
            let example = || Example {
                id: record.id,
                trace: record.trace,
                at: record.at,
            };
            latest.add_reason(record.reason, example);
            let mut policies = self.policies.iter();
            let known = policies.find(|(number, _)| *number == record.policy);
            if let (Some((_, policy)), Some(denied)) = (known, &record.denied) {
                for place in denied.refused() {
                    let limit = &policy.limits[record.claims.charges()[place].limit];
                    latest.add_limit(limit, example);
                }
            }
        }
    }

    pub(super) fn kept(&self) -> (usize, Option<Timestamp>) {
        let oldest = self.records.front().map(|record| record.at);
        (self.records.len(), oldest)
    }
}

/// The beginning of `text`, at most `longest` bytes.
pub(crate) fn shortened(text: &str, longest: usize) -> &str {
    let end = (0..=longest.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The policies whose refusals are kept: the one in force and the one before.
const POLICIES_MAX: usize = 2;

/// The newest refusals among which the latest of each limit is looked for.
const LATEST_AMONG: usize = 256;
