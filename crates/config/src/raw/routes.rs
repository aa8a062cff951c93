use crate::reading::{At, Context, Named, OneOrMany, ShortOr, Table, Text, settings, table, words};
use crate::values::forms::Size;
use crate::values::matching::{PatternTable, PatternText};
use crate::values::messages::{HeaderNameText, HeaderText, QuotaHeaders, Refusal};
use tollgate_policy::{Cost, Dialect, RefusalBody, Reset, Responses};

table! {
    /// A route: the requests that it matches, their target, and the limits that they are charged on. Exactly one of `upstream`,
    /// `respond` and `redirect` is the target.
    RawRoute {
        /// The requests that match: `[METHOD[|METHOD]] [HOST]/PATH`, where `{name}` is one segment and `**` the rest; or a table, which can
        /// also name headers, and members of the body. The most specific route takes the request; the order of the routes does not matter.
        @required("match = \"GET /v1/{id}\" matches one path, match = \"/**\" everything") r#match: ShortOr<PatternText, PatternTable> => "POST /v1/search/{index}",
        /// The route's name in logs and metrics. Default: what it matches.
        name: Text => "search",
        /// The upstream that requests are forwarded to: its name, a URL, or `builtin:echo`, which responds without an upstream.
        upstream: Text => "http://127.0.0.1:3000",
        /// A fixed response.
        respond: RawRespond => { status = 200, body = "ok\n" },
        /// A redirect: its target, or a table with target and status. A route takes requests of every listener: one that redirects each request to the
        /// same place over https (`https://{host}{path}{query}`) does so over https, too; `redirect_to_https` of `[server]` redirects those of http listeners only.
        redirect: ShortOr<Text, RawRedirect> => "https://{host}{path}{query}",
        /// The limits that a request is charged on, all together or none: names, or tables with a cost. An empty list is no limit.
        /// Default: `defaults.limits`.
        limits: Vec<At<ShortOr<Text, RawRouteLimit>>> => ["search", { limit = "total", cost = 2 }],
        /// Where requests go that limits of the route refuse: another upstream with limits of its own, or a list of these, which are tried in
        /// order.
        over_limit: OneOrMany<RawOverLimit> => { instead_of = "month", upstream = "cheaper", limits = ["cheap_month"] },
        /// A path prefix that is removed before the request is forwarded.
        strip_prefix: Text => "/v1",
        /// A path prefix that is added before the request is forwarded, after `strip_prefix`.
        add_prefix: Text => "/internal",
        /// Changes to the headers of the forwarded request.
        request_headers: RawHeaders => { set = { "x-tier" = "{tier}" }, remove = ["x-internal"] },
        /// Changes to the headers of the response, also of redirects and other responses of the gateway itself. To a refusal they add
        /// only headers that it does not have.
        response_headers: RawHeaders => { set = { "x-served-by" = "{route}" } },
        /// The body of refusals on this route: a table, `openai`, or `json-rpc`. Then a refused JSON-RPC call (of an MCP client, for example) gets a JSON-RPC
        /// error with its `id` and HTTP status 200, and other requests get a problem document. The body of each request of the route is read, up to
        /// `server.body_facts`.
        refusal: Refusal => { body = "slow down\n", content_type = "text/plain" },
        /// The most bytes of a request's body. Default: `server.bounds.body`.
        body: Size => "1MiB",
    }
}

table! {
    /// Defaults of routes.
    RawDefaults {
        /// The limits of every route that has no `limits` of its own. A route with `limits = []` is charged on none.
        limits: Vec<At<ShortOr<Text, RawRouteLimit>>> = [] => ["per_caller"],
    }
}

table! {
    /// A limit as one route uses it.
    RawRouteLimit {
        /// The limit's name.
        @required("{ limit = \"search\", cost = 2 }") limit: Text => "search",
        /// What a request costs on this route. Default: the limit's own cost.
        cost: Cost => 2,
    }
}

table! {
    /// An upstream that takes requests which limits of the route refuse. The requests are forwarded unchanged.
    RawOverLimit {
        /// The limits whose refusal passes a request on to this upstream, and which it is not charged on then. Every other limit of the
        /// route is charged for this upstream, too, and refuses a request for all of them.
        @required("instead_of = \"month\" names the limits of the route that this upstream replaces") instead_of: OneOrMany<Text> => ["month"],
        /// The upstream: its name, or a URL.
        @required("upstream = \"cheaper\"") upstream: Text => "cheaper",
        /// The limits that requests to this upstream are charged on, beside those of the route that it does not replace.
        limits: Vec<At<ShortOr<Text, RawRouteLimit>>> = [] => ["cheap_month"],
        /// The model that this upstream serves, whatever model the request asks for: limits with `prices` charge its price. Default: the
        /// model that the response names, and until then, or where it names none, the one that the request asks for.
        model: Text => "gpt-4o-mini",
    }
}

table! {
    /// A fixed response.
    RawRespond {
        /// Its status, 200 to 599.
        status: u16 [200..=599] = 200 => 503,
        /// Its body. Default: none.
        body: Text => "ok\n",
        /// Its content type.
        content_type: HeaderText = "text/plain; charset=utf-8" => "application/json",
    }
}

table! {
    /// A redirect.
    RawRedirect {
        /// The target: a URL or a path with placeholders of the request, such as `{host}`, `{path}`, `{query}` and `{path:NAME}`.
        /// `https://{host}{path}{query}` is the same place over TLS.
        @required("{ to = \"https://{host}{path}{query}\", status = 308 }") to: Text => "https://{host}{path}{query}",
        /// 301, 302, 303, 307 or 308.
        status: u16 = 308 => 302,
    }
}

table! {
    /// Changes to headers: `remove` first, then `set`.
    RawHeaders {
        /// Headers that are set, replacing what is there. `{tier}`, `{caller}`, `{route}`, `{address}`, `{host}`, `{path}`, `{query}`,
        /// `{path:NAME}` and `{identity:NAME}` are filled in.
        set: Named<Text> => { "x-tier" = "{tier}" },
        /// Headers that are removed.
        remove: OneOrMany<HeaderNameText> => ["x-internal"],
    }
}

settings! {
    /// The form of refusals and quota headers.
    for Responses as RawResponses {
        /// The dialects of quota headers that are sent.
        headers: QuotaHeaders = ["ratelimit"] => ["ratelimit", "x-ratelimit"],
        /// The unit of the reset values of `draft-06`, `draft-07` and `x-ratelimit`.
        reset: Reset = "seconds" => "epoch",
        /// A refusal body in place of problem+json, for all routes that have none of their own.
        refusal: Option<Refusal> => { body_file = "refusal.json", content_type = "application/json" },
    }
    check check_responses;
}

words! {
    for Reset {
        /// Seconds left.
        Seconds = "seconds",
        /// Seconds since 1970: a moment.
        Epoch = "epoch",
        /// Milliseconds since 1970: a moment.
        EpochMillis = "epoch_ms",
    }
}

/// `reset` is for some of the dialects, and JSON-RPC for some of the routes.
fn check_responses(made: &Responses, table: &Table<'_>, context: &mut Context<'_>) {
    if let (Some(place), Some(RefusalBody::JsonRpc)) = (table.place("refusal"), &made.refusal) {
        let label = "the ids of calls are read from the body, which costs every request";
        context
            .error("refusals as JSON-RPC errors are for a route", place, label)
            .help("write refusal = \"json-rpc\" on the routes that take JSON-RPC");
    }
    let mut dialects = made.headers.iter();
    let legacy = dialects.any(|dialect| matches!(dialect, Dialect::XRateLimit | Dialect::Draft06));
    if let (Some(place), false) = (table.place("reset"), legacy) {
        let title = "`reset` means nothing to the dialects that are sent";
        context
            .warning(title, place, "for legacy headers")
            .help("add \"x-ratelimit\" to `headers`");
    }
}
