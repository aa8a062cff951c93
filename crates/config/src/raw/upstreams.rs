//! `[upstreams.*]`.

use crate::quantity::Time;
use crate::reader::{table, words};
use crate::scalar::{OneOrMany, ShortOr, Text};

table! {
    /// Where requests go.
    RawUpstream {
        /// Its servers: `http://HOST:PORT`, `https://HOST:PORT`, `unix:/PATH`, or a table with a weight. Every address of a name is
        /// a server of its own, with that weight; `localhost` is one.
        servers: OneOrMany<ShortOr<Text, RawServer>>,
        /// How a server is chosen. Default `least_requests`.
        balance: RawBalance,
        /// Active health checks. Default: none.
        health: RawHealth,
        /// Passive ejection of servers that fail.
        eject: RawEject,
        /// How long it may take.
        timeouts: RawUpstreamTimeouts,
        /// What may be sent again.
        retries: RawRetries,
        /// What is sent as Host: `keep` (the caller's), `upstream` (the server's), or a name. Default `keep`;
        /// `upstream` where `server.egress` is.
        host: Text,
        /// Whether HTTP/2 is spoken to it (in clear text without negotiation; over TLS by ALPN, and HTTP/1.1 where the server does
        /// not agree on HTTP/2). gRPC needs it. Default `false`.
        http2: bool,
        /// Whether its interim answers (`103 Early Hints` and other 1xx) are passed on: from HTTP/1.1 upstreams to callers of
        /// HTTP/1.1, since the protocol library sends none over HTTP/2. Default `false`.
        early_hints: bool,
        /// Connections at once, per worker and server. Default 1024.
        connections: u64,
        /// Idle connections kept, per worker and server. Default 256.
        idle_connections: u64,
        /// Requests that may wait for a connection, per worker. Default 1024.
        pending: u64,
        /// How long a request may wait for a connection. Default: the connect timeout.
        pending_timeout: Time,
        /// Certificate authorities its certificates are verified against (a PEM file). Default: the system's.
        ca_file: Text,
        /// The name its certificates are verified for, and asked for by (SNI), in place of the host of each server's URL.
        server_name: Text,
        /// SHA-256 of each certificate that its servers may show, in hex digits (`openssl x509 -noout -fingerprint -sha256`).
        /// With `ca_file` they are verified besides; without, name, authority and age of a pinned certificate are not asked.
        pinned_sha256: OneOrMany<Text>,
        /// The certificate shown to it (a PEM file).
        client_certificate: Text,
        /// The key of that certificate (a PEM file).
        client_key: Text,
        /// How often names are looked up again. Default `5s`.
        resolve_every: Time,
        /// How long a new or recovered server takes to get its full share. Default `0s`.
        slow_start: Time,
        /// The PROXY protocol header sent on new connections. Default `off`.
        proxy_protocol: SendProxyProtocol,
    }
}

table! {
    /// One server.
    RawServer {
        /// Where it is.
        url: Text,
        /// Its share among the servers. Default 1.
        weight: u64,
    }
}

words! {
    /// How a server is chosen.
    pub(crate) enum RawBalance {
        /// In turn by weight, passing over those that have more than their weight's share of the requests under way.
        LeastRequests = "least_requests",
        /// In turn, by weight.
        RoundRobin = "round_robin",
        /// By a consistent hash of the caller's identity and the server's name, by weight.
        IdentityHash = "identity_hash",
    }
}

words! {
    /// The PROXY protocol header sent.
    pub(crate) enum SendProxyProtocol {
        /// None.
        Off = "off",
        /// The text form.
        V1 = "v1",
        /// The binary form.
        V2 = "v2",
    }
}

table! {
    /// Active health checks.
    RawHealth {
        /// The path asked for; any 2xx or 3xx is good. Must be written.
        path: Text,
        /// How often. Default `5s`.
        every: Time,
        /// How long an answer may take. Default `2s`.
        timeout: Time,
        /// Good answers in a row that bring a server back. Default 2.
        healthy_after: u64,
        /// Bad answers in a row that take a server out. Default 3.
        unhealthy_after: u64,
    }
}

table! {
    /// Passive ejection.
    RawEject {
        /// Failures in a row (no connection, no answer, 502, 503, 504) that take a server out. Default 5.
        failures: u64,
        /// For how long at first; longer each time. Default `10s`.
        wait: Time,
    }
}

table! {
    /// How long an upstream may take.
    RawUpstreamTimeouts {
        /// To connect. Default `1s`.
        connect: Time,
        /// From the end of the request to the head of the answer. Default `30s`.
        response: Time,
        /// Between two pieces of a body, either way: an answer that stands still, an upload that the upstream does not take;
        /// and how long an idle connection is kept. Default `60s`.
        idle: Time,
        /// From the first byte to the last. Default: no bound of its own.
        total: Time,
    }
}

table! {
    /// What may be sent again.
    RawRetries {
        /// Attempts in all; 1 is no retry. What no server can have read is no attempt: a kept connection whose socket took no
        /// byte any more, an HTTP/2 stream that a server which closes its connection (GOAWAY) has not processed. Default 2.
        attempts: u64,
        /// After what. Default `["connect_failure", "refused_stream", "connection_closed"]`.
        on: OneOrMany<RetryOn>,
    }
}

words! {
    /// What a retry follows.
    pub(crate) enum RetryOn {
        /// No connection could be made.
        ConnectFailure = "connect_failure",
        /// HTTP/2: the stream was refused before it was looked at.
        RefusedStream = "refused_stream",
        /// A kept connection closed without a byte of answer (idempotent methods without a body only: it may have been read).
        ConnectionClosed = "connection_closed",
        /// 503 (idempotent methods only).
        Unavailable = "503",
        /// 502 (idempotent methods only).
        BadGateway = "502",
        /// 504 (idempotent methods only).
        GatewayTimeout = "504",
    }
}
