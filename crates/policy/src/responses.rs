//! How refusals and quota fields are written, as data. Nothing is written here.

/// How refusals and quota fields are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    /// The dialects sent, in order.
    pub headers: Vec<Dialect>,
    /// What `X-RateLimit-Reset` counts in.
    pub reset: Reset,
    /// A refusal body in place of problem+json.
    pub body: Option<RefusalBody>,
}

/// A dialect of quota fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// draft-ietf-httpapi-ratelimit-headers-11: `RateLimit`, `RateLimit-Policy`.
    Draft11,
    /// The names of the draft's open pull request: `a`, `w`, `c`, `RateLimit-Partition`.
    DraftNext,
    /// One `RateLimit` field as `limit=, remaining=, reset=`.
    Draft07,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset`.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRateLimit,
}

/// What a legacy reset field counts in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// Seconds left.
    #[default]
    Seconds,
    /// Seconds since the Unix epoch.
    Epoch,
    /// Milliseconds since the Unix epoch.
    EpochMillis,
}

/// The placeholders a refusal body may hold.
pub const REFUSAL_PLACEHOLDERS: [&str; 9] = [
    "status",
    "title",
    "detail",
    "type",
    "code",
    "retry_after",
    "retry_after_ms",
    "decision_id",
    "limits",
];

/// A refusal body of the file's own; `{…}` placeholders are filled from the refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalBody {
    /// Its content type.
    pub content_type: http::HeaderValue,
    /// The template.
    pub template: String,
}
