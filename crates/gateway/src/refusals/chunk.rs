//! Refusals as they are kept: numbers and texts one after another, in memory that is used again.
//! Nothing is allocated for a refusal, and nothing is formatted before an operator asks.

use std::net::IpAddr;

use http::StatusCode;

use super::{Decided, ExplainedRequest, HOST_MAX, JudgedLimit, METHOD_MAX, PATH_MAX, Refusal};
use tollgate_limit::{KeyBytes, Micros, Standing, Timestamp, Verdict};
use tollgate_limiter::Outcome;
use tollgate_policy::Policy;
use tollgate_telemetry::TraceParent;

use std::sync::Arc;

/// Refusals in the order in which they were decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunk {
    pub(super) records: Vec<Record>,
    limits: Vec<KeptLimit>,
    /// The method, host, path, caller and tier of each record, and the keys of its limits.
    text: Vec<u8>,
    /// The traces of the records that belong to one, each with the place of its record.
    traces: Vec<(u32, TraceParent)>,
}

/// One refusal. Its texts and limits follow those of the record before. Its numbers have 32 bits, so
/// that the ring holds more refusals.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) at: Timestamp,
    pub(super) reason: &'static str,
    retry_after: Option<Micros>,
    pub(super) policy: u32,
    route: Option<u32>,
    /// The target of the route that refused it.
    target: u32,
    text: u32,
    limits: u32,
    /// The lengths of its method, host, path, caller's name, and tier.
    lengths: [Option<u16>; 5],
    status: StatusCode,
    client: Option<IpAddr>,
}

#[derive(Clone, Debug)]
struct KeptLimit {
    cost: u64,
    limit: u32,
    key: u32,
    enforced: bool,
    outcome: Option<Outcome>,
}

impl Chunk {
    /// An empty one with room for as many refusals as `like` has.
    pub(super) fn like(like: &Self) -> Self {
        Self {
            records: Vec::with_capacity(like.records.len()),
            limits: Vec::with_capacity(like.limits.len()),
            text: Vec::with_capacity(like.text.len()),
            traces: Vec::with_capacity(like.traces.len()),
        }
    }

    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.limits.clear();
        self.text.clear();
        self.traces.clear();
    }

    /// The bytes that are in use.
    pub(super) fn len(&self) -> usize {
        size_of_val(&*self.records)
            + size_of_val(&*self.limits)
            + size_of_val(&*self.text)
            + size_of_val(&*self.traces)
    }

    /// The bytes that it takes in memory.
    pub(super) fn capacity(&self) -> usize {
        fn of<T>(vec: &Vec<T>) -> usize {
            vec.capacity() * size_of::<T>()
        }
        of(&self.records) + of(&self.limits) + of(&self.text) + of(&self.traces)
    }

    pub(super) fn push(
        &mut self,
        policy: u32,
        asked: &ExplainedRequest<'_>,
        decided: &Decided<'_>,
    ) {
        let (text, limits) = (small(self.text.len()), small(self.limits.len()));
        if let Some(trace) = decided.trace {
            self.traces.push((small(self.records.len()), trace));
        }
        let name = asked.caller.map(|caller| &*caller.name);
        let tier = asked.caller.and_then(|caller| caller.tier.as_deref());
        let texts = [
            (Some(asked.method.as_str()), METHOD_MAX),
            (Some(asked.host), HOST_MAX),
            (Some(asked.path), PATH_MAX),
            (name, NAME_MAX),
            (tier, NAME_MAX),
        ];
        let lengths = texts.map(|(text, longest)| Some(self.push_text(text?, longest)));
        let denied = decided.denied;
        for (place, charge) in decided.claims.charges().iter().enumerate() {
            let key = decided.claims.key(charge);
            self.text.extend_from_slice(key);
            self.limits.push(KeptLimit {
                cost: charge.cost,
                limit: small(charge.limit),
                key: small(key.len()),
                enforced: charge.enforced,
                outcome: denied.and_then(|denied| denied.outcomes().get(place).cloned()),
            });
        }
        self.records.push(Record {
            id: decided.id,
            at: decided.at,
            reason: decided.reason,
            retry_after: denied.and_then(|denied| denied.retry_after()),
            policy,
            route: asked.route.map(small),
            target: small(decided.target),
            text,
            limits,
            lengths,
            status: decided.status,
            client: asked.client,
        });
    }

    /// The trace of the record at `place`.
    pub(super) fn trace(&self, place: usize) -> Option<TraceParent> {
        let found = self
            .traces
            .binary_search_by_key(&place, |(of, _)| *of as usize);
        Some(self.traces[found.ok()?].1)
    }

    fn push_text(&mut self, text: &str, longest: usize) -> u16 {
        let text = shortened(text, longest);
        self.text.extend_from_slice(text.as_bytes());
        u16::try_from(text.len()).expect("every longest text is below 64 KiB")
    }

    /// The limits of the record at `place`.
    fn limits(&self, place: usize) -> &[KeptLimit] {
        let next = self.records.get(place + 1);
        let end = next.map_or(self.limits.len(), |next| next.limits as usize);
        &self.limits[self.records[place].limits as usize..end]
    }

    /// The limits that refused the record at `place`, by index.
    pub(super) fn refused_by(&self, place: usize) -> impl Iterator<Item = usize> {
        let limits = self.limits(place).iter();
        limits
            .filter(|one| one.outcome.as_ref().is_some_and(Outcome::refuses))
            .map(|one| one.limit as usize)
    }

    /// The limits of the record at `place`, by index, with the keys of their buckets.
    pub(super) fn keys(&self, place: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let record = &self.records[place];
        let before = record.lengths.into_iter().flatten();
        let mut from = record.text as usize + before.map(usize::from).sum::<usize>();
        self.limits(place).iter().map(move |one| {
            let key = &self.text[from..from + one.key as usize];
            from += key.len();
            (one.limit as usize, key)
        })
    }

    /// The record at `place`, which was decided under `policy`.
    pub(super) fn refusal(&self, place: usize, policy: &Arc<Policy>) -> Refusal {
        let record = &self.records[place];
        let mut rest = &self.text[record.text as usize..];
        let mut take = |length: usize| {
            let (taken, left) = rest.split_at(length);
            rest = left;
            taken
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let texts = record
            .lengths
            .map(|length| Some(text(take(length?.into()))));
        let [method, host, path, caller, tier] = texts;
        let limit = |one: &KeptLimit| JudgedLimit {
            limit: one.limit as usize,
            key: KeyBytes::from_slice(take(one.key as usize)),
            cost: one.cost,
            enforced: one.enforced,
            outcome: one.outcome.as_ref().map_or("unasked", Outcome::word),
            standing: one.outcome.as_ref().and_then(bucket),
            block: one.outcome.as_ref().and_then(Outcome::block),
        };
        Refusal {
            policy: Arc::clone(policy),
            at: record.at,
            status: record.status,
            reason: record.reason,
            method: method.unwrap_or_default(),
            host: host.unwrap_or_default(),
            path: path.unwrap_or_default(),
            client: record.client,
            route: record.route.map(|route| route as usize),
            caller,
            tier,
            target: record.target as usize,
            limits: self.limits(place).iter().map(limit).collect(),
            retry_after: record.retry_after,
        }
    }
}

/// How the bucket stood, if it was asked.
fn bucket(outcome: &Outcome) -> Option<Standing> {
    let asked = outcome.asked().copied();
    asked.filter(|_| outcome.block().is_none())
}

/// For how long a bucket or a block refuses.
pub(super) fn wait(standing: &Standing) -> Option<Micros> {
    match standing.verdict {
        Verdict::Deny { retry_after } => retry_after,
        Verdict::Allow { .. } => None,
    }
}

/// A place in a chunk or a policy, or the length of a key: all are far below 2^32.
fn small(number: usize) -> u32 {
    u32::try_from(number).expect("a chunk, a policy and a key are small")
}

/// The beginning of `text`, at most `longest` bytes.
pub(crate) fn shortened(text: &str, longest: usize) -> &str {
    if text.len() <= longest {
        return text;
    }
    let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The longest name of a caller or a tier that is kept.
const NAME_MAX: usize = 256;
