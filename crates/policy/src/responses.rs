//! How refusals and quota headers are written, as data. The gateway writes them.

/// The form of refusals and quota headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    /// The dialects sent, in order.
    pub headers: Vec<Dialect>,
    /// The unit of `X-RateLimit-Reset`.
    pub reset: Reset,
    /// A refusal body instead of problem+json.
    pub refusal: Option<RefusalBody>,
}

/// A dialect of quota headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// draft-ietf-httpapi-ratelimit-headers-11: `RateLimit`, `RateLimit-Policy`.
    Draft11,
    /// The names of the draft's open pull request: `a`, `w`, `c`.
    DraftNext,
    /// One `RateLimit` header as `limit=, remaining=, reset=`.
    Draft07,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset`.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRateLimit,
}

/// The unit of a legacy reset header.
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

/// The placeholders that a refusal body may contain.
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

/// How refusals are written in place of problem documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalBody {
    /// As a text whose `{…}` placeholders are filled from the refusal.
    Template {
        /// Its content type.
        content_type: http::HeaderValue,
        /// The text.
        template: Template,
    },
    /// As the JSON-RPC errors of the calls that are refused, where the body of the request was read
    /// and makes such calls; otherwise as a problem document.
    JsonRpc,
    /// As a problem document with an `error`, which clients of language models print.
    OpenAi,
}

/// The text of a refusal body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: bytes::Bytes,
    fixed: bool,
}

impl Template {
    /// The text with its placeholders.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// The text, where it has no placeholder: every refusal then shares its bytes.
    pub fn fixed(&self) -> Option<bytes::Bytes> {
        self.fixed.then(|| self.text.clone())
    }
}

impl From<String> for Template {
    fn from(text: String) -> Self {
        Self {
            fixed: !text.contains('{'),
            text: text.into(),
        }
    }
}
