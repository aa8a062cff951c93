//! `[[routes]]`, `[responses]`.

use crate::quantity::Size;
use crate::reader::{table, words};
use crate::scalar::{Named, OneOrMany, ShortOr, Text};
use crate::source::At;

table! {
    /// A route: what is matched, where it goes, which limits it is charged on.
    RawRoute {
        /// What is matched: `[METHOD[|METHOD]] [HOST]/PATH`; `{name}` is one segment, `**` the rest. Or a table. Must be written.
        r#match: ShortOr<Text, RawMatch>,
        /// Its name in logs and metrics. Default: what is matched.
        name: Text,
        /// Where it goes: an upstream's name, a URL, or `builtin:echo`. Either this, `respond` or `redirect`.
        upstream: Text,
        /// A fixed answer.
        respond: RawRespond,
        /// A redirect: where to, or a table with a status.
        redirect: ShortOr<Text, RawRedirect>,
        /// The limits it is charged on, all together or none: names, or tables with a cost. Default: none.
        limits: Vec<At<ShortOr<Text, RawRouteLimit>>>,
        /// A path prefix removed before forwarding.
        strip_prefix: Text,
        /// A path prefix added before forwarding, after stripping.
        add_prefix: Text,
        /// Changes to the headers that are forwarded.
        request_headers: RawHeaders,
        /// Changes to the headers of the answer, redirects and other answers of the gateway's own included. To a refusal it adds what
        /// the refusal does not say itself.
        response_headers: RawHeaders,
        /// A refusal body of its own.
        refusal: RawRefusal,
        /// Bytes of a request's body. Default: what the server says.
        body: Size,
    }
}

table! {
    /// What a route matches.
    RawMatch {
        /// Methods. Default: all.
        methods: OneOrMany<Text>,
        /// The host: a name, or `*.example.com`. Default: every host.
        host: Text,
        /// The path: `{name}` is one segment, `**` the rest. Must be written.
        path: Text,
        /// Headers that must have this value; `*` for any value.
        headers: Named<Text>,
    }
}

table! {
    /// A limit as one route uses it.
    RawRouteLimit {
        /// The limit's name.
        limit: Text,
        /// What a request costs here.
        cost: ShortOr<u64, super::RawCost>,
    }
}

table! {
    /// A fixed answer.
    RawRespond {
        /// Its status. Default 200.
        status: u64,
        /// Its body. Default: none.
        body: Text,
        /// Its content type. Default `text/plain; charset=utf-8`.
        content_type: Text,
    }
}

table! {
    /// A redirect.
    RawRedirect {
        /// Where to: a URL or a path, with `{…}` of the request: `{path}` and `{query}` as they were asked for, `{host}`,
        /// `{path:NAME}`, and the others of header edits. `https://{host}{path}{query}` is the same place over TLS.
        to: Text,
        /// 301, 302, 303, 307 or 308. Default 308.
        status: u64,
    }
}

table! {
    /// Changes to headers: removals first, then settings.
    RawHeaders {
        /// Headers that are set, replacing what is there; `{tier}`, `{caller}`, `{route}`, `{address}`, `{host}`, `{path:NAME}`
        /// and `{identity:NAME}` are filled in.
        set: Named<Text>,
        /// Headers that are removed.
        remove: OneOrMany<Text>,
    }
}

table! {
    /// A refusal body in place of problem+json.
    RawRefusal {
        /// The body; `{…}` placeholders are filled in from the refusal.
        body: Text,
        /// A file that holds the body.
        body_file: Text,
        /// Its content type. Must be written.
        content_type: Text,
    }
}

table! {
    /// How refusals and quota fields are written.
    RawResponses {
        /// Which dialects of quota fields are sent. Default `["ratelimit"]`.
        headers: OneOrMany<RawDialect>,
        /// What the legacy reset fields count in. Default `seconds`.
        reset: RawReset,
        /// A refusal body in place of problem+json.
        refusal: RawRefusal,
    }
}

words! {
    /// A dialect of quota fields.
    pub(crate) enum RawDialect {
        /// `RateLimit` and `RateLimit-Policy`, the IETF draft (revision 11).
        Draft11 = "ratelimit",
        /// The same under its revision's name.
        Draft11Named = "draft-11",
        /// The names of the draft's next revision.
        DraftNext = "draft-next",
        /// One `RateLimit` field as `limit=, remaining=, reset=`.
        Draft07 = "draft-07",
        /// `RateLimit-Limit`, `-Remaining`, `-Reset`.
        Draft06 = "draft-06",
        /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
        XRateLimit = "x-ratelimit",
        /// None at all.
        Off = "off",
    }
}

words! {
    /// What the legacy reset fields count in.
    pub(crate) enum RawReset {
        /// Seconds left.
        Seconds = "seconds",
        /// Seconds since 1970.
        Epoch = "epoch",
        /// Milliseconds since 1970.
        EpochMillis = "epoch_ms",
    }
}
