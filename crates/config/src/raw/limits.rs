//! `[limits.*]`, `[tiers.*]`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::WhenDown;
use crate::problem::Problem;
use crate::quantity::{Share, Size, Time};
use crate::rate::Rate;
use crate::reader::{Node, Read, Reader, table, words};
use crate::scalar::{OneOrMany, ShortOr, Text, schema_of};
use crate::source::At;

table! {
    /// A limit: how much, for whom, and what happens beyond it.
    RawLimit {
        /// Units per period: `100/minute`, `10/10s`, `5000/day`; `unlimited` where that is meant. Either this or `in_flight`.
        rate: Rate,
        /// The most at once (buckets only). Default: the rate's number, which admits up to twice as much in one period.
        burst: u64,
        /// A concurrency limit: the most requests at once.
        in_flight: InFlight,
        /// How it counts. Default `token_bucket`.
        algorithm: RawAlgorithm,
        /// Where fixed windows begin.
        window: RawWindow,
        /// What splits it into buckets: an identity, `address`, `everyone`, or a list of them. Must be written. Buckets are
        /// shared by all routes that name the limit.
        per: OneOrMany<Text>,
        /// What a request costs. Default 1; a route may say otherwise.
        cost: ShortOr<u64, RawCost>,
        /// Charge an estimate, correct it from the response.
        settle: RawSettle,
        /// Which requests count: `all`, `failures` (401, 403), or a list of response statuses like `["401", "5xx"]`. The others are given back. Default `all`.
        count: OneOrMany<Text>,
        /// Response statuses after which the charge is given back: `["502", "503"]`, `["5xx"]`.
        refund_on: Vec<At<Text>>,
        /// Units a bucket may go below zero by, the next caller paying. Default 0.
        debt: u64,
        /// The time a cold bucket takes to reach its full rate (local store only). Default `0s`.
        warm_up: Time,
        /// The rate granted falls while the upstream answers 429 or 503, and recovers with it (`token_bucket`, local store only).
        follow_upstream: RawFollow,
        /// Above zero, a request is held until its token is due, if that is soon enough. Default `0s`.
        max_wait: Time,
        /// Whether a hot total may be leased from the shared store. Default `false`.
        lease: bool,
        /// What a fail-over of the shared store does to the buckets. Default `keep`.
        on_failover: OnFailover,
        /// Bytes its local table may take. Default `64MiB`.
        memory: Size,
        /// Whether refusals count. Default `enforce`.
        mode: RawMode,
        /// The share of keys it is enforced for; the others are only counted. Default `100% of keys`.
        enforce_for: Share,
        /// Other numbers, judged beside the live ones on the same traffic and only counted.
        candidate: RawTier,
        /// Where its buckets live. Default `shared` where a store is configured, otherwise `local`.
        store: RawPlacement,
        /// What happens when the store does not answer. Default: what the store says.
        when_down: WhenDown,
    }
}

table! {
    /// Other numbers for a limit. What is not written is as in the limit itself.
    RawTier {
        /// Units per period.
        rate: Rate,
        /// The most at once. Default: the limit's own burst, or the rate's number where that writes none.
        burst: u64,
        /// The most requests at once, where the limit is a concurrency limit.
        in_flight: InFlight,
    }
}

table! {
    /// How far the rate may fall while the upstream asks for less, and whether the upstream's own quota is obeyed.
    RawFollow {
        /// The least rate: `10/minute`. Must be written.
        least: Rate,
        /// Whether what the upstream says of its own quota is obeyed: Retry-After on 429 and 503, and RateLimit fields (or
        /// X-RateLimit-Remaining and -Reset) that leave less than the rate, or nothing. Default `false`; `true` where `server.egress` is.
        obey_quota: bool,
    }
}

table! {
    /// A concurrency limit that finds by itself how much the upstream can take.
    RawAdaptive {
        /// `true`. Must be written.
        adaptive: bool,
        /// The fewest requests at once, however ill the upstream is. Default 1.
        least: u64,
        /// The most requests at once, however well it is. Default 1000.
        most: u64,
    }
}

words! {
    /// How a limit counts.
    pub(crate) enum RawAlgorithm {
        /// Continuous refill.
        TokenBucket = "token_bucket",
        /// The rate's number at once each whole period since first use, up to the burst.
        Interval = "interval",
        /// A count per window.
        FixedWindow = "fixed_window",
        /// An estimate from two windows.
        SlidingWindow = "sliding_window",
        /// A log of grants: exact, for small numbers.
        SlidingLog = "sliding_log",
    }
}

words! {
    /// What refusals do.
    pub(crate) enum RawMode {
        /// They refuse.
        Enforce = "enforce",
        /// They are counted.
        Shadow = "shadow",
        /// The limit is not looked at.
        Off = "off",
    }
}

words! {
    /// Where buckets live.
    pub(crate) enum RawPlacement {
        /// In the configured store.
        Shared = "shared",
        /// In this process.
        Local = "local",
    }
}

words! {
    /// What a fail-over does to buckets.
    pub(crate) enum OnFailover {
        /// What the promoted store knows is kept.
        Keep = "keep",
        /// Every bucket starts empty.
        Drain = "drain",
    }
}

table! {
    /// Where fixed windows begin.
    RawWindow {
        /// `first_hit`: at the first request after the last window. `clock`: at multiples of the period since 1970 (UTC).
        /// `calendar`: at days, weeks or months of a time zone. Default `first_hit`.
        align: RawAlign,
        /// The time zone of calendar windows: `Europe/Berlin`. Default `UTC`.
        zone: Text,
        /// The day a calendar month begins on, 1 to 31 (the last day where a month is shorter); or the day a week begins on,
        /// 1 (Monday) to 7. Default 1.
        anchor_day: u64,
    }
}

words! {
    /// Where fixed windows begin.
    pub(crate) enum RawAlign {
        /// At the first request.
        FirstHit = "first_hit",
        /// At multiples of the period.
        Clock = "clock",
        /// At days, weeks or months.
        Calendar = "calendar",
    }
}

table! {
    /// A cost that comes with the request.
    RawCost {
        /// The request header that says it.
        header: Text,
        /// `true`: the request's Content-Length says it, in steps of `per` bytes.
        content_length: bool,
        /// Bytes per unit, for `content_length`. Default `1KiB`.
        per: Size,
        /// What a request without the header costs. One whose header is not digits alone costs `max`. Default 1.
        default: u64,
        /// The least a request costs. Default 1.
        min: u64,
        /// The most a request costs. Must be written: callers must not choose their own price.
        max: u64,
    }
}

table! {
    /// Charge an estimate, correct it from the response.
    RawSettle {
        /// Where the real cost stands: `header:NAME`, `bytes`, or `json:PATH`, names of members joined by dots like
        /// `json:usage.total_tokens`.
        from: Text,
        /// Units charged at first. Must be written.
        estimate: u64,
        /// The most a response may make a request cost: what it says above that is not charged. Default: 100 times the estimate,
        /// and no less than the burst.
        max: u64,
        /// Bytes per unit, for `bytes`. Default `1KiB`.
        per: Size,
        /// Bytes of response per unit, for one that the caller breaks off before it has said its cost. Default: such a
        /// response costs `max`. Never less than the estimate.
        broken_off_per: Size,
        /// What a whole response (2xx) costs that does not say its cost: `estimate`, or `max` where callers can ask for such
        /// a response. Default `estimate`.
        untold: RawUntold,
    }
}

words! {
    /// What a response costs that does not say it.
    pub(crate) enum RawUntold {
        /// What was charged at first.
        Estimate = "estimate",
        /// The most a response may cost.
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
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        const WANTED: &str = "a number of requests, \"adaptive\", or a table { adaptive = true, least = 5, most = 200 }";
        match node.value {
            DeValue::Integer(_) => u64::read(node, reader).map(Self::Most),
            DeValue::Table(_) => Self::between(&RawAdaptive::read(node, reader)?, node, reader),
            _ => {
                let text = Text::read_as(node, reader, WANTED)?;
                if text.value == "adaptive" {
                    return Some(Self::Adaptive {
                        least: 1,
                        most: ADAPTIVE_MOST,
                    });
                }
                reader.mismatch(node, WANTED, node.value);
                None
            }
        }
    }
}

impl InFlight {
    fn between(raw: &RawAdaptive, node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        if !raw.adaptive.or(false) {
            let problem =
                Problem::error("a table for `in_flight` says the bounds of an adaptive limit");
            let label = "`adaptive = true` is missing";
            reader.problems.push(
                problem
                    .at(raw.adaptive.place().unwrap_or(node.place), label)
                    .help("write in_flight = 10 for a fixed number, or { adaptive = true, least = 5, most = 200 }"),
            );
            return None;
        }
        let (least, most) = (raw.least.or(1), raw.most.or(ADAPTIVE_MOST));
        if least == 0 || least > most {
            let label = if least == 0 {
                "at least 1".to_owned()
            } else {
                format!("the most is {most}")
            };
            let problem =
                Problem::error("an adaptive limit needs room between its least and its most");
            let place = raw.least.place().or(raw.most.place()).unwrap_or(node.place);
            reader.problems.push(problem.at(place, label));
            return None;
        }
        Some(Self::Adaptive { least, most })
    }
}

schema_of!(InFlight, "InFlight", generator => json_schema!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "const": "adaptive" }, generator.subschema_for::<RawAdaptive>()] }));

/// The most an adaptive concurrency limit ever admits at once, when the file does not say.
const ADAPTIVE_MOST: u64 = 1_000;
