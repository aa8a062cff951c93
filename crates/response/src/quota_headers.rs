//! Writes the quota headers of a response, in the dialects that the file asks for. It is pure.
//!
//! Constant parts are prepared when a policy is compiled; the rest is written with integers into
//! one buffer. The dialects are draft-ietf-httpapi-ratelimit-headers-11 (`RateLimit`,
//! `RateLimit-Policy`), the names of its open pull request, its versions 07 and 06, and the
//! `X-RateLimit-*` headers that clients have parsed since before the draft.

mod described;
mod out;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use siphasher::sip::SipHasher13;

use self::described::Described;
pub use self::out::Prepared;
use self::out::{Destination, Field, Out};
use tollgate_limit::{Limit, Micros, Standing, Timestamp};
use tollgate_policy::{Dialect, Reset, Responses, Rule};

/// The state of one limit of a request. Only live, enforced limits are reported to callers.
#[derive(Clone, Copy, Debug)]
pub struct Fact<'f> {
    pub limit: usize,
    pub standing: &'f Standing,
    pub cost: u64,
    /// Whether it refused the request.
    pub violated: bool,
    pub key: &'f [u8],
}

/// The quota headers of one policy.
#[derive(Debug)]
pub struct QuotaFields {
    dialects: Vec<Dialect>,
    reset: Reset,
    limits: Vec<Described>,
}

impl QuotaFields {
    /// Prepares the headers for `limits` (`limits[i].index == i`), which are variants of `rules`, as
    /// configured in `responses`.
    pub fn new<L: AsRef<Limit>>(responses: &Responses, limits: &[L], rules: &[Rule]) -> Self {
        let described = |limit: &Limit| {
            let rule = rules.iter().find(|rule| rule.name == limit.name);
            Described::new(limit, rule)
        };
        Self {
            dialects: responses.headers.clone(),
            reset: responses.reset,
            limits: limits
                .iter()
                .map(|limit| described(limit.as_ref()))
                .collect(),
        }
    }

    /// Writes the headers for `facts` into the head of a response. `refused`: it is our refusal,
    /// with `retry_after`; then only the violated limits are reported. An upstream's values of the
    /// same headers are replaced. Without facts nothing is changed. `writer` is only a buffer.
    pub fn annotate(
        &self,
        headers: &mut HeaderMap,
        facts: &[Fact<'_>],
        refused: bool,
        retry_after: Option<Micros>,
        now: Timestamp,
        writer: &mut Writer,
    ) {
        self.prepare(facts, refused, retry_after, now, writer)
            .insert(headers);
    }

    pub fn prepare(
        &self,
        facts: &[Fact<'_>],
        refused: bool,
        retry_after: Option<Micros>,
        now: Timestamp,
        writer: &mut Writer,
    ) -> Prepared {
        let mut prepared = Prepared::default();
        let reported = Reported::new(facts, refused, retry_after);
        self.tell(
            Destination::Prepared(&mut prepared, &mut writer.buffer),
            &reported,
            now,
        );
        prepared
    }

    /// Writes the same headers as lines of a head, where [`QuotaFields::annotate`] uses a table.
    /// The calling code must remove the upstream's headers of the same names ([`make_room`]).
    pub fn write(
        &self,
        out: &mut Vec<u8>,
        facts: &[Fact<'_>],
        refused: bool,
        retry_after: Option<Micros>,
        now: Timestamp,
    ) {
        let reported = Reported::new(facts, refused, retry_after);
        self.tell(Destination::Lines(out), &reported, now);
    }

    pub const fn is_silent(&self) -> bool {
        self.dialects.is_empty()
    }

    fn tell(&self, way: Destination<'_>, reported: &Reported<'_>, now: Timestamp) {
        if reported.facts.is_empty() {
            return;
        }
        let out = &mut Out { way, written: 0 };
        for dialect in &self.dialects {
            if let Dialect::Draft11 | Dialect::DraftNext = dialect {
                self.policies(out, reported.facts);
                self.state(out, reported, *dialect == Dialect::DraftNext);
            } else if let Some((limit, fact)) = self.decisive(reported) {
                self.legacy(out, *dialect, limit, fact, reported.reset(fact), now);
            }
        }
    }

    fn policies(&self, out: &mut Out<'_>, facts: &[Fact<'_>]) {
        if let [fact] = facts
            && let Some(limit) = self.limits.get(fact.limit)
        {
            return out.constant(Field::RateLimitPolicy, &limit.policy);
        }
        out.field(Field::RateLimitPolicy, |value| {
            let known = facts.iter().filter_map(|fact| self.limits.get(fact.limit));
            for (place, limit) in known.enumerate() {
                element(value, place);
                value.extend_from_slice(limit.policy.as_bytes());
            }
        });
    }

    /// `RateLimit`: the remaining units, and the time for which they must suffice; on a refusal
    /// only for the limits that refused.
    fn state(&self, out: &mut Out<'_>, reported: &Reported<'_>, next: bool) {
        out.field(Field::RateLimit, |value| {
            let facts = reported.facts.iter();
            let facts = facts.filter(|fact| fact.violated || !reported.refused);
            let known = facts.filter_map(|fact| Some((fact, self.limits.get(fact.limit)?)));
            for (place, (fact, limit)) in known.enumerate() {
                element(value, place);
                value.extend_from_slice(&limit.name);
                value.extend_from_slice(if next { b";a=" } else { b";r=" });
                number(value, fact.standing.remaining());
                if !limit.concurrent {
                    value.extend_from_slice(if next { b";w=" } else { b";t=" });
                    number(value, reported.window(fact));
                }
                if next {
                    value.extend_from_slice(b";c=");
                    number(value, fact.cost);
                }
                if limit.partitioned {
                    partition(value, fact.key);
                }
            }
        });
    }

    /// The headers that can report one limit only; `left`: the time until its reset.
    fn legacy(
        &self,
        out: &mut Out<'_>,
        dialect: Dialect,
        limit: &Described,
        fact: &Fact<'_>,
        left: Micros,
        now: Timestamp,
    ) {
        let (quota, remaining) = (limit.quota, fact.standing.remaining());
        if dialect == Dialect::XRateLimit {
            let at = now.after(left).as_micros();
            let reset = match self.reset {
                Reset::Seconds => left.ceil_secs(),
                Reset::Epoch => at.div_ceil(1_000_000),
                Reset::EpochMillis => at.div_ceil(1_000),
            };
            out.number(Field::XRateLimitLimit, quota);
            out.number(Field::XRateLimitRemaining, remaining);
            return out.number(Field::XRateLimitReset, reset);
        }
        out.field(Field::RateLimitPolicy, |value| {
            value.extend_from_slice(&limit.legacy_policy)
        });
        if dialect == Dialect::Draft06 {
            out.number(Field::RateLimitLimit, quota);
            out.number(Field::RateLimitRemaining, remaining);
            return out.number(Field::RateLimitReset, left.ceil_secs());
        }
        out.field(Field::RateLimit, |value| {
            let numbers: [(&[u8], u64); 3] = [
                (b"limit=", quota),
                (b", remaining=", remaining),
                (b", reset=", left.ceil_secs()),
            ];
            for (name, units) in numbers {
                value.extend_from_slice(name);
                number(value, units);
            }
        });
    }

    /// The limit that the legacy headers describe, which can report only one: of those that refused
    /// the one with the longest wait, otherwise the one with the smallest remaining fraction of its
    /// quota.
    fn decisive<'t>(&self, reported: &'t Reported<'_>) -> Option<(&Described, &'t Fact<'t>)> {
        let described = |fact: &'t Fact<'t>| Some((self.limits.get(fact.limit)?, fact));
        let known = reported.facts.iter().filter_map(described);
        if reported.refused {
            known
                .filter(|(_, fact)| fact.violated)
                .max_by_key(|(_, fact)| fact.standing.effective)
        } else {
            // The fractions are compared by cross-multiplication, without division.
            known.min_by(|(a, left), (b, right)| {
                let left = u128::from(left.standing.remaining()) * u128::from(b.quota);
                let right = u128::from(right.standing.remaining()) * u128::from(a.quota);
                left.cmp(&right)
            })
        }
    }
}

/// The value of `Retry-After` for a wait: whole seconds, rounded up, never 0.
pub const fn retry_after_secs(wait: Micros) -> u64 {
    let seconds = wait.ceil_secs();
    if seconds == 0 { 1 } else { seconds }
}

struct Reported<'f> {
    facts: &'f [Fact<'f>],
    refused: bool,
    retry_after: Option<u64>,
}

impl<'f> Reported<'f> {
    fn new(facts: &'f [Fact<'f>], refused: bool, retry_after: Option<Micros>) -> Self {
        Self {
            facts,
            refused,
            retry_after: retry_after.map(retry_after_secs),
        }
    }

    /// The effective window in seconds; on a refusal never longer than Retry-After.
    fn window(&self, fact: &Fact<'_>) -> u64 {
        let window = fact.standing.effective.ceil_secs();
        match self.retry_after {
            Some(wait) if self.refused => window.min(wait),
            _ => window,
        }
    }

    /// The reset of the legacy headers: the time until the quota is full again; on a refusal the
    /// time until a retry makes sense.
    fn reset(&self, fact: &Fact<'_>) -> Micros {
        match self.retry_after {
            Some(wait) if self.refused => Micros::from_secs(wait),
            _ => fact.standing.reset,
        }
    }
}

/// The buffer for values of a table, before each is copied; requests of a worker share one.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
}

fn element(value: &mut Vec<u8>, place: usize) {
    if place > 0 {
        value.extend_from_slice(b", ");
    }
}

/// Writes an integer; structured fields allow at most 15 digits.
fn number(value: &mut Vec<u8>, number: u64) {
    value.extend_from_slice(
        itoa::Buffer::new()
            .format(number.min(INTEGER_MAX))
            .as_bytes(),
    );
}

/// Writes which of its buckets a client drew from: a digest of the key, whose parts may be secret.
fn partition(value: &mut Vec<u8>, key: &[u8]) {
    let digest = SipHasher13::new().hash(key).to_be_bytes();
    let mut text = [0; 12];
    // Eight bytes are twelve characters.
    let length = STANDARD.encode_slice(digest, &mut text).unwrap_or(0);
    value.extend_from_slice(b";pk=:");
    value.extend_from_slice(&text[..length]);
    value.push(b':');
}

/// Removes an upstream's values of the headers that we write.
pub fn make_room(headers: &mut HeaderMap) {
    if headers.keys().any(is_ours) {
        for name in &OURS {
            headers.remove(name);
        }
    }
}

/// Whether `name` may be one of [`OURS`]: most messages have none, and need no look-ups.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.starts_with(b"ratelimit") || name.starts_with(b"x-ratelimit")
}

const INTEGER_MAX: u64 = 999_999_999_999_999;

const OURS: [HeaderName; 8] = [
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// The quota headers that a script in a browser may read (`Access-Control-Expose-Headers`).
pub const EXPOSED: &str = "Retry-After, RateLimit, RateLimit-Policy, RateLimit-Limit, RateLimit-Remaining, \
                           RateLimit-Reset, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset";

#[cfg(test)]
mod tests;
