use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::reading::{At, Context, OneOrMany, Table, settings, words};
use crate::values::certificates::{AuthoritiesPem, ChainPem, Pins, PrivateKeyPem, pair};
use crate::values::forms::TIMEOUT;
use crate::values::names::ServerName;
use crate::values::servers::{HealthPath, HostHeader, Servers};
use tollgate_limit::Micros;
use tollgate_policy::UpstreamTimeouts;
use tollgate_policy::upstream::{
    Balance, Eject, Health, ProxyProtocol, Retry, Server, TlsFiles, Upstream,
};

settings! {
    /// An upstream: the servers that requests are forwarded to. A route may also name one server by its URL, without this table.
    for Upstream as RawUpstream {
        /// Its servers: `http://HOST:PORT`, `https://HOST:PORT`, `unix:/PATH`, or a table with a weight. Every address that a host
        /// name resolves to is a server of its own with that weight.
        @required("servers = [\"http://10.0.0.1:3000\"]") servers: Servers => ["http://10.0.0.1:3000", { url = "http://10.0.0.2:3000", weight = 2 }],
        /// How a server is chosen.
        balance: Balance = "least_requests" => "round_robin",
        /// Active health checks. Default: none.
        health: Option<Health> => { path = "/healthz", every = "5s" },
        /// Passive ejection: a server that fails requests is left out for a while. It is always on, also for a route that names a URL.
        /// Where all servers are left out, all of them get requests.
        eject: Eject => { failures = 5, wait = "10s" },
        /// Timeouts for the upstream.
        timeouts: UpstreamTimeouts => { connect = "1s", response = "30s", keep_alive = "4s" },
        /// Which requests are sent again.
        retries: Retries => { attempts = 2, on = ["connect_failure", "503"] },
        /// The Host header that the upstream receives: `keep` (the client's), `upstream` (the server's), or a name. Default: `keep`, and
        /// `upstream` where `server.egress` is set.
        host: Option<HostHeader> => "upstream",
        /// Whether HTTP/2 is spoken to the servers: without TLS by prior knowledge, over TLS where the server agrees to it
        /// (ALPN). gRPC needs it.
        http2: bool = false => true,
        /// Whether interim responses (`103 Early Hints` and other 1xx) are passed on, from HTTP/1.1 upstreams to HTTP/1.1 clients.
        early_hints: bool = false => true,
        /// Connections at the same time, per worker and server.
        connections: usize [1..=MANY] = 1024,
        /// Idle connections that are kept, per worker and server. One that is not used is closed after `timeouts.keep_alive`. Default: as
        /// many as `connections`.
        idle_connections: Option<usize> [0..=MANY] => 256,
        /// Requests that may wait for a connection, per worker; further ones are refused with 503.
        pending: usize [0..=MANY] = 1024,
        /// How long a request may wait for a connection. Default: the connect timeout.
        pending_timeout: Option<Micros> [TIMEOUT] => "1s",
        /// The authorities that the servers' certificates are verified against, a PEM file. Default: the system's.
        ca_file: Option<AuthoritiesPem> => "upstream-ca.pem",
        /// The name that certificates are verified for and that is asked for (SNI). Default: the host of each server's URL.
        server_name: Option<ServerName> => "api.internal",
        /// SHA-256 of each certificate that the servers may show, in hex digits (`openssl x509 -noout -fingerprint -sha256`).
        /// With `ca_file`, certificates are verified as well. Without it, a pinned certificate is accepted with any name, authority and age.
        pinned_sha256: Option<Pins> => "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08",
        /// The certificate that the gateway shows to the servers, a PEM file.
        client_certificate: Option<ChainPem> => "gateway.pem",
        /// The private key of that certificate, a PEM file.
        client_key: Option<PrivateKeyPem> => "gateway.key",
        /// How often host names are looked up again.
        resolve_every: Micros [TIMEOUT] = "5s",
        /// How long a new or recovered server takes to reach its full share; `0s` is at once.
        slow_start: Micros = "0s" => "30s",
        /// The PROXY protocol header sent on new connections. Each connection then carries one request.
        proxy_protocol: ProxyProtocol = "off" => "v2",
    }
    make Upstream {
        // The key of the table is the name, and a form does not see it.
        name: "".into(),
        servers: named(servers, server_name),
        balance,
        queue_timeout: pending_timeout.unwrap_or(timeouts.connect),
        timeouts,
        idle_connections: idle_connections.unwrap_or(connections),
        connections,
        host: host.unwrap_or_default(),
        http2,
        early_hints,
        attempts: retries.attempts,
        retry: retries.after(),
        pending,
        tls: TlsFiles {
            ca: ca_file,
            certificate: client_certificate,
            key: client_key,
            pinned: pinned_sha256.unwrap_or_default(),
        },
        health,
        eject,
        resolve_every,
        slow_start,
        proxy_protocol,
    };
    check check_upstream;
}

words! {
    for Balance {
        /// In turn by weight, leaving out servers that have more than their share of the requests in progress.
        LeastRequests = "least_requests",
        /// In turn by weight.
        RoundRobin = "round_robin",
        /// By a consistent hash of the caller's identity, by weight: the same caller reaches the same server.
        IdentityHash = "identity_hash",
    }
}

words! {
    for ProxyProtocol {
        /// None.
        Off = "off",
        /// Version 1, text.
        V1 = "v1",
        /// Version 2, binary.
        V2 = "v2",
    }
}

settings! {
    /// Active health checks.
    for Health as RawHealth {
        /// The path of the check's request. A 2xx or 3xx response is good.
        @required("health = { path = \"/healthz\", every = \"5s\" }") path: HealthPath => "/healthz",
        /// The time between two checks of a server.
        every: Micros [TIMEOUT] = "5s",
        /// How long a check may take.
        timeout: Micros [TIMEOUT] = "2s",
        /// Good checks in a row after which a server is used again.
        healthy_after: u32 [1..=100] = 2,
        /// Bad checks in a row after which a server is left out.
        unhealthy_after: u32 [1..=100] = 3,
    }
}

settings! {
    /// Passive ejection.
    for Eject as RawEject {
        /// Failures in a row (no connection, no response, 502, 503, 504) after which a server is left out. Outcomes that a client may have caused are not counted, and neither are refused streams and GOAWAY of HTTP/2.
        /// A request that succeeds begins the count anew. Until one does, a single failure after the return leaves the server out again.
        failures: u32 [1..=1000] = 5,
        /// How long it is left out the first time; the time doubles with every repetition, to 32 times this.
        wait: Micros [TIMEOUT] = "10s",
    }
}

settings! {
    /// Timeouts for an upstream.
    for UpstreamTimeouts as RawUpstreamTimeouts {
        /// How long connecting may take.
        connect: Micros [TIMEOUT] = "1s",
        /// The longest time from the end of the request to the head of the response; after that 504. An upstream of a route with a limit that the
        /// body of the response settles has 10 minutes for this and for `idle`, unless they are written: so long do clients of language models wait.
        response: Micros [TIMEOUT] = "30s",
        /// The longest pause between two pieces of a body, in either direction.
        idle: Micros [TIMEOUT] = "60s",
        /// How long an idle connection is kept at most, in whole seconds, rounded up. Write less than the server's own time: a request on a connection
        /// that the server closes at that moment fails. An HTTP/1 connection is closed a second before the time that the server itself states in `Keep-Alive: timeout=N`.
        keep_alive: Micros [KEPT] = "60s",
        /// The longest time from the decision to forward the request to the end of the response, with the wait for a connection and all attempts; after that 504, or the end of a response that has begun. Default: no bound of its own.
        total: Option<Micros> [TIMEOUT] => "2m",
    }
    check check_timeouts;
}

/// Which requests are sent again.
struct Retries {
    attempts: u32,
    /// The events after which a request is sent again.
    on: Vec<At<RetryOn>>,
}

settings! {
    /// Which requests are sent again.
    for Retries as RawRetries {
        /// Attempts in all, 1 to 10; 1 is no retry. A request that no server can have read is sent again without counting as an attempt:
        /// when a kept connection accepts no byte any more, or an HTTP/2 server closes in order (GOAWAY) without having processed the stream.
        attempts: u32 [1..=10] = 2 => 3,
        /// The events after which a request is sent again.
        on: OneOrMany<RetryOn> = ["connect_failure", "refused_stream", "connection_closed"] => ["connect_failure", "503"],
    }
    check check_retries;
}

words! {
    /// An event after which a request is sent again.
    enum RetryOn {
        /// No connection could be made.
        ConnectFailure = "connect_failure",
        /// HTTP/2: the server refused the stream before it processed it.
        RefusedStream = "refused_stream",
        /// A kept connection was closed without a byte of response (idempotent methods without a body only).
        ConnectionClosed = "connection_closed",
        /// Status 503 (idempotent methods only).
        Unavailable = "503",
        /// Status 502 (idempotent methods only).
        BadGateway = "502",
        /// Status 504 (idempotent methods only).
        GatewayTimeout = "504",
    }
}

/// The servers; `name` replaces the name in the URL of each that uses TLS.
fn named(mut servers: Vec<Server>, name: Option<Arc<str>>) -> Vec<Server> {
    for tls in servers.iter_mut().filter_map(|server| server.tls.as_mut()) {
        *tls = name.clone().unwrap_or_else(|| Arc::clone(tls));
    }
    servers
}

/// After a single attempt nothing is sent again.
fn check_retries(made: &Retries, table: &Table<'_>, context: &mut Context<'_>) {
    if let (1, Some(place)) = (made.attempts, table.place("on")) {
        let title = format!("`{}` never tries again", context.name());
        let label = "says after what, but attempts = 1 is no retry";
        context.warning(title, place, label);
    }
}

/// A total time that is no longer than the one for a response, where both are written.
fn check_timeouts(made: &UpstreamTimeouts, table: &Table<'_>, context: &mut Context<'_>) {
    let written = table.place("total").zip(table.place("response"));
    if let (Some((total, response)), true) = (
        written,
        made.total.is_some_and(|total| total <= made.response),
    ) {
        let title = format!("`{}.response` is never reached", context.name());
        context
            .warning(title, response, "the time for the head of a response")
            .at(total, "the whole exchange ends before")
            .help("write a longer `total` or a shorter `response`");
    }
}

impl Retries {
    fn after(&self) -> Retry {
        let on = |event| self.on.iter().any(|at| at.value == event);
        let statuses = [
            (RetryOn::BadGateway, 502),
            (RetryOn::Unavailable, 503),
            (RetryOn::GatewayTimeout, 504),
        ];
        let statuses = statuses.into_iter().filter(|(after, _)| on(*after));
        Retry {
            connect_failure: on(RetryOn::ConnectFailure),
            refused_stream: on(RetryOn::RefusedStream),
            connection_closed: on(RetryOn::ConnectionClosed),
            statuses: statuses.map(|(_, status)| status).collect(),
        }
    }
}

/// Keys that need another key, or exclude one.
fn check_upstream(upstream: &Upstream, table: &Table<'_>, context: &mut Context<'_>) {
    let tls = upstream.servers.iter().any(|server| server.tls.is_some());
    for key in [
        "ca_file",
        "client_certificate",
        "server_name",
        "pinned_sha256",
    ] {
        if let (Some(place), false, false) = (table.place(key), tls, upstream.servers.is_empty()) {
            let label = "no server of this upstream has an https URL";
            context.error(
                format!("`{key}` needs servers that speak TLS"),
                place,
                label,
            );
        }
    }
    pair(
        table.place("client_certificate"),
        table.place("client_key"),
        context,
    );
    let http2 = table.place("http2").filter(|_| upstream.http2);
    let header = table
        .place("proxy_protocol")
        .filter(|_| upstream.proxy_protocol != ProxyProtocol::Off);
    if let (Some(http2), Some(place)) = (http2, header) {
        let title = "a PROXY header cannot name the client on an HTTP/2 connection";
        context
            .error(title, place, "requests of many clients share one")
            .at(http2, "since this is on")
            .help("leave one of them out: X-Forwarded-For names the client of each request");
    }
    let hints = table.place("early_hints").filter(|_| upstream.early_hints);
    if let (Some(http2), Some(place)) = (http2, hints) {
        let title = "interim responses of an HTTP/2 upstream cannot be passed on";
        context
            .error(title, place, "none would be")
            .at(http2, "since this is on");
    }
}

/// How long an idle connection may be kept: pools look once a second.
const KEPT: RangeInclusive<u64> = 1_000_000..=*TIMEOUT.end();
/// Far above any intended number, and little enough to count.
const MANY: u64 = 1_000_000;
