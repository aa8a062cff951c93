//! `[server]`, `[admin]`, `[log]`, `[address]`.

use crate::quantity::{Count, Size, Time};
use crate::reader::{table, words};
use crate::scalar::{OneOrMany, Text};
use crate::source::At;

table! {
    /// Where the gateway listens, and what it takes from callers.
    Server {
        /// Where it listens: `http://ADDRESS:PORT`, `https://ADDRESS:PORT`, `unix:/PATH`; a bare address is http. HTTP/1.1 and
        /// HTTP/2 on the same port. Default `0.0.0.0:8080`.
        listen: OneOrMany<Text>,
        /// Certificates of the https listeners; they are read again when the files change.
        certificates: Vec<At<Certificate>>,
        /// Mutual TLS: certificates of callers are verified against these authorities (a PEM file).
        client_ca: Text,
        /// Whether a caller must show a certificate. Default `required` where `client_ca` is set.
        client_certificates: ClientCertificates,
        /// What local buckets hold after a crash, which is a start without the buckets that a clean stop saves in `state_file`; without a
        /// `state_file`, every start. Default `full`.
        cold_start: ColdStart,
        /// Where a clean stop saves the local buckets, for the next start. Default `gateway.state` in `$STATE_DIRECTORY`, which
        /// systemd sets; nowhere without it.
        state_file: Text,
        /// Whether connections begin with a PROXY protocol header (v1 or v2). Where that names nobody (`UNKNOWN`, `LOCAL`), the
        /// forwarding headers behind it are not believed either. Default `false`.
        proxy_protocol: bool,
        /// Threads that serve; `auto` is one per core. Default `auto`.
        workers: Count,
        /// Protocols a connection may be upgraded to. Default `["websocket"]`.
        upgrades: Vec<At<Text>>,
        /// Whether the gateway stands in front of services one depends on, and not of one's own: it forwards only to hosts
        /// that routes name (absolute-form requests, 421 otherwise), asks upstreams by their own name, and tells them of no
        /// caller. Default `false`.
        egress: bool,
        /// The name of this gateway in Via, in requests and answers it forwards; `off`: it adds none, and
        /// does not know a request that comes back to it. Default `tollgate`.
        via: Text,
        /// What happens to a path with an encoded slash (`%2f`): `keep` takes it for a character of its segment, `refuse` answers
        /// 400, which upstreams need that take it for a slash. Default `keep`.
        encoded_slash: EncodedSlash,
        /// How long callers may take.
        timeouts: ServerTimeouts,
        /// How much callers may send.
        bounds: Bounds,
    }
}

table! {
    /// A certificate with its key.
    Certificate {
        /// The certificate chain, a PEM file.
        certificate: Text,
        /// Its private key, a PEM file.
        key: Text,
        /// Names it is shown for, with `*.` for one label; default: the names in it.
        hosts: Vec<At<Text>>,
    }
}

words! {
    /// What happens to a path with an encoded slash.
    pub(crate) enum EncodedSlash {
        /// It is a character of its segment: routes never match it as a slash, and the upstream gets it as it came.
        Keep = "keep",
        /// 400: for upstreams that take it for a slash.
        Refuse = "refuse",
    }
}

words! {
    /// Whether callers show certificates.
    pub enum ClientCertificates {
        /// They must.
        Required = "required",
        /// They may.
        Optional = "optional",
    }
}

words! {
    /// What local buckets hold after a crash.
    pub enum ColdStart {
        /// Everybody may burst at once.
        Full = "full",
        /// Everybody starts with nothing.
        Empty = "empty",
    }
}

table! {
    /// How long callers may take; every one has a safe default.
    ServerTimeouts {
        /// To send the head of a request. Default `10s`.
        header_read: Time,
        /// Between two pieces of a body, either way. Default `30s`.
        body_idle: Time,
        /// Between two requests of a connection. Default `75s`.
        keep_alive: Time,
        /// For requests in flight when the gateway stops. Default `30s`.
        drain: Time,
        /// Before that, from SIGTERM on: `/readyz` says 503, and requests are still accepted and served, until those who send
        /// them have noticed. `0s`: no such time. Default `5s`.
        drain_delay: Time,
        /// To finish the TLS handshake. Default `10s`.
        tls_handshake: Time,
        /// Without a byte either way on an upgraded connection (WebSocket). Default `5m`.
        upgrade_idle: Time,
    }
}

table! {
    /// How much callers may send.
    Bounds {
        /// Connections at once. Default 10000.
        connections: u64,
        /// Connections at once from one address (or IPv6 network). Default: as many as it leaves free for others.
        connections_per_address: u64,
        /// Requests at once; more are refused with 503. Default: no bound of its own.
        requests: u64,
        /// Bytes of a request's head. Default `64KiB`.
        header_bytes: Size,
        /// Fields of a request's head. Default 100.
        headers: u64,
        /// Bytes of a request's body. Default `unlimited`; a route may say less.
        body: Size,
        /// Bytes a second that the body of a request must come at, over the time it is waited for, once that is 10 seconds;
        /// below: 408. Not asked of gRPC, nor once the answer has begun. 0: no such bound. Default 100.
        body_rate: u64,
        /// Streams at once on an HTTP/2 connection. Default 100.
        http2_streams: u64,
    }
}

table! {
    /// The admin listener.
    Admin {
        /// Where it listens, or `off`. Never the public port. Default `127.0.0.1:9180`.
        listen: Text,
        /// Names it may be asked by, besides `localhost` and addresses: a page in a browser whose name was pointed here has
        /// none of them.
        hosts: Vec<At<Text>>,
    }
}

table! {
    /// Logs.
    Log {
        /// Where the access log goes: `stdout`, `stderr`, `off`, or a path. Default `stdout`.
        access: Text,
        /// How its lines are written. Default `json`.
        format: LogFormat,
        /// The share of admitted requests that is logged; refused requests always are. Default `100% of requests`.
        sample: Text,
        /// Whether identities stand in the log as they are or hashed. Default `hashed`.
        keys: LogKeys,
        /// Whether the query of a request stands in it. Queries carry secrets: keys, tokens, names. Default `false`.
        query: bool,
        /// The least serious message of the operations log (stderr). Default `info`.
        level: LogLevel,
        /// How the operations log is written. Default `text`.
        operations: OperationsFormat,
    }
}

words! {
    /// How the access log is written.
    pub enum LogFormat {
        /// One JSON object a line.
        Json = "json",
        /// The combined log format of Apache and NGINX.
        Combined = "combined",
    }
}

words! {
    /// How identities stand in the log.
    pub enum LogKeys {
        /// As a keyed hash.
        Hashed = "hashed",
        /// As they are.
        Plain = "plain",
    }
}

words! {
    /// How serious a message is.
    pub enum LogLevel {
        /// Something failed.
        Error = "error",
        /// Something is not as it should be.
        Warn = "warn",
        /// What happens now and then.
        Info = "info",
        /// What helps to find a mistake.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

words! {
    /// How the operations log is written.
    pub enum OperationsFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

table! {
    /// How a caller's address is known.
    Address {
        /// X-Forwarded-For and Forwarded are believed only from these networks. Default: none.
        trusted_proxies: Vec<At<Text>>,
        /// Whether they are believed from a Unix socket, too: only local processes can connect to one. Default `false`.
        trust_unix: bool,
        /// Which of the two is believed. Default `either`.
        header: RawForwarding,
        /// IPv6 callers are told apart by so many leading bits. Default 64.
        ipv6_prefix: u64,
        /// These networks are never limited.
        exempt: Vec<At<Text>>,
    }
}

words! {
    /// Which forwarding header is believed.
    pub(crate) enum RawForwarding {
        /// Whichever is there; where both are and disagree, neither.
        Either = "either",
        /// X-Forwarded-For only.
        XForwardedFor = "x-forwarded-for",
        /// Forwarded (RFC 7239) only.
        Forwarded = "forwarded",
    }
}
