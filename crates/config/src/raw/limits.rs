//! `[limits.*]`, `[tiers.*]`.

use serde_json::{Value, json};
use toml::de::DeValue;

use crate::context::Context;
use crate::declare::{table, words};
use crate::forms::{BLOCK, Bytes, Refusals, ShareOfKeys};
use crate::lists::{OneOrMany, ShortOr};
use crate::rate::Rate;
use crate::reader::{Node, Read, mismatch};
use crate::scalar::from_variable;
use crate::schema::Defs;
use crate::text::Text;
use crate::validate::costs::{Counted, RefuseStatus, SettleSource, Settlement, Status};
use tollgate_limit::{Kind, Micros, Mode, OnFailover, Penalty, Placement, WhenDown};
use tollgate_policy::Cost;
use tollgate_policy::usage::{Preset, TokenKind};

table! {
    /// A limit: its numbers, the owners of its buckets, and its behaviour when a bucket is used up. Exactly one of `rate` and `in_flight` is written.
    RawLimit {
        /// Units per period, such as `100/minute`, `10/10s` or `5000/day`, or money, such as `50 USD/month`; `unlimited` sets no bound. The periods are `second`, `minute`,
        /// `hour`, `day`, `week`, `month` (calendar windows only) and durations.
        rate: Rate => "100/minute",
        /// The most at once (`token_bucket` and `interval` only). Default: the number of the rate, which admits up to twice as much
        /// in one period.
        burst: u64 => 20,
        /// A concurrency limit: the most requests in progress at the same time. `adaptive` adapts the number to the upstream.
        in_flight: InFlight => 10,
        /// How it counts.
        algorithm: Kind = "token_bucket" => "fixed_window",
        /// Where fixed windows begin (`fixed_window` only).
        window: RawWindow => { align = "calendar", zone = "Europe/Berlin", anchor_day = 1 },
        /// The owners of buckets: `address`, an identity, a source of a key such as `header:x-api-key`, `everyone` (one bucket for
        /// all), or a list of them. All routes that name the limit share its buckets. Three words split it further: `route` (by the route's
        /// name, so a renamed route has new buckets), `method` (HEAD counts as GET, and methods that no route lists share one bucket) and
        /// `host` (as the route names it, so all names below `*.example.com` share one bucket).
        @required("per = \"address\" counts each address by itself, per = \"everyone\" all callers together, the name of an identity each of its keys") per: OneOrMany<Text> => "address",
        /// How a request without the key is treated, if `per` names a source of a key. As in `[identities]`.
        when_missing: ShortOr<Text, super::RawWhenMissing> => "use:address",
        /// What a request costs. A route may set its own cost.
        cost: Cost = 1 => { json = "max_tokens", default = 1000, max = 30000, plus = "body_bytes" },
        /// Charges an estimate, or reserves the most that `cost` says, and corrects it to the cost that the response states.
        settle: Settlement => { from = "json:usage.total_tokens", estimate = 500 },
        /// Makes its units money, in millionths of the unit of `[prices]`: the member of the request's body, or the segment of its path
        /// (`path:deployment`), that names the model. Of several the first counts that a route has. The rate is
        /// then written in money, such as `50 USD/month`, `settle` states tokens, and `cost` the most tokens of output that a request may ask for.
        prices: OneOrMany<Text> => "json:model",
        /// How a request for a model without a price is treated, if `prices` is written: `refuse` (400), or the name of the price that applies.
        unknown_model: Text = "refuse" => "refuse",
        /// Which requests count: `all`, `failures` (401 and 403), or a list of response statuses like `["401", "5xx"]`. All others are
        /// given back.
        count: Counted = "all" => "failures",
        /// Response statuses after which the charge is given back.
        refund_on: Vec<Status> = [] => ["502", "503"],
        /// The status of its refusals: 429, or 402 (Payment Required) for a budget. If several limits refuse a request, 402 stands if one
        /// of them says it. A concurrency limit refuses with 429.
        refuse_status: RefuseStatus = 429 => 402,
        /// Units that a bucket may go below zero by; the next request waits until they are paid.
        debt: u64 = 0 => 100,
        /// The time that a cold bucket takes to reach its full rate (`token_bucket` in the process only).
        warm_up: Micros = "0s" => "30s",
        /// Lowers the rate while the upstream responds with 429 or 503, and raises it again afterwards (`token_bucket` in the process only).
        follow_upstream: RawFollow => { least = "10/minute" },
        /// Whether nothing may ever exceed the limit, whatever happens at the same time: what would is an error of the file. A request whose cost
        /// is above `cost.max`, or cannot be read, never fits. Units are given back only to the window that they came from. `check` warns of
        /// a `cost` that is no bound of what a response may cost.
        ceiling: bool = false => true,
        /// How long a request may be held until its units are due, instead of being refused; `0s` never holds one.
        max_wait: Micros = "0s" => "2s",
        /// Whether gateways lease units of a shared limit for a moment, which saves round trips to the store where many requests
        /// share one bucket.
        lease: bool = false => true,
        /// How a fail-over of the shared store changes the buckets.
        on_failover: OnFailover = "keep" => "drain",
        /// Bytes that its table in the process may take, 64KiB or more. `tollgate check` prints the number of callers that this is enough for.
        memory: Bytes<usize> [64 << 10..=1 << 40] = "64MiB" => "16MiB",
        /// Whether the limit refuses.
        mode: Mode = "enforce" => "shadow",
        /// The share of keys that the limit is enforced for. For the others it is only counted.
        enforce_for: ShareOfKeys = "100% of keys" => "25% of keys",
        /// Other numbers, judged beside the live ones on the same traffic and only counted.
        candidate: RawTier => { rate = "60/minute" },
        /// Blocks a key that the limit refuses too often.
        penalty: RawPenalty => { after = "20 refusals in 1m", block = "10m" },
        /// Where its buckets are kept. Default: `shared` where there is a `[store]`, otherwise `local`.
        store: Placement => "local",
        /// How requests are treated while the store does not respond. Default: `store.when_down`.
        when_down: WhenDown => "refuse",
    }
}

table! {
    /// Other numbers for a limit. A number that is left out is that of the limit itself.
    RawTier {
        /// Units per period.
        rate: Rate => "1000/minute",
        /// The most at once. Default: the limit's own burst, or the number of the rate where the limit has none.
        burst: u64 => 100,
        /// The most requests in progress at the same time, where the limit is a concurrency limit.
        in_flight: InFlight => 50,
    }
}

table! {
    /// Blocks a key that the limit refuses too often. All requests of the key under this limit are then refused, until the block ends.
    RawPenalty {
        /// The refusals by one gateway, within a span from the first of them, after which the key is blocked.
        @required("penalty = { after = \"20 refusals in 1m\", block = \"10m\" }") after: Refusals => "20 refusals in 1m",
        /// How long the key is blocked. Requests during the block neither shorten nor prolong it.
        @required("penalty = { after = \"20 refusals in 1m\", block = \"10m\" }") block: Micros [BLOCK] => "10m",
    }
}

impl RawPenalty {
    /// The penalty; `None`: a key is missing, which was reported.
    pub(crate) fn built(&self) -> Option<Penalty> {
        let (refusals, span) = self.after.get()?.value;
        let block = self.block.get()?.value;
        Some(Penalty {
            refusals,
            span,
            block,
        })
    }
}

table! {
    /// How a limit follows its upstream.
    RawFollow {
        /// The rate that it never falls below.
        @required("follow_upstream = { least = \"10/minute\" }") least: Rate => "10/minute",
        /// Whether the upstream's own quota is obeyed: `Retry-After` on 429 and 503, and `RateLimit` or `X-RateLimit` headers that leave
        /// less than the rate. Default: `false`, and `true` where `server.egress` is set.
        obey_quota: bool => true,
    }
}

table! {
    /// A concurrency limit that adapts to the number of requests that the upstream can process.
    RawAdaptive {
        /// `true`.
        @required("in_flight = 10 for a fixed number, or { adaptive = true, least = 5, most = 200 }") adaptive: bool => true,
        /// The lowest value of the limit.
        least: u64 = 1 => 5,
        /// The highest value of the limit.
        most: u64 = 1000 => 200,
    }
}

words! {
    for Kind {
        /// A bucket of `burst` units that refills continuously.
        TokenBucket = "token_bucket",
        /// A bucket to which the number of the rate is added once each whole period since its first use, up to the burst.
        Interval = "interval",
        /// A count that starts again with each window.
        FixedWindow = "fixed_window",
        /// An estimate from this window and the one before.
        SlidingWindow = "sliding_window",
        /// A log of grants: exact, for small numbers.
        SlidingLog = "sliding_log",
    }
}

words! {
    for Mode {
        /// It refuses.
        Enforce = "enforce",
        /// It never refuses; requests that it would have refused are counted in the metrics.
        Shadow = "shadow",
        /// It is not evaluated.
        Off = "off",
    }
}

words! {
    for Placement {
        /// In the `[store]`.
        Shared = "shared",
        /// In this process.
        Local = "local",
    }
}

words! {
    for OnFailover {
        /// Buckets continue as the promoted store knows them.
        Keep = "keep",
        /// Every bucket starts empty.
        Drain = "drain",
    }
}

table! {
    /// Where fixed windows begin.
    RawWindow {
        /// What windows are aligned to.
        align: RawAlign = "first_hit" => "calendar",
        /// The time zone of calendar windows.
        zone: Text = "UTC" => "Europe/Berlin",
        /// The day on which a calendar month begins, 1 to 31 (the last day where a month is shorter), or a calendar week, 1 (Monday) to 7.
        anchor_day: u64 = 1 => 15,
    }
}

words! {
    /// What windows are aligned to.
    pub(crate) enum RawAlign {
        /// A window begins with the first granted request after the last window.
        FirstHit = "first_hit",
        /// Windows begin at multiples of the period since 1970 (UTC).
        Clock = "clock",
        /// Windows are days, weeks or months of a time zone.
        Calendar = "calendar",
    }
}

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
        /// For `json`: a member by whose number the cost is multiplied.
        times: Text => "n",
        /// For `json`: `body_bytes` adds a unit for each byte of the body, `body_bytes / 4` a unit for every 4 bytes.
        plus: Text => "body_bytes / 4",
        /// The cost of a request without the header or the member. Default: 1. A header with characters other than digits costs `max`.
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
        weights: RawWeights => { output = 4 },
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

table! {
    /// Units for a token of each kind.
    RawWeights {
        /// Tokens read from the request.
        input: u64 [0..=1_000_000] = 1 => 1,
        /// Tokens read from a cache. Default: as `input`.
        cached_input: u64 [0..=1_000_000] => 1,
        /// Tokens written into a cache. Default: as `input`.
        cache_write: u64 [0..=1_000_000] => 1,
        /// Tokens that the model wrote.
        output: u64 [0..=1_000_000] = 1 => 4,
        /// Tokens of reasoning. Default: as `output`.
        reasoning: u64 [0..=1_000_000] => 4,
    }
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

/// The most requests at once: a number, `adaptive`, or a table with the bounds it adapts within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    /// So many.
    Most(u64),
    /// As many as the upstream can take, between these bounds.
    Adaptive {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
}

impl Read for InFlight {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        const WANTED: &str = "a number of requests, \"adaptive\", or a table { adaptive = true, least = 5, most = 200 }";
        match node.value {
            DeValue::Integer(_) => u64::read(node, context).map(Self::Most),
            DeValue::String(text) if text.contains("${") => {
                from_variable(node, context, WANTED).map(Self::Most)
            }
            DeValue::Table(_) => Self::between(&RawAdaptive::read(node, context)?, node, context),
            _ => {
                let text = Text::read_as(node, context, WANTED)?;
                if text.as_str() == "adaptive" {
                    let bounds = RawAdaptive::default();
                    let (least, most) = (bounds.least().value, bounds.most().value);
                    return Some(Self::Adaptive { least, most });
                }
                mismatch(node, WANTED, node.value, context);
                None
            }
        }
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "type": "string", "enum": ["adaptive"] },
            RawAdaptive::schema(defs),
        ] })
    }
}

impl InFlight {
    fn between(raw: &RawAdaptive, node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        let adaptive = raw.adaptive.get()?;
        if !adaptive.value {
            let title = "a table for `in_flight` says the bounds of an adaptive limit";
            context
                .error(title, adaptive.place, "`adaptive = true` is missing")
                .help("write in_flight = 10 for a fixed number, or { adaptive = true, least = 5, most = 200 }");
            return None;
        }
        let (least, most) = (raw.least().value, raw.most().value);
        if least == 0 || least > most {
            let label = if least == 0 {
                "at least 1".to_owned()
            } else {
                format!("the most is {most}")
            };
            let title = "an adaptive limit needs room between its least and its most";
            let place = raw.least.place().or(raw.most.place()).unwrap_or(node.place);
            context.error(title, place, label);
            return None;
        }
        Some(Self::Adaptive { least, most })
    }
}
