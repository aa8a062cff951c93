use crate::reading::{Named, OneOrMany, ShortOr, Text, settings, table, words};
use crate::values::costs::{Counted, RefuseStatus, Settlement, Status, TokenPrices, by_kind};
use crate::values::forms::{BLOCK, Bytes, Percent, Refusals, ShareOfKeys};
use crate::values::in_flight::InFlight;
use crate::values::rate::{Money, Rate};
use tollgate_limit::{Kind, Micros, Mode, OnFailover, Penalty, Placement, WhenDown};
use tollgate_policy::Cost;

table! {
    /// A limit: its numbers, the owners of its buckets, and its behaviour when a bucket is used up. Exactly one of `rate` and `in_flight` is written.
    RawLimit {
        /// Units per period, such as `100/minute`, `10/10s` or `5000/day`, or money, such as `50 USD/month`; `unlimited` sets no bound. The periods are `second`, `minute`,
        /// `hour`, `day`, `week`, `month` (calendar windows only) and durations. All but `month` have a short form: `s`, `min`, `h`, `d`, `w`.
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
        /// name, so a renamed route has new buckets), `method` (GET with HEAD, POST, PUT, DELETE, PATCH, OPTIONS, CONNECT and each method
        /// that the route lists have a bucket each, all other methods share one) and
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
        /// Lowers the rate while the upstream responds with 429 or 503, and raises it again afterwards (`token_bucket` in the process only).
        follow_upstream: RawFollow => { least = "10/minute" },
        /// Whether nothing may ever exceed the limit, whatever happens at the same time: what would is an error of the file. A request whose cost
        /// is above `cost.max`, or cannot be read, never fits. Units are given back only to the window that they came from. `check` warns of
        /// a `cost` that is no bound of what a response may cost.
        ceiling: bool = false => true,
        /// How long a request may be held until its units are due, instead of being refused; `0s` never holds one. Where `settle` reserves, a
        /// request that is refused only because of what others have reserved waits in line this long until enough of that is settled.
        max_wait: Micros = "0s" => "2s",
        /// Percentages of its units whose use is an event (`fixed_window` only): `threshold`, once for each key and window. What is only reserved
        /// is not used.
        events: Vec<Percent> = [] => ["50%", "80%", "100%"],
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
        penalty: Penalty => { after = "20 refusals in 1m", block = "10m" },
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

settings! {
    /// Blocks a key that the limit refuses too often: each gateway by the refusals that it makes. All requests of the key under this
    /// limit are then refused there, until the block ends. A block keeps its end through a reload.
    for Penalty as RawPenalty {
        /// The refusals by one gateway, within a span from the first of them, after which the key is blocked.
        @required("penalty = { after = \"20 refusals in 1m\", block = \"10m\" }") after: Refusals => "20 refusals in 1m",
        /// How long the key is blocked. Requests during the block neither shorten nor prolong it.
        @required("penalty = { after = \"20 refusals in 1m\", block = \"10m\" }") block: Micros [BLOCK] => "10m",
    }
    make Penalty {
        refusals: after.0,
        span: after.1,
        block,
    };
}

table! {
    /// How a limit follows its upstream.
    RawFollow {
        /// The rate that it never falls below.
        @required("follow_upstream = { least = \"10/minute\" }") least: Rate => "10/minute",
        /// Whether the upstream's own quota is obeyed: `Retry-After` on 429 and 503, and `RateLimit` or `X-RateLimit` headers that leave
        /// less than the rate. It is meant for a limit per `everyone`: what the upstream says to one caller holds all of them. Default: `false`, and `true` where `server.egress` is set.
        obey_quota: bool => true,
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
    /// What the tokens of language models cost. Limits with `prices` count money by it.
    RawPrices {
        /// The unit of money, by its code of three letters. Limits count in millionths of it.
        currency: Text = "USD" => "EUR",
        /// The prices of each model, by its name; `*` stands for any characters. A name without `*` is the most specific, then the one with
        /// the most other characters.
        @required("[prices.models.\"gpt-4o*\"] with input = \"2.50\" and output = \"10\"") models: Named<TokenPrices> => { "gpt-4o*" = { input = "2.50", output = "10" } },
    }
}

settings! {
    /// The prices of a model, for a million tokens of each kind. At most six digits after the point.
    for TokenPrices as RawPrice {
        /// Tokens read from the request.
        @required("input = \"2.50\" is 2.50 for a million tokens") input: Money => "2.50",
        /// Tokens read from a cache. Default: as `input`.
        cached_input: Option<Money> => "1.25",
        /// Tokens written into a cache. Default: as `input`.
        cache_write: Option<Money> => "3.75",
        /// Tokens that the model wrote.
        @required("output = \"10\" is 10 for a million tokens") output: Money => "10.00",
        /// Tokens of reasoning. Default: as `output`.
        reasoning: Option<Money> => "10.00",
    }
    make TokenPrices(by_kind(input, output, [cached_input, cache_write, reasoning]));
}
