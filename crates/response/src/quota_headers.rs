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

    /// Writes the headers of `report` into the head of a response. An upstream's values of the same
    /// headers are replaced. Without facts nothing is changed.
    pub fn annotate(&self, headers: &mut HeaderMap, report: &Report<'_>) {
        self.prepare(report).insert(headers);
    }

    pub fn prepare(&self, report: &Report<'_>) -> Prepared {
        let mut prepared = Prepared::default();
        self.tell(Destination::Prepared(&mut prepared), report);
        prepared
    }

    /// Writes the same headers as lines of a head, where [`QuotaFields::annotate`] uses a table.
    /// The calling code must remove the upstream's headers of the same names ([`make_room`]).
    pub fn write(&self, out: &mut Vec<u8>, report: &Report<'_>) {
        self.tell(Destination::Lines(out), report);
    }

    pub const fn is_silent(&self) -> bool {
        self.dialects.is_empty()
    }

    fn tell(&self, way: Destination<'_>, report: &Report<'_>) {
        if report.facts.is_empty() {
            return;
        }
        let out = &mut Out { way, written: 0 };
        for dialect in &self.dialects {
            if let Dialect::Draft11 | Dialect::DraftNext = dialect {
                self.policies(out, report.facts);
                self.state(out, report, *dialect == Dialect::DraftNext);
            } else if let Some((limit, fact)) = self.decisive(report) {
                self.legacy(out, *dialect, limit, fact, report);
            }
        }
    }

    fn policies(&self, out: &mut Out<'_>, facts: &[Fact<'_>]) {
        out.field(Field::RateLimitPolicy, |value| {
            let known = facts.iter().filter_map(|fact| self.limits.get(fact.limit));
            for (place, limit) in known.enumerate() {
                element(value, place);
                value.extend_from_slice(&limit.policy);
            }
        });
    }

    /// `RateLimit`: the remaining units, and the time for which they must suffice; on a refusal
    /// only for the limits that refused.
    fn state(&self, out: &mut Out<'_>, report: &Report<'_>, next: bool) {
        out.field(Field::RateLimit, |value| {
            let facts = report.facts.iter();
            let facts = facts.filter(|fact| fact.violated || !report.refused);
            let known = facts.filter_map(|fact| Some((fact, self.limits.get(fact.limit)?)));
            for (place, (fact, limit)) in known.enumerate() {
                element(value, place);
                value.extend_from_slice(&limit.name);
                value.extend_from_slice(if next { b";a=" } else { b";r=" });
                number(value, fact.standing.remaining());
                if !limit.concurrent {
                    value.extend_from_slice(if next { b";w=" } else { b";t=" });
                    number(value, report.window(fact));
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

    /// The headers that can report one limit only.
    fn legacy(
        &self,
        out: &mut Out<'_>,
        dialect: Dialect,
        limit: &Described,
        fact: &Fact<'_>,
        report: &Report<'_>,
    ) {
        let (quota, remaining) = (limit.quota, fact.standing.remaining());
        let left = report.reset(fact);
        if dialect == Dialect::XRateLimit {
            let at = report.now.after(left).as_micros();
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
    /// the one with the longest wait, otherwise the one with the smallest remaining fraction of its quota.
    fn decisive<'t>(&self, report: &'t Report<'_>) -> Option<(&Described, &'t Fact<'t>)> {
        let described = |fact: &'t Fact<'t>| Some((self.limits.get(fact.limit)?, fact));
        let known = report.facts.iter().filter_map(described);
        if report.refused {
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

/// What the quota headers of one response say.
#[derive(Clone, Copy, Debug)]
pub struct Report<'f> {
    pub facts: &'f [Fact<'f>],
    /// Whether the response is our refusal: then only the violated limits are reported.
    pub refused: bool,
    /// The retry time of the refusal; `None`: there is none.
    pub retry_after: Option<Micros>,
    pub now: Timestamp,
}

impl Report<'_> {
    /// The value of Retry-After, on a refusal with one.
    fn wait(&self) -> Option<u64> {
        let wait = self.retry_after.filter(|_| self.refused);
        wait.map(retry_after_secs)
    }

    /// The effective window in seconds; on a refusal never longer than Retry-After.
    fn window(&self, fact: &Fact<'_>) -> u64 {
        let window = fact.standing.effective.ceil_secs();
        self.wait().map_or(window, |wait| window.min(wait))
    }

    /// The reset of the legacy headers: the time until the quota is full again; on a refusal the
    /// time until a retry makes sense.
    fn reset(&self, fact: &Fact<'_>) -> Micros {
        self.wait().map_or(fact.standing.reset, Micros::from_secs)
    }
}

fn element(value: &mut Vec<u8>, place: usize) {
    if place > 0 {
        value.extend_from_slice(b", ");
    }
}

/// Writes an integer; structured fields allow at most 15 digits.
fn number(value: &mut Vec<u8>, number: u64) {
    let number = number.min(INTEGER_MAX);
    value.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
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

static OURS: [HeaderName; 8] = [
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
