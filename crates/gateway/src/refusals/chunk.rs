//! Refusals as they are kept: numbers and texts one after another, in memory that is used again.
//! Nothing is allocated for a refusal, and nothing is formatted before an operator asks.

use std::net::IpAddr;

use http::StatusCode;

use super::{Asked, Decided, HOST_MAX, JudgedLimit, METHOD_MAX, PATH_MAX, Refusal};
use tollgate_limit::{KeyBytes, Micros, Standing, Timestamp};
use tollgate_limiter::denied_outcome;
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
}

/// One refusal. Its texts and limits follow those of the record before.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) trace: Option<TraceParent>,
    pub(super) at: Timestamp,
    /// The number of its policy.
    pub(super) policy: u32,
    status: StatusCode,
    pub(super) reason: &'static str,
    client: Option<IpAddr>,
    route: Option<usize>,
    /// The target of the route that refused it.
    target: usize,
    retry_after: Option<Micros>,
    /// Where its texts begin.
    text: usize,
    /// The lengths of its method, host and path.
    lengths: [u16; 3],
    /// The lengths of its caller's name and tier.
    caller: [Option<u16>; 2],
    /// Where its limits begin.
    limits: usize,
}

/// What one limit decided.
#[derive(Clone, Debug)]
struct KeptLimit {
    limit: usize,
    cost: u64,
    enforced: bool,
    refused: bool,
    outcome: &'static str,
    standing: Option<Standing>,
    /// The length of its key.
    key: usize,
}

impl Chunk {
    /// An empty one with room for as many refusals as `like` has.
    pub(super) fn like(like: &Self) -> Self {
        Self {
            records: Vec::with_capacity(like.records.len()),
            limits: Vec::with_capacity(like.limits.len()),
            text: Vec::with_capacity(like.text.len()),
        }
    }

    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.limits.clear();
        self.text.clear();
    }

    /// The bytes that are in use.
    pub(super) fn len(&self) -> usize {
        bytes([self.records.len(), self.limits.len(), self.text.len()])
    }

    /// The bytes that it takes in memory.
    pub(super) fn capacity(&self) -> usize {
        let Self {
            records,
            limits,
            text,
        } = self;
        bytes([records.capacity(), limits.capacity(), text.capacity()])
    }

    pub(super) fn push(&mut self, policy: u32, asked: &Asked<'_>, decided: &Decided<'_>) {
        let (text, limits) = (self.text.len(), self.limits.len());
        let lengths = [
            self.push_text(asked.method.as_str(), METHOD_MAX),
            self.push_text(asked.host, HOST_MAX),
            self.push_text(asked.path, PATH_MAX),
        ];
        let tier = asked.caller.and_then(|caller| caller.tier.as_deref());
        let caller = [asked.caller.map(|caller| &*caller.name), tier];
        let caller = caller.map(|name| name.map(|name| self.push_text(name, NAME_MAX)));
        let denied = decided.denied;
        for (place, charge) in decided.claims.charges().iter().enumerate() {
            let key = decided.claims.key(charge);
            self.text.extend_from_slice(key);
            let asked = denied.filter(|denied| !denied.is_unasked(place));
            self.limits.push(KeptLimit {
                limit: charge.limit,
                cost: charge.cost,
                enforced: charge.enforced,
                refused: denied.is_some_and(|denied| denied.is_refused_by(place)),
                outcome: denied.map_or("unasked", |denied| denied_outcome(denied, place, charge)),
                standing: asked.and_then(|denied| denied.standings().get(place).copied()),
                key: key.len(),
            });
        }
        self.records.push(Record {
            id: decided.id,
            trace: decided.trace,
            at: decided.at,
            policy,
            status: decided.status,
            reason: decided.reason,
            client: asked.client,
            route: asked.route,
            target: decided.target,
            retry_after: denied.and_then(|denied| denied.retry_after()),
            text,
            lengths,
            caller,
            limits,
        });
    }

    fn push_text(&mut self, text: &str, longest: usize) -> u16 {
        let text = shortened(text, longest);
        self.text.extend_from_slice(text.as_bytes());
        u16::try_from(text.len()).expect("every longest text is below 64 KiB")
    }

    /// The limits of the record at `place`.
    fn limits(&self, place: usize) -> &[KeptLimit] {
        let end = self.records.get(place + 1).map(|next| next.limits);
        &self.limits[self.records[place].limits..end.unwrap_or(self.limits.len())]
    }

    /// The limits that refused the record at `place`, by index.
    pub(super) fn refused_by(&self, place: usize) -> impl Iterator<Item = usize> {
        let limits = self.limits(place).iter();
        limits.filter(|one| one.refused).map(|one| one.limit)
    }

    /// The limits of the record at `place`, by index, with the keys of their buckets.
    pub(super) fn keys(&self, place: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let record = &self.records[place];
        let lengths = record.lengths.into_iter();
        let before = lengths.chain(record.caller.into_iter().flatten());
        let mut from = record.text + before.map(usize::from).sum::<usize>();
        self.limits(place).iter().map(move |one| {
            let key = &self.text[from..from + one.key];
            from += one.key;
            (one.limit, key)
        })
    }

    /// The record at `place`, which was decided under `policy`.
    pub(super) fn refusal(&self, place: usize, policy: &Arc<Policy>) -> Refusal {
        let record = &self.records[place];
        let mut rest = &self.text[record.text..];
        let mut take = |length: usize| {
            let (taken, left) = rest.split_at(length);
            rest = left;
            taken
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let [method, host, path] = record.lengths.map(|length| text(take(length.into())));
        let caller = record.caller;
        let [caller, tier] = caller.map(|length| Some(text(take(length?.into()))));
        let limit = |one: &KeptLimit| JudgedLimit {
            limit: one.limit,
            key: KeyBytes::from_slice(take(one.key)),
            cost: one.cost,
            enforced: one.enforced,
            outcome: one.outcome,
            standing: one.standing,
        };
        Refusal {
            policy: Arc::clone(policy),
            at: record.at,
            status: record.status,
            reason: record.reason,
            method,
            host,
            path,
            client: record.client,
            route: record.route,
            caller,
            tier,
            target: record.target,
            limits: self.limits(place).iter().map(limit).collect(),
            retry_after: record.retry_after,
        }
    }
}

/// The bytes of so many records, limits, and bytes of text.
fn bytes([records, limits, text]: [usize; 3]) -> usize {
    records * size_of::<Record>() + limits * size_of::<KeptLimit>() + text
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
