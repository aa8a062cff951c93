//! `[server]`, `[admin]`, `[log]`, `[address]`: the settings that the gateway runs with.

use std::path::PathBuf;

use crate::reading::{Context, Secret, Table, settings, words};
use crate::values::certificates::{Authorities, AuthoritiesPem, Chain, PrivateKey, TokenDigest};
use crate::values::forms::{
    AccessLog, AccessLogTarget, Auto, Bytes, SPAN, ShareOfRequests, Size, TIMEOUT,
};
use crate::values::listener::{AdminListener, Listener, Listeners};
use crate::values::names::{
    AcmeDirectory, AcmeHosts, Email, HostName, LowerCase, Upgrade, ViaName,
};
use crate::values::networks::{ExemptNetworks, ProxyNetworks};
use crate::values::servers::{ServiceSecret, ServiceUrl};
use tollgate_limit::Micros;
use tollgate_policy::identity::address::{AddressPolicy, ForwardingHeader};
use tollgate_policy::upstream::{PemFile, Server as UpstreamServer};

settings! {
    /// The listeners for clients, with their timeouts and bounds.
    pub struct Server {
        /// Addresses the gateway listens on: `http://ADDRESS:PORT`, `https://ADDRESS:PORT` (needs `certificates` or `acme`) or
        /// `unix:/PATH`; an address without a scheme is http. HTTP/1.1 and HTTP/2 are served on the same port.
        listen: Vec<Listener> as Listeners = "0.0.0.0:8080" => ["http://0.0.0.0:8080", "https://0.0.0.0:8443"],
        /// Certificates of the https listeners, chosen by the host name that the client asks for (SNI). A changed file is
        /// read again without a restart. Required where a listener is https, unless `acme` is written.
        certificates: Vec<Certificate> => [{ certificate = "site.pem", key = "site.key" }],
        /// Has the gateway order the certificate of the https listeners from an authority (ACME, RFC 8555) and renew it. In place of `certificates`.
        acme: Option<Acme> => { hosts = ["api.example.com"], state = "/var/lib/tollgate/acme" },
        /// Whether a request to an http listener over TCP is redirected (308) to https, to the same host on port 443, before routes and limits. Needs an
        /// https listener and an http listener. Challenges of an authority (`/.well-known/acme-challenge/`) are answered first.
        redirect_to_https: bool = false => true,
        /// Turns on mutual TLS: a PEM file with the authorities that client certificates are verified against. Needs an
        /// https listener.
        client_ca: Option<PathBuf> as Option<Authorities> => "clients.pem",
        /// Whether a client must show a certificate. Only where `client_ca` is set.
        client_certificates: ClientCertificates = "required",
        /// The level of local buckets after a crash, that is, after a start that finds no buckets saved in `state_file`.
        /// Without a `state_file` every start counts as one after a crash.
        cold_start: ColdStart = "full" => "empty",
        /// The file in which a clean stop saves the local buckets for the next start. Default: `gateway.state` in
        /// `$STATE_DIRECTORY` (systemd sets it), and no file where that variable is not set.
        state_file: Option<PathBuf> => "/var/lib/tollgate/gateway.state",
        /// Whether every connection begins with a PROXY protocol header (version 1 or 2), as HAProxy and AWS load balancers
        /// send it. Where the header names no client (`UNKNOWN`, `LOCAL`), forwarding headers are not believed either.
        proxy_protocol: bool = false => true,
        /// Number of worker threads; `auto` is one per core.
        workers: Option<usize> as Auto<usize> [1..=1024] = "auto" => 4,
        /// Protocols that a connection may be upgraded to.
        upgrades: Vec<String> as Vec<Upgrade> = ["websocket"],
        /// Set to `true` where the gateway forwards requests of your own programs to services outside. It then forwards only to
        /// hosts that routes name (421 otherwise), sends each upstream its own name as Host, and adds no forwarding headers.
        egress: bool = false => true,
        /// The name of this gateway in the `Via` header of requests and responses it forwards, by which it also recognises a
        /// request that has come back to it (508). `off` adds no header and recognises no loop.
        via: Option<String> as ViaName = "tollgate" => "edge-1",
        /// How a path with an encoded slash (`%2f`) is treated.
        encoded_slash: EncodedSlash = "keep" => "refuse",
        /// Bytes of a request's body that are read before the limits decide, 1KiB to 1MiB: only where a route, an identity or a cost is made
        /// of the body (`json:model`). A longer body counts as one without the key; where a route depends on it, the response is 413.
        body_facts: usize as Bytes<usize> [1 << 10..=1 << 20] = "64KiB" => "256KiB",
        /// How a compressed body is treated where a route, an identity or a cost is made of it.
        compressed_bodies: CompressedBodies = "refuse" => "skip",
        /// Timeouts for clients.
        timeouts: ServerTimeouts => { header_read = "10s", drain = "30s" },
        /// Bounds for clients.
        bounds: Bounds => { connections = 10000, body = "10MiB" },
    }
}

settings! {
    /// A certificate with its private key.
    pub struct Certificate {
        /// The certificate chain, a PEM file.
        @required("certificate = \"site.pem\" names the file") certificate: PathBuf as Chain => "site.pem",
        /// The private key, a PEM file.
        @required("key = \"site.key\" names the file") key: PathBuf as PrivateKey => "site.key",
        /// Host names the certificate is shown for; `*.` stands for one label. Default: the names in the certificate.
        hosts: Vec<String> as Vec<LowerCase> => ["*.example.com"],
    }
}

settings! {
    /// A certificate that the gateway orders and renews by itself. Who writes this table agrees to the authority's terms of service.
    pub struct Acme {
        /// Host names of the certificate, at most 100. The authority must reach this gateway under each of them. No wildcards.
        @required("hosts = [\"api.example.com\"] names what the certificate is for") hosts: Vec<String> as AcmeHosts => ["api.example.com", "www.example.com"],
        /// The folder that keeps the account, keys and certificates. Gateways with one folder order together: one of them orders, all use the certificate.
        @required("state = \"/var/lib/tollgate/acme\" keeps keys and certificates") state: PathBuf => "/var/lib/tollgate/acme",
        /// The mail address that the authority is told.
        email: Option<String> as Option<Email> => "ops@example.com",
        /// The URL of the authority's directory. Default: Let's Encrypt.
        directory: String as AcmeDirectory = "https://acme-v02.api.letsencrypt.org/directory" => "https://acme-staging-v02.api.letsencrypt.org/directory",
        /// Authorities (PEM) that the directory's own certificate is verified against, for a private authority. Default: the system's.
        ca_file: Option<PemFile> as Option<AuthoritiesPem> => "ca.pem",
        /// How the gateway proves that the hosts are its own.
        challenge: AcmeChallenge = "tls-alpn-01" => "http-01",
    }
}

words! {
    /// How a gateway proves that a host is its own.
    pub enum AcmeChallenge {
        /// By a TLS handshake on port 443 of each host, which must reach an https listener of the gateway.
        TlsAlpn01 = "tls-alpn-01",
        /// By a request to port 80 of each host, which must reach an http listener of the gateway.
        Http01 = "http-01",
    }
}

words! {
    /// How a path with an encoded slash is treated.
    pub enum EncodedSlash {
        /// The encoded slash is a character of its segment: routes never match it as a slash, and the upstream receives it as it came.
        Keep = "keep",
        /// The response is 400: for upstreams that treat it as a slash.
        Refuse = "refuse",
    }
}

words! {
    /// How a compressed body is treated where something in it must be known.
    pub enum CompressedBodies {
        /// The response is 415.
        Refuse = "refuse",
        /// It counts as a body without the key: a client can then leave the key out by compressing its body.
        Skip = "skip",
    }
}

words! {
    /// Whether clients show certificates.
    pub enum ClientCertificates {
        /// A client without a valid certificate cannot connect.
        Required = "required",
        /// A client may connect without one; one that it shows must be valid.
        Optional = "optional",
    }
}

words! {
    /// The level of local buckets after a crash.
    pub enum ColdStart {
        /// Every bucket starts full: each caller may burst at once.
        Full = "full",
        /// Every bucket starts empty: each caller waits until the limit has granted units to it.
        Empty = "empty",
    }
}

settings! {
    /// Timeouts for clients.
    pub struct ServerTimeouts {
        /// How long a client may take to send the head of a request.
        header_read: Micros [TIMEOUT] = "10s",
        /// The longest pause between two pieces of a body, in either direction.
        body_idle: Micros [TIMEOUT] = "30s",
        /// How long a connection stays open between two requests.
        keep_alive: Micros [TIMEOUT] = "75s",
        /// How long requests in progress may take to finish when the gateway stops.
        drain: Micros [TIMEOUT] = "30s",
        /// The time between SIGTERM and the start of `drain`: `/readyz` responds with 503 while requests are still accepted, so that load balancers
        /// stop sending them. `0s` leaves this phase out.
        drain_delay: Micros [SPAN] = "5s",
        /// How long the TLS handshake may take.
        tls_handshake: Micros [TIMEOUT] = "10s",
        /// The longest time without a byte in either direction on an upgraded connection (WebSocket).
        upgrade_idle: Micros [TIMEOUT] = "5m",
    }
}

settings! {
    /// Bounds for clients.
    pub struct Bounds {
        /// Connections at the same time.
        connections: usize [1..=MANY] = 10000,
        /// Connections at the same time from one address (or IPv6 network). Default: as many as leave room for others.
        connections_per_address: Option<usize> [1..=MANY] => 100,
        /// Requests at the same time; further ones are refused with 503. Default: no bound of its own.
        requests: Option<usize> [1..=MANY] => 5000,
        /// Bytes of a request's head, 8KiB to 1MiB; a larger one is refused with 431.
        header_bytes: usize as Bytes<usize> [8 << 10..=1 << 20] = "64KiB",
        /// Header lines of a request, 10 to 1000.
        headers: usize [10..=1000] = 100,
        /// Bytes of a request's body, or `unlimited`; a larger one is refused with 413. A route may set its own bound.
        body: Option<u64> as Size = "unlimited" => "10MiB",
        /// Bytes of all request bodies that are held at the same time because a route or limit depends on them
        /// (`server.body_facts` bounds each), 1MiB to 1TiB; further ones are refused with 503.
        held_bodies: usize as Bytes<usize> [1 << 20..=1 << 40] = "256MiB",
        /// Bytes per second at which a request's body must arrive on average, measured once it has taken 10 seconds; a slower one
        /// is refused with 408. It does not apply to gRPC, nor once the response has begun. 0 is no bound.
        body_rate: u64 [0..=1 << 30] = 100,
        /// Streams at the same time on one HTTP/2 connection.
        http2_streams: u32 [1..=10_000] = 100,
    }
}

settings! {
    /// The admin listener: health, metrics, status.
    pub struct Admin {
        /// Its address, or `off`. It must not be the public port.
        listen: Option<Listener> as AdminListener = "127.0.0.1:9180",
        /// Host names that requests to it may name, besides `localhost` and IP addresses. All others are refused, so that a web
        /// page cannot reach it through a name of its own.
        hosts: Vec<String> as Vec<HostName> = [] => ["gateway.internal"],
        /// Who may change buckets over it (`tollgate key reset`): by a bearer token or, on a Unix socket, by the user of the
        /// process. Without operators no request may change anything, and reads stay open. With operators, gateways ask a shared store again after
        /// 50 ms about a bucket that is exhausted.
        operators: Vec<Operator> => [{ name = "ann", token = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" }],
        /// The file to which every change by an operator is appended, a line of JSON each. Default: the operations log.
        audit: Option<PathBuf> => "/var/log/tollgate/audit.log",
        /// A service to which events are sent, a JSON document each.
        webhook: Option<Webhook> => { url = "https://hooks.example.com/tollgate", events = ["store_down", "reload"] },
    }
}

settings! {
    /// A service that is sent events. The documents of the last thousand wait while it does not take them.
    pub struct Webhook {
        /// Its URL; the documents are sent by POST.
        @required("url = \"https://hooks.example.com/tollgate\" names the service") url: UpstreamServer as ServiceUrl => "https://hooks.example.com/tollgate",
        /// The events that are sent. Default: all.
        events: Vec<WebhookEvent> => ["store_down", "store_up", "reload"],
        /// Signs each document (HMAC-SHA256, as Standard Webhooks does). It must come from the environment.
        secret: Option<Secret> as Option<ServiceSecret> => "${TOLLGATE_WEBHOOK_SECRET}",
        /// How long the service may take for one document.
        timeout: Micros [TIMEOUT] = "5s",
        /// How often a document is sent, at most, with half a second, a second, two seconds and so on between.
        attempts: u32 [1..=20] = 8,
    }
}

words! {
    /// An event.
    pub enum WebhookEvent {
        /// A limit began to refuse a key.
        RefusalsBegan = "refusals_began",
        /// A limit ceased to refuse a key.
        RefusalsEnded = "refusals_ended",
        /// A key has used four fifths of its units.
        Near = "near",
        /// A key has used a percentage that `events` of its limit names.
        Threshold = "threshold",
        /// More keys changed at once than there are events for.
        Omitted = "omitted",
        /// The shared store does not respond.
        StoreDown = "store_down",
        /// The shared store responds again.
        StoreUp = "store_up",
        /// A server of an upstream gets no requests.
        UpstreamOut = "upstream_out",
        /// A server of an upstream gets requests again.
        UpstreamBack = "upstream_back",
        /// A configuration was put in force, or refused.
        Reload = "reload",
        /// An operator filled a bucket.
        Reset = "reset",
        /// An operator gave a key other numbers for a time.
        OverrideSet = "override_set",
        /// That time ended, or an operator ended it.
        OverrideEnded = "override_ended",
    }
}

settings! {
    /// An operator: known either by a token or by a user.
    pub struct Operator {
        /// The name in the audit.
        @required("the audit of every change has this name: name = \"ann\"") name: String => "ann",
        /// The SHA-256 of the bearer token, as `tollgate hash` prints it.
        token: Option<[u8; 32]> as Option<TokenDigest> => "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        /// The number of the user whose processes are this operator. For an admin listener on a Unix socket.
        user: Option<u32> [0..=4294967294] => 1000,
        /// What the operator may do.
        level: OperatorLevel = "operate" => "read",
    }
    check check_operator;
}

words! {
    /// What an operator may do.
    pub enum OperatorLevel {
        /// Read only.
        Read = "read",
        /// Read, and change buckets.
        Operate = "operate",
    }
}

settings! {
    /// The access log and the operations log.
    pub struct Log {
        /// Where the access log goes: `stdout`, `stderr`, `off`, or a path. SIGUSR1 reopens the file.
        access: AccessLog as AccessLogTarget = "stdout" => "/var/log/tollgate/access.log",
        /// The format of the access log.
        format: LogFormat = "json" => "combined",
        /// The share of admitted requests that is logged; refused requests are always logged.
        sample: u16 as ShareOfRequests = "100% of requests" => "1% of requests",
        /// How the access log shows callers.
        keys: LogKeys = "hashed" => "plain",
        /// Whether the access log shows the query of a request. Queries can hold secrets: keys, tokens, names.
        query: bool = false => true,
        /// The least serious message of the operations log, which goes to standard error.
        level: LogLevel = "info" => "warn",
        /// The format of the operations log.
        operations: OperationsFormat = "text" => "json",
    }
}

words! {
    /// The format of the access log.
    pub enum LogFormat {
        /// One JSON object a line.
        Json = "json",
        /// The combined log format of Apache and NGINX.
        Combined = "combined",
    }
}

words! {
    /// How the log shows callers.
    pub enum LogKeys {
        /// As a keyed hash, from which the key cannot be read. The same caller has the same hash on every gateway with the same `store.key_secret`, and after a restart with a `state_file`.
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
        /// Something needs attention.
        Warn = "warn",
        /// Starts, reloads and other events.
        Info = "info",
        /// Details that help to find a mistake.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

words! {
    /// The format of the operations log.
    pub enum OperationsFormat {
        /// Text for people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

settings! {
    /// How the address of a client is found: the one place that says which proxies are trusted.
    for AddressPolicy as Address {
        /// Networks of your own proxies. Forwarding headers are believed only from these.
        trusted_proxies: ProxyNetworks = [] => ["10.0.0.0/8", "2001:db8::/32"],
        /// Number of your own proxies that every request comes through, where their addresses are not known: the address that the
        /// outermost of them wrote is the client's. Only where no client can reach the gateway past them: one that does chooses its
        /// address. In place of `trusted_proxies`.
        trusted_hops: Option<u8> [1..=32] => 1,
        /// Whether forwarding headers are believed on Unix sockets, which only local processes can connect to.
        trust_unix: bool = false => true,
        /// Which forwarding header is believed. One that has the client alone, as content delivery networks send it, is believed
        /// from `trusted_proxies` only, and names the client whatever other proxies the request came through.
        header: ForwardingHeader = "either" => "x-forwarded-for",
        /// Number of leading bits that tell IPv6 clients apart, 16 to 128: one customer usually has a whole /64. An IPv6 address that
        /// has an IPv4 address in it (`::ffff:0:0/96`, `64:ff9b::/96` of NAT64, `::/96`) counts as that.
        ipv6_prefix: u8 [16..=128] = 64 => 56,
        /// Networks whose clients are never limited.
        exempt: ExemptNetworks = [] => ["192.0.2.0/24"],
    }
    make AddressPolicy {
        trusted_proxies,
        trusted_hops: trusted_hops.unwrap_or(0),
        trust_unix,
        header,
        ipv6_prefix,
        exempt,
    };
    check check_address;
}

words! {
    for ForwardingHeader {
        /// The one that is present. A request in which both are present and disagree is refused with 400.
        Either = "either",
        /// X-Forwarded-For only.
        XForwardedFor = "x-forwarded-for",
        /// Forwarded (RFC 7239) only.
        Forwarded = "forwarded",
        /// X-Real-IP only.
        XRealIp = "x-real-ip",
        /// CF-Connecting-IP only.
        CfConnectingIp = "cf-connecting-ip",
        /// True-Client-IP only.
        TrueClientIp = "true-client-ip",
        /// Fly-Client-IP only.
        FlyClientIp = "fly-client-ip",
    }
}

/// Far above any intended number, and little enough to count.
const MANY: u64 = 10_000_000;

settings! {
    /// Sends a span of each sampled request to a collector of OpenTelemetry.
    pub struct Traces {
        /// The collector: OTLP over HTTP, in its JSON form.
        @required("url = \"http://127.0.0.1:4318/v1/traces\" names the collector") url: UpstreamServer as ServiceUrl => "http://127.0.0.1:4318/v1/traces",
        /// The share of the requests without a valid `traceparent` that begin a trace. A request with one is sampled if its sender says so.
        /// Default: none begins a trace.
        sample: Option<u16> as Option<ShareOfRequests> => "1% of requests",
        /// The name of the service in its spans.
        service: String = "tollgate" => "edge",
        /// A bearer token for the collector. It must come from the environment.
        token: Option<Secret> as Option<ServiceSecret> => "${OTLP_TOKEN}",
        /// How long the collector may take for one document.
        timeout: Micros [TIMEOUT] = "5s",
    }
}

/// Proxies are trusted by their addresses or by their number, and are no clients themselves.
fn check_address(address: &AddressPolicy, table: &Table<'_>, context: &mut Context<'_>) {
    if let (Some(exempt), Some(proxies)) = (table.place("exempt"), table.place("trusted_proxies"))
        && address.exempt.overlaps(&address.trusted_proxies)
    {
        let label = "a request that comes from there without a forwarding header has no limit";
        context
            .warning("a trusted proxy is exempt", exempt, label)
            .at(proxies, "the proxies")
            .help("name the clients that need no limit, not the proxies that they come through");
    }
    let places = (table.place("trusted_hops"), table.place("trusted_proxies"));
    if let (Some(hops), Some(proxies)) = places {
        let title = "proxies are trusted by their addresses or by their number";
        context.either(title, hops, proxies).help(
            "addresses are safer: a client that reaches the gateway past the proxies is then not believed",
        );
    }
    let places = (table.place("trusted_hops"), table.place("header"));
    if let (Some(hops), Some(header)) = places
        && address.header.of_client().is_some()
    {
        let title = "a header that has the client alone is believed by the address of the proxy";
        context
            .either(title, hops, header)
            .help("write `trusted_proxies` in place of `trusted_hops`");
    }
}

/// An operator is known in one way.
fn check_operator(operator: &Operator, table: &Table<'_>, context: &mut Context<'_>) {
    let written = [table.place("token"), table.place("user")];
    if written.iter().flatten().count() != 1 {
        let title = format!(
            "operator `{}` needs either `token` or `user`",
            operator.name
        );
        context
            .error(title, table.place, "how the operator is known")
            .help(
                "openssl rand -hex 24 | tee token.txt | tollgate hash prints the token's SHA-256",
            );
    }
}
