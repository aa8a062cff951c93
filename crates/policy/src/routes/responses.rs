//! How refusals and quota headers are written, as data. The gateway writes them.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    pub headers: Vec<Dialect>,
    pub reset: Reset,
    pub refusal: Option<RefusalBody>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    Draft11,
    /// The names of the draft's open pull request: `a`, `w`, `c`.
    DraftNext,
    /// One `RateLimit` header as `limit=, remaining=, reset=`.
    Draft07,
    Draft06,
    XRateLimit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    #[default]
    Seconds,
    Epoch,
    /// Milliseconds since the Unix epoch.
    EpochMillis,
}

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalBody {
    /// As a text whose `{…}` placeholders are filled from the refusal.
    Template {
        content_type: http::HeaderValue,
        template: Template,
    },
    /// As the JSON-RPC errors of the calls that are refused, where the body of the request was read
    /// and makes such calls; otherwise as a problem document.
    JsonRpc,
    /// As a problem document with an `error`, which clients of language models print.
    OpenAi,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: bytes::Bytes,
    fixed: bool,
}

impl Template {
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
