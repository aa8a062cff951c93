//! The quota fields of a response, in the dialects that the file asks for. Pure.
//!
//! What is constant is prepared when a policy is compiled; the rest is written with integers into one buffer.
//! draft-ietf-httpapi-ratelimit-headers-11 (`RateLimit`, `RateLimit-Policy`), the names of its open pull request, its
//! versions 07 and 06, and the `X-RateLimit-*` fields that clients have parsed since before the draft.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::limit::{Algorithm, Limit, Micros, Standing, Timestamp};
use crate::policy::{Dialect, Reset, Responses};

/// How one limit of a request stands. Only live, enforced limits are told to callers.
#[derive(Clone, Copy, Debug)]
pub struct Fact<'f> {
    /// The limit, by [`Limit::index`].
    pub limit: usize,
    /// Its standing.
    pub standing: &'f Standing,
    /// Units the request cost.
    pub cost: u64,
    /// Whether it refused the request.
    pub violated: bool,
}

/// The quota fields of one policy.
#[derive(Debug)]
pub struct QuotaFields {
    dialects: Vec<Dialect>,
    reset: Reset,
    limits: Vec<Described>,
}

/// What of a limit is constant.
#[derive(Debug)]
struct Described {
    /// `"name"`, a structured-field string.
    name: Box<[u8]>,
    /// `"name";q=100;w=60`
    policy: HeaderValue,
    /// `100;w=60`
    legacy_policy: HeaderValue,
    /// Units of the quota.
    quota: u64,
    /// Whether it is a number at once, without a window.
    concurrent: bool,
}

impl QuotaFields {
    /// The fields for `limits` (`limits[i].index == i`), as `responses` wants them.
    pub fn new<L: AsRef<Limit>>(responses: &Responses, limits: &[L]) -> Self {
        let limits = limits.iter().map(|limit| Described::new(limit.as_ref())).collect();
        Self { dialects: responses.headers.clone(), reset: responses.reset, limits }
    }

    /// Writes the fields for `facts` into the head of a response. `refused`: it is our refusal, and `retry_after`
    /// what it says; then only the violated limits are told. What an upstream said in the same fields is replaced.
    /// Without facts nothing is touched. `writer` is only lent.
    pub fn annotate(
        &self,
        headers: &mut HeaderMap,
        facts: &[Fact<'_>],
        refused: bool,
        retry_after: Option<Micros>,
        now: Timestamp,
        writer: &mut Writer,
    ) {
        if facts.is_empty() || self.dialects.is_empty() {
            return;
        }
        if headers.keys().any(is_ours) {
            for name in &OURS {
                headers.remove(name);
            }
        }
        let told = Told { facts, refused, retry_after: retry_after.map(retry_after_secs) };
        for dialect in &self.dialects {
            match dialect {
                Dialect::Draft11 => {
                    self.policies(headers, facts, writer);
                    self.state(headers, &told, false, writer);
                }
                Dialect::DraftNext => {
                    self.policies(headers, facts, writer);
                    self.state(headers, &told, true, writer);
                }
                Dialect::Draft07 => self.draft_07(headers, &told, writer),
                Dialect::Draft06 => self.draft_06(headers, &told, writer),
                Dialect::XRateLimit => self.x_rate_limit(headers, &told, now, writer),
            }
        }
    }

    /// Whether an earlier dialect has written the field: what stood there before is gone.
    fn is_written(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        self.dialects.len() > 1 && headers.contains_key(name)
    }

    /// `RateLimit-Policy`: every limit of the route.
    fn policies(&self, headers: &mut HeaderMap, facts: &[Fact<'_>], writer: &mut Writer) {
        if self.is_written(headers, &RATELIMIT_POLICY) {
            return;
        }
        let value = match facts {
            // One limit, the common case: prepared.
            [only] => self.limits.get(only.limit).map(|limit| limit.policy.clone()),
            _ => {
                for limit in facts.iter().filter_map(|fact| self.limits.get(fact.limit)) {
                    writer.element();
                    writer.bytes(limit.policy.as_bytes());
                }
                writer.value()
            }
        };
        put(headers, &RATELIMIT_POLICY, value);
    }

    /// `RateLimit`: what is left, and for how long that must do; on a refusal only of the limits that refused.
    fn state(&self, headers: &mut HeaderMap, told: &Told<'_>, next: bool, writer: &mut Writer) {
        if self.is_written(headers, &RATELIMIT) {
            return;
        }
        for fact in told.facts.iter().filter(|fact| fact.violated || !told.refused) {
            let Some(limit) = self.limits.get(fact.limit) else { continue };
            writer.element();
            writer.bytes(&limit.name);
            writer.bytes(if next { b";a=" } else { b";r=" });
            writer.number(fact.standing.remaining);
            if !limit.concurrent {
                writer.bytes(if next { b";w=" } else { b";t=" });
                writer.number(told.window(fact));
            }
            if next {
                writer.bytes(b";c=");
                writer.number(fact.cost);
            }
        }
        put(headers, &RATELIMIT, writer.value());
    }

    fn draft_07(&self, headers: &mut HeaderMap, told: &Told<'_>, writer: &mut Writer) {
        let Some((limit, fact)) = self.decisive(told) else { return };
        if !headers.contains_key(&RATELIMIT_POLICY) {
            headers.insert(RATELIMIT_POLICY.clone(), limit.legacy_policy.clone());
        }
        if !headers.contains_key(&RATELIMIT) {
            writer.bytes(b"limit=");
            writer.number(limit.quota);
            writer.bytes(b", remaining=");
            writer.number(fact.standing.remaining);
            writer.bytes(b", reset=");
            writer.number(told.reset(fact).ceil_secs());
            put(headers, &RATELIMIT, writer.value());
        }
    }

    fn draft_06(&self, headers: &mut HeaderMap, told: &Told<'_>, writer: &mut Writer) {
        let Some((limit, fact)) = self.decisive(told) else { return };
        if !headers.contains_key(&RATELIMIT_POLICY) {
            headers.insert(RATELIMIT_POLICY.clone(), limit.legacy_policy.clone());
        }
        put(headers, &RATELIMIT_LIMIT, writer.alone(limit.quota));
        put(headers, &RATELIMIT_REMAINING, writer.alone(fact.standing.remaining));
        put(headers, &RATELIMIT_RESET, writer.alone(told.reset(fact).ceil_secs()));
    }

    fn x_rate_limit(&self, headers: &mut HeaderMap, told: &Told<'_>, now: Timestamp, writer: &mut Writer) {
        let Some((limit, fact)) = self.decisive(told) else { return };
        let left = told.reset(fact);
        let at = now.after(left).as_micros();
        let reset = match self.reset {
            Reset::Seconds => left.ceil_secs(),
            Reset::Epoch => at.div_ceil(1_000_000),
            Reset::EpochMillis => at.div_ceil(1_000),
        };
        put(headers, &X_RATELIMIT_LIMIT, writer.alone(limit.quota));
        put(headers, &X_RATELIMIT_REMAINING, writer.alone(fact.standing.remaining));
        put(headers, &X_RATELIMIT_RESET, writer.alone(reset));
    }

    /// The limit that the legacy fields, which can tell of only one, describe: of those that refused the one with the
    /// longest wait, else the one with the least left of its quota.
    fn decisive<'t>(&self, told: &'t Told<'_>) -> Option<(&Described, &'t Fact<'t>)> {
        let known = told.facts.iter().filter_map(|fact| self.limits.get(fact.limit).map(|limit| (limit, fact)));
        if told.refused {
            known.filter(|(_, fact)| fact.violated).max_by_key(|(_, fact)| fact.standing.effective)
        } else {
            // Fractions compared crosswise: nothing is divided.
            known.min_by(|(a, left), (b, right)| {
                let left = u128::from(left.standing.remaining) * u128::from(b.quota);
                let right = u128::from(right.standing.remaining) * u128::from(a.quota);
                left.cmp(&right)
            })
        }
    }
}

/// What `Retry-After` says for a wait: whole seconds, rounded up, never 0.
pub const fn retry_after_secs(wait: Micros) -> u64 {
    let seconds = wait.ceil_secs();
    if seconds == 0 { 1 } else { seconds }
}

struct Told<'f> {
    facts: &'f [Fact<'f>],
    refused: bool,
    retry_after: Option<u64>,
}

impl Told<'_> {
    /// The effective window, seconds. On a refusal never longer than Retry-After, which it must not contradict.
    fn window(&self, fact: &Fact<'_>) -> u64 {
        let window = fact.standing.effective.ceil_secs();
        match self.retry_after {
            Some(wait) if self.refused => window.min(wait),
            _ => window,
        }
    }

    /// What the legacy fields call reset: until the quota is whole again; on a refusal until a retry makes sense.
    fn reset(&self, fact: &Fact<'_>) -> Micros {
        match self.retry_after {
            Some(wait) if self.refused => Micros::from_secs(wait),
            _ => fact.standing.reset,
        }
    }
}

impl Described {
    fn new(limit: &Limit) -> Self {
        let (quota, window, concurrent) = match limit.algorithm.quota() {
            Some(quota) => {
                let most = most_at_once(&limit.algorithm, quota.burst, quota.amount);
                // The window in which the rate yields the quota: ceil(most x period / amount).
                let micros = (u128::from(most) * u128::from(quota.period.0)).div_ceil(u128::from(quota.amount.max(1)));
                (most, u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1), false)
            }
            None => (limit.algorithm.greatest_cost(), 0, true),
        };
        let name: Box<[u8]> = quoted(&limit.name).into();
        let mut writer = Writer::default();
        writer.bytes(&name);
        writer.bytes(b";q=");
        writer.number(quota);
        if concurrent {
            writer.bytes(b";qu=\"concurrent-requests\"");
        } else {
            writer.bytes(b";w=");
            writer.number(window);
        }
        let policy = writer.value().expect("a quoted name and numbers are visible bytes");
        writer.number(quota);
        if !concurrent {
            writer.bytes(b";w=");
            writer.number(window);
        }
        let legacy_policy = writer.value().expect("numbers are visible bytes");
        Self { name, policy, legacy_policy, quota, concurrent }
    }
}

/// The most a caller can have at once: the burst of what has one, the amount of windows and logs.
const fn most_at_once(algorithm: &Algorithm, burst: u64, amount: u64) -> u64 {
    match algorithm {
        Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) => amount,
        _ => burst,
    }
}

/// A structured-field string (RFC 9651 3.3.3): printable ASCII, quote and backslash escaped. What else a name may hold
/// is left out.
fn quoted(name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 2);
    out.push(b'"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => {}
        }
    }
    out.push(b'"');
    out
}

/// Values are written here, each copied off when it is whole: a worker's requests share one.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
}

impl Writer {
    /// Begins an element of a list.
    fn element(&mut self) {
        if !self.buffer.is_empty() {
            self.bytes(b", ");
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// A structured-field integer has 15 digits at most.
    fn number(&mut self, number: u64) {
        self.bytes(itoa::Buffer::new().format(number.min(INTEGER_MAX)).as_bytes());
    }

    /// A value that is one number.
    fn alone(&mut self, number: u64) -> Option<HeaderValue> {
        self.number(number);
        self.value()
    }

    /// The value written so far; `None`: nothing was.
    fn value(&mut self) -> Option<HeaderValue> {
        let value = if self.buffer.is_empty() { None } else { HeaderValue::from_bytes(&self.buffer).ok() };
        self.buffer.clear();
        value
    }
}

/// Whether `name` is one of [`OURS`], or looks like one: most messages hold none, and eight look-ups are saved.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.starts_with(b"ratelimit") || name.starts_with(b"x-ratelimit")
}

fn put(headers: &mut HeaderMap, name: &HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.insert(name.clone(), value);
    }
}

const INTEGER_MAX: u64 = 999_999_999_999_999;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The fields that are ours to write: an upstream's are replaced.
const OURS: [HeaderName; 8] = [
    RATELIMIT,
    RATELIMIT_POLICY,
    RATELIMIT_LIMIT,
    RATELIMIT_REMAINING,
    RATELIMIT_RESET,
    X_RATELIMIT_LIMIT,
    X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET,
];

/// The quota fields a browser's script may read (`Access-Control-Expose-Headers`).
pub const EXPOSED: &str = "Retry-After, RateLimit, RateLimit-Policy, RateLimit-Limit, RateLimit-Remaining, \
                           RateLimit-Reset, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset";

#[cfg(test)]
mod tests;
