//! How OpenAI and Anthropic state the tokens of a response, as documents and as events.

use super::{Preset, TokenKind};

/// A format: its parts, each with its kind, the part that contains it, and the members that state it.
pub(super) struct KnownFormat {
    pub(super) preset: Preset,
    pub(super) parts: &'static [(TokenKind, Option<usize>, &'static [&'static str])],
    pub(super) signs: &'static [&'static str],
    pub(super) totals: &'static [&'static str],
}

/// The members in which a request states the most tokens of output, and those by which it asks for
/// several outputs: of each the largest number counts.
pub struct OutputMembers {
    /// The most tokens of one output, reasoning among them.
    pub most: &'static [&'static str],
    /// The number of outputs. `best_of` is that of all that are generated, `n` of those that are returned.
    pub times: &'static [&'static str],
}

impl Preset {
    /// Where its requests state the most tokens of output.
    pub const fn output_members(self) -> OutputMembers {
        match self {
            Self::OpenAi => OutputMembers {
                most: &["max_tokens", "max_completion_tokens", "max_output_tokens"],
                times: &["n", "best_of"],
            },
            Self::Anthropic => OutputMembers {
                most: &["max_tokens"],
                times: &[],
            },
        }
    }
}

/// Chat completions: one `usage`, in a document or in the last chunk of a stream. Details are
/// contained in the totals. Some gateways repeat Anthropic's names beside them: they are not read.
const CHAT: KnownFormat = KnownFormat {
    preset: Preset::OpenAi,
    parts: &[
        (TokenKind::Input, None, &["usage.prompt_tokens"]),
        (
            TokenKind::CachedInput,
            Some(0),
            &["usage.prompt_tokens_details.cached_tokens"],
        ),
        (
            TokenKind::CacheWrite,
            Some(0),
            &[
                "usage.prompt_tokens_details.cache_write_tokens",
                "usage.prompt_tokens_details.cache_creation_tokens",
            ],
        ),
        (TokenKind::Output, None, &["usage.completion_tokens"]),
        (
            TokenKind::Reasoning,
            Some(3),
            &["usage.completion_tokens_details.reasoning_tokens"],
        ),
    ],
    signs: &["usage.prompt_tokens", "usage.completion_tokens"],
    totals: &["usage.total_tokens"],
};

/// Responses: `usage` in a document, `response.usage` in the last event of a stream. In a document
/// the totals have Anthropic's names; the details tell the two apart.
const RESPONSES: KnownFormat = KnownFormat {
    preset: Preset::OpenAi,
    parts: &[
        (
            TokenKind::Input,
            None,
            &["usage.input_tokens", "response.usage.input_tokens"],
        ),
        (
            TokenKind::CachedInput,
            Some(0),
            &[
                "usage.input_tokens_details.cached_tokens",
                "response.usage.input_tokens_details.cached_tokens",
            ],
        ),
        (
            TokenKind::CacheWrite,
            Some(0),
            &[
                "usage.input_tokens_details.cache_write_tokens",
                "response.usage.input_tokens_details.cache_write_tokens",
            ],
        ),
        (
            TokenKind::Output,
            None,
            &["usage.output_tokens", "response.usage.output_tokens"],
        ),
        (
            TokenKind::Reasoning,
            Some(3),
            &[
                "usage.output_tokens_details.reasoning_tokens",
                "response.usage.output_tokens_details.reasoning_tokens",
            ],
        ),
    ],
    signs: &[
        "response.usage.input_tokens",
        "response.usage.output_tokens",
        "usage.input_tokens_details.cached_tokens",
        "usage.output_tokens_details.reasoning_tokens",
    ],
    totals: &["usage.total_tokens", "response.usage.total_tokens"],
};

/// Messages: `usage` in a document; in a stream `message.usage` in the first event, and `usage` in
/// `message_delta`, whose counts are totals so far. Cached tokens are beside the input tokens.
/// Thinking is part of the output and not stated by itself. Anthropic states no total; a response in
/// OpenAI's form without details is read in this form, too.
const MESSAGES: KnownFormat = KnownFormat {
    preset: Preset::Anthropic,
    parts: &[
        (
            TokenKind::Input,
            None,
            &["usage.input_tokens", "message.usage.input_tokens"],
        ),
        (
            TokenKind::CachedInput,
            None,
            &[
                "usage.cache_read_input_tokens",
                "message.usage.cache_read_input_tokens",
            ],
        ),
        (
            TokenKind::CacheWrite,
            None,
            &[
                "usage.cache_creation_input_tokens",
                "message.usage.cache_creation_input_tokens",
            ],
        ),
        (
            TokenKind::Output,
            None,
            &["usage.output_tokens", "message.usage.output_tokens"],
        ),
        (TokenKind::Reasoning, Some(3), &[]),
    ],
    signs: &[
        "usage.input_tokens",
        "usage.output_tokens",
        "message.usage.input_tokens",
        "message.usage.output_tokens",
    ],
    totals: &["usage.total_tokens"],
};

/// A response of the responses API whose details are left out has only totals.
const TOTALS: KnownFormat = KnownFormat {
    preset: Preset::OpenAi,
    parts: &[
        (TokenKind::Input, None, &["usage.input_tokens"]),
        (TokenKind::Output, None, &["usage.output_tokens"]),
        (TokenKind::Reasoning, Some(1), &[]),
    ],
    signs: &["usage.input_tokens", "usage.output_tokens"],
    totals: &["usage.total_tokens"],
};

/// In the order in which they are looked for.
pub(super) const KNOWN: [KnownFormat; 4] = [CHAT, RESPONSES, MESSAGES, TOTALS];

/// The events that end a stream: first those of OpenAI's responses, then Anthropic's.
pub(super) const LAST_EVENTS: [&str; 4] = [
    "response.completed",
    "response.incomplete",
    "response.failed",
    "message_stop",
];
pub(super) const LAST_OF_OPENAI: usize = 3;
