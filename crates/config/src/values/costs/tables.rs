//! `cost` and `settle` of a limit: what a request costs, and how its response corrects that.

use crate::reading::{OneOrMany, Text, settings, table, words};
use crate::values::costs::SettleSource;
use crate::values::forms::Bytes;
use tollgate_policy::body::usage::{Preset, TokenKind, Weights};

table! {
    /// A cost that depends on the request: on a header, on its `Content-Length`, or on its body.
    RawCost {
        /// The request header that states the cost.
        header: Text => "x-cost",
        /// `true`: the cost is the request's Content-Length, in steps of `per` bytes.
        content_length: bool = false => true,
        /// Bytes per unit, for `content_length`.
        per: Bytes [1..=1 << 40] = "1KiB",
        /// The member of the JSON body that states the cost, or several of which the largest number counts. A body that is not read, or
        /// where it is no number, costs `max`.
        json: OneOrMany<Text> => ["max_tokens", "max_completion_tokens"],
        /// For `json`: the member by whose number the cost is multiplied, or several of which the largest number counts.
        times: OneOrMany<Text> => ["n", "best_of"],
        /// Instead of `json` and `times`: the members in which requests to a language model state the most tokens of output, in the format
        /// of `openai` (`max_tokens`, `max_completion_tokens` or `max_output_tokens`, times `n` or `best_of`), of `anthropic` (`max_tokens`), or of both.
        usage: OneOrMany<Preset> => ["openai", "anthropic"],
        /// For `json` and `usage`: `body_bytes` adds a unit for each byte of the body, `body_bytes / 4` a unit for every 4 bytes.
        plus: Text => "body_bytes / 4",
        /// The cost of a request without the header or the member. Default: 1, or `max` with `usage`: the model chooses the maximum of a request that states
        /// none. A header with characters other than digits costs `max`.
        default: u64 => 1,
        /// The least that a request costs.
        min: u64 = 1,
        /// The most that a request costs: clients must not choose their own price. With `weights` of `settle`, and with `prices`, the most
        /// tokens, which are then reserved at their weight or price.
        @required("callers must not choose their own price: { header = \"x-cost\", default = 1, min = 1, max = 50 }") max: u64 => 50,
    }
}

table! {
    /// Charges an estimate, or reserves the most that `cost` says, and corrects it to the cost that the response states.
    RawSettle {
        /// The part of the response that states the cost: `header:NAME`, `bytes` (the size of its body), or `json:PATH`, the names of members joined by
        /// dots, in a JSON body or in the data of server-sent events.
        /// Or a list of such members, whose sum is the cost: each with a `weight`. One that a response does not state counts zero.
        from: SettleSource => "json:usage.total_tokens",
        /// Instead of `from`: the format in which a language model states its tokens, `openai` (chat completions and responses),
        /// `anthropic` (messages), or a list of both. Every token is counted once, by its kind.
        usage: OneOrMany<Preset> => ["openai", "anthropic"],
        /// Units for a token of each kind, for `usage`. Without an estimate each token is reserved at its weight: what the request states at
        /// the greater of `output` and `reasoning`, the bytes of its body at the greatest of the others.
        weights: TokenWeights => { output = 4 },
        /// Units charged when the request is admitted. Default: what `cost` says of the request is reserved, the most that it may come to.
        estimate: u64 => 500,
        /// The highest cost of a response; a higher one is not charged. Default: 100 times the estimate, or the most that a request can
        /// reserve, and no less than the burst; less where that cannot be counted. A ceiling has none.
        max: u64 => 30000,
        /// Bytes per unit, for `bytes`.
        per: Bytes [1..=1 << 40] = "1KiB",
        /// Bytes per unit of a response that the client breaks off before its cost is known. Default: such a response costs `max`.
        /// It costs at least the estimate. Without an estimate such a response costs what was reserved.
        broken_off_per: Bytes [1..=1 << 40] => "4B",
        /// Whether the gateway asks for the usage of a streamed chat completion whose client does not (`stream_options.include_usage`), and takes
        /// the event that states it out of the response again. For `usage = "openai"`, and for bodies up to `server.body_facts`.
        ask: bool = false => true,
        /// The cost of a complete response (2xx) that does not state its cost. Without an estimate it costs what was reserved.
        untold: RawUntold = "estimate" => "max",
    }
}

table! {
    /// A number of a response, and what it counts.
    RawNumber {
        /// The member of the JSON body that states the number, or several of which the largest counts.
        @required("{ json = \"usage.completion_tokens\", weight = 4 }") json: OneOrMany<Text> => "usage.completion_tokens",
        /// Units for each. Without an estimate every token is reserved at the greatest weight of the list.
        weight: u64 [0..=1_000_000] = 1 => 4,
        /// The kind of tokens that it counts.
        kind: TokenKind = "input" => "output",
        /// The `kind` of another number of the list that contains this one: it is counted here only.
        inside: TokenKind => "output",
    }
}

settings! {
    /// Units for a token of each kind.
    for TokenWeights as RawWeights {
        /// Tokens read from the request.
        input: u64 [0..=1_000_000] = 1 => 1,
        /// Tokens read from a cache. Default: as `input`.
        cached_input: Option<u64> [0..=1_000_000] => 1,
        /// Tokens written into a cache. Default: as `input`.
        cache_write: Option<u64> [0..=1_000_000] => 1,
        /// Tokens that the model wrote.
        output: u64 [0..=1_000_000] = 1 => 4,
        /// Tokens of reasoning. Default: as `output`.
        reasoning: Option<u64> [0..=1_000_000] => 4,
    }
    make TokenWeights(by_kind(input, output, [cached_input, cache_write, reasoning]));
}

/// What a token of each kind costs in units, as the file writes it.
#[derive(Clone, Debug)]
pub(crate) struct TokenWeights(pub(crate) Weights);

/// What a million tokens of each kind cost in money, as the file writes it.
#[derive(Clone, Debug)]
pub(crate) struct TokenPrices(pub(crate) Weights);

/// What a token of each kind costs, in the order of [`TokenKind::ALL`]: one that is read from a cache
/// or written into one as `input`, and one of reasoning as `output`, unless the file says another.
pub(crate) fn by_kind(
    input: u64,
    output: u64,
    [cached_input, cache_write, reasoning]: [Option<u64>; 3],
) -> Weights {
    [
        input,
        cached_input.unwrap_or(input),
        cache_write.unwrap_or(input),
        output,
        reasoning.unwrap_or(output),
    ]
}

words! {
    for Preset {
        /// OpenAI's chat completions and responses.
        OpenAi = "openai",
        /// Anthropic's messages.
        Anthropic = "anthropic",
    }
}

words! {
    for TokenKind {
        /// Read from the request, neither from a cache nor into one.
        Input = "input",
        /// Read from a cache.
        CachedInput = "cached_input",
        /// Written into a cache.
        CacheWrite = "cache_write",
        /// Written by the model, without reasoning.
        Output = "output",
        /// Thought by the model, and not shown.
        Reasoning = "reasoning",
    }
}

words! {
    /// The cost of a response that does not state its cost.
    pub(crate) enum RawUntold {
        /// The estimate.
        Estimate = "estimate",
        /// The most that a response may cost. Choose this where clients can ask for a response without its cost.
        Max = "max",
    }
}
