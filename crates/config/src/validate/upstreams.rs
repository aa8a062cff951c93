//! `[upstreams.*]`, and the upstreams that routes name by their URL.

mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use http::uri::Authority;

use super::store::pair;
use super::{Context, entries_of};
use crate::problem::Problem;
use crate::raw::{self, RawBalance, RawServer, RawUpstream, RetryOn, SendProxyProtocol};
use crate::reader::Field;
use crate::scalar::{OneOrMany, ShortOr, Text};
use crate::source::At;
use tollgate_policy::UpstreamTimeouts;
use tollgate_policy::upstream::{
    Balance, Eject, Health, HostPolicy, ProxyProtocol, Retry, Server, ServerAddress, TlsFiles,
    Upstream,
};

/// The upstreams of a file.
#[derive(Debug, Default)]
pub(crate) struct Upstreams {
    /// In the policy's form.
    pub(crate) list: Vec<Arc<Upstream>>,
    /// The places of the named ones.
    pub(crate) written: Vec<At<String>>,
    /// Whether egress mode is on: upstreams then get their own name as Host unless the file sets
    /// another.
    egress: bool,
}

impl Upstreams {
    /// The index of the upstream for a URL in a route; added if it is new.
    pub(crate) fn at_url(&mut self, text: &At<Text>, context: &mut Context<'_>) -> Option<usize> {
        if let Some(index) = self
            .list
            .iter()
            .position(|upstream| &*upstream.name == text.as_str())
        {
            return Some(index);
        }
        let server = server(text, 1, context)?;
        let name = At {
            value: text.as_str().to_owned(),
            place: text.place,
        };
        let upstream = build(
            &name,
            &At {
                value: RawUpstream::default(),
                place: text.place,
            },
            vec![server],
            self.egress,
            context,
        );
        self.list.push(upstream);
        Some(self.list.len() - 1)
    }
}

/// Compiles `[upstreams]`.
pub(crate) fn upstreams(raw: &raw::RawFile, context: &mut Context<'_>) -> Upstreams {
    let egress = raw.server.get().is_some_and(|server| server.egress().value);
    let mut made = Upstreams {
        egress,
        ..Upstreams::default()
    };
    for (name, upstream) in entries_of(&raw.upstreams) {
        super::limits::check_name(name, "upstream", context);
        if name.contains("://") || name.starts_with("builtin:") || name.starts_with("unix:") {
            let problem = Problem::error(format!("`{}` cannot name an upstream", name.value));
            context.push(problem.at(name.place, "it would be taken for a URL"));
        }
        let servers = servers(name, upstream, context);
        let upstream = build(name, upstream, servers, egress, context);
        made.list.push(upstream);
        made.written.push(name.clone());
    }
    made
}

fn servers(name: &At<String>, raw: &At<RawUpstream>, context: &mut Context<'_>) -> Vec<Server> {
    let empty = match &raw.servers {
        Field::Absent => Some(raw.place),
        Field::Here(servers) if servers.list.is_empty() => Some(servers.place),
        _ => None,
    };
    if let Some(place) = empty {
        let problem = Problem::error(format!("upstream `{}` has no servers", name.value))
            .at(place, "`servers` is missing");
        context.push(problem.help("write servers = [\"http://10.0.0.1:3000\"]"));
    }
    let list: &[At<ShortOr<Text, RawServer>>] = raw
        .servers
        .get()
        .map_or(&[], |servers| servers.list.as_slice());
    let mut made: Vec<(Server, &At<ShortOr<Text, RawServer>>)> = Vec::new();
    for at in list {
        let read = match &at.value {
            ShortOr::Short(url) => server(&at.with(url.clone()), 1, context),
            ShortOr::Table(table) => match table.url.get() {
                Some(url) => {
                    let weight = context.within(table.weight(), 1, 1_000);
                    server(url, u32::try_from(weight).unwrap_or(1), context)
                }
                None => {
                    if table.url.is_absent() {
                        context.push(
                            Problem::error("a server without a URL")
                                .at(at.place, "`url` is missing"),
                        );
                    }
                    None
                }
            },
        };
        let Some(server) = read else { continue };
        match made.iter().find(|(other, _)| {
            other.address == server.address && other.base_path == server.base_path
        }) {
            Some((_, first)) => {
                let problem =
                    Problem::error(format!("upstream `{}` names a server twice", name.value));
                context.push(
                    problem
                        .at(at.place, "again here")
                        .at(first.place, "first here")
                        .help("to give it a larger share write { url = \"…\", weight = 2 }"),
                );
            }
            None => made.push((server, at)),
        }
    }
    let servers: Vec<Server> = made.iter().map(|(server, _)| server.clone()).collect();
    if let Some((_, at)) = made
        .iter()
        .find(|(server, _)| server.tls.is_some() != servers[0].tls.is_some())
    {
        let problem = Problem::warning(format!(
            "upstream `{}` speaks TLS to some of its servers only",
            name.value
        ));
        context.push(problem.at(at.place, "unlike the first"));
    }
    servers
}

/// `http://HOST[:PORT][/PATH]`, `https://…`, `unix:/PATH`.
fn server(text: &At<Text>, weight: u32, context: &mut Context<'_>) -> Option<Server> {
    const HELP: &str =
        "write \"http://10.0.0.1:3000\", \"https://api.example.com\" or \"unix:/run/app.sock\"";
    let written = text.as_str();
    if let Some(path) = written.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        let path: PathBuf = context.path(&text.with(Text::plain(path)));
        return Some(Server {
            address: ServerAddress::Unix(path),
            tls: None,
            authority: Authority::from_static("localhost"),
            base_path: String::new(),
            weight,
        });
    }
    let mut wrong = |label: &str| {
        context.push(
            Problem::error(format!("`{written}` is not the URL of a server"))
                .at(text.place, label)
                .help(HELP),
        );
        None
    };
    let Some((scheme, rest)) = written.split_once("://") else {
        return wrong("`http://` is missing");
    };
    let tls = match scheme {
        "http" | "h2c" => false,
        "https" => true,
        _ => return wrong("http, https and unix are known"),
    };
    if rest.contains('@') {
        return wrong("a server's URL holds no user");
    }
    if rest.contains(['?', '#']) {
        return wrong("a server's URL has no query");
    }
    let Ok(uri) = written.replacen(scheme, "http", 1).parse::<Uri>() else {
        return wrong("a host and a port were expected");
    };
    let Some(authority) = uri
        .authority()
        .filter(|authority| !authority.host().is_empty())
    else {
        return wrong("the host is missing");
    };
    let written_port = rest[..rest.find('/').unwrap_or(rest.len())]
        .rsplit_once(':')
        .map(|(_, port)| port);
    if written_port
        .is_some_and(|port| !port.ends_with(']') && !port.parse::<u16>().is_ok_and(|port| port > 0))
    {
        return wrong("a port is a number from 1 to 65535");
    }
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let host = authority
        .host()
        .trim_matches(['[', ']'])
        .to_ascii_lowercase();
    Some(Server {
        tls: tls.then(|| Arc::from(host.as_str())),
        address: ServerAddress::Tcp(host, port),
        authority: authority.clone(),
        base_path: uri.path().trim_end_matches('/').to_owned(),
        weight,
    })
}

fn build(
    name: &At<String>,
    raw: &At<RawUpstream>,
    servers: Vec<Server>,
    egress: bool,
    context: &mut Context<'_>,
) -> Arc<Upstream> {
    let servers = tls::named(servers, &raw.server_name, context);
    // A Unix socket has no host name.
    let named = servers
        .iter()
        .all(|server| matches!(server.address, ServerAddress::Tcp(..)));
    let asked = if egress && named {
        HostPolicy::Upstream
    } else {
        HostPolicy::Keep
    };
    const MANY: u64 = 1_000_000;
    let narrow = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let timeouts = raw.timeouts.or(raw::RawUpstreamTimeouts::default());
    let retries = raw.retries.or(raw::RawRetries::default());
    let eject = raw.eject.or(raw::RawEject::default());
    let connect = context.time(timeouts.connect());
    let (certificate, key) = pair(&raw.client_certificate, &raw.client_key, context).unzip();
    let upstream = Upstream {
        name: Arc::from(name.value.as_str()),
        balance: match raw.balance().value {
            RawBalance::LeastRequests => Balance::LeastRequests,
            RawBalance::RoundRobin => Balance::RoundRobin,
            RawBalance::IdentityHash => Balance::IdentityHash,
        },
        timeouts: UpstreamTimeouts {
            connect,
            response: context.time(timeouts.response()),
            idle: context.time(timeouts.idle()),
        },
        idle_connections: narrow(context.within(raw.idle_connections(), 0, MANY)),
        connections: narrow(context.within(raw.connections(), 1, MANY)),
        host: raw
            .host
            .get()
            .map_or(asked, |host| host_policy(host, context)),
        http2: raw.http2().value,
        early_hints: raw.early_hints().value,
        attempts: small(context.within(retries.attempts(), 1, 10)),
        pending: narrow(context.within(raw.pending(), 0, MANY)),
        queue_timeout: raw
            .pending_timeout
            .setting("pending_timeout")
            .map_or(connect, |timeout| context.time(timeout)),
        tls: TlsFiles {
            ca: raw
                .ca_file
                .get()
                .and_then(|file| tls::authorities(file, context)),
            certificate: certificate
                .and_then(|path| tls::pem(path, raw.client_certificate.place(), context)),
            key: key.and_then(|path| tls::pem(path, raw.client_key.place(), context)),
            pinned: tls::pinned(&raw.pinned_sha256, context),
        },
        health: raw
            .health
            .get()
            .and_then(|health| self::health(health, context)),
        eject: Eject {
            failures: small(context.within(eject.failures(), 1, 1_000)),
            wait: context.time(eject.wait()),
        },
        retry: retry(&retries.on().value),
        total: timeouts
            .total
            .setting("total")
            .map(|total| context.time(total)),
        resolve_every: context.time(raw.resolve_every()),
        slow_start: raw.slow_start().value.0,
        proxy_protocol: match raw.proxy_protocol().value {
            SendProxyProtocol::Off => ProxyProtocol::Off,
            SendProxyProtocol::V1 => ProxyProtocol::V1,
            SendProxyProtocol::V2 => ProxyProtocol::V2,
        },
        servers,
    };
    let tls = upstream.servers.iter().any(|server| server.tls.is_some());
    for (key, place) in [
        ("ca_file", raw.ca_file.place()),
        ("client_certificate", raw.client_certificate.place()),
        ("server_name", raw.server_name.place()),
        ("pinned_sha256", raw.pinned_sha256.place()),
    ] {
        if let (Some(place), false, false) = (place, tls, upstream.servers.is_empty()) {
            let problem = Problem::error(format!("`{key}` needs servers that speak TLS"));
            context.push(problem.at(place, "no server of this upstream has an https URL"));
        }
    }
    if let (true, true, Some(place)) = (
        upstream.http2,
        upstream.proxy_protocol != ProxyProtocol::Off,
        raw.proxy_protocol.place(),
    ) {
        let problem =
            Problem::error("a PROXY header cannot name the caller on an HTTP/2 connection");
        context.push(
            problem
                .at(place, "requests of many callers share one")
                .at(raw.http2.place().unwrap_or(place), "since this is on")
                .help("leave one of them out: X-Forwarded-For names the caller of each request"),
        );
    }
    if let (true, true, Some(place)) = (
        upstream.http2,
        upstream.early_hints,
        raw.early_hints.place(),
    ) {
        let problem = Problem::error("interim answers of an HTTP/2 upstream cannot be passed on")
            .at(place, "none would be");
        context.push(problem.at(raw.http2.place().unwrap_or(place), "since this is on"));
    }
    if let (1, Some(place)) = (upstream.attempts, retries.on.place()) {
        let problem = Problem::warning(format!("upstream `{}` never tries again", name.value));
        context.push(problem.at(place, "says after what, but attempts = 1 is no retry"));
    }
    Arc::new(upstream)
}

fn retry(on: &OneOrMany<RetryOn>) -> Retry {
    let mut retry = Retry {
        connect_failure: false,
        refused_stream: false,
        connection_closed: false,
        statuses: Vec::new(),
    };
    for at in &on.list {
        match at.value {
            RetryOn::ConnectFailure => retry.connect_failure = true,
            RetryOn::RefusedStream => retry.refused_stream = true,
            RetryOn::ConnectionClosed => retry.connection_closed = true,
            RetryOn::BadGateway => retry.statuses.push(502),
            RetryOn::Unavailable => retry.statuses.push(503),
            RetryOn::GatewayTimeout => retry.statuses.push(504),
        }
    }
    retry
}

fn health(raw: &At<raw::RawHealth>, context: &mut Context<'_>) -> Option<Health> {
    if raw.path.is_absent() {
        let problem =
            Problem::error("health checks need a path").at(raw.place, "`path` is missing");
        context.push(problem.help("health = { path = \"/healthz\", every = \"5s\" }"));
    }
    let path = raw.path.get()?;
    if !path.as_str().starts_with('/') {
        context.push(
            Problem::error("a health check's path begins with `/`")
                .at(path.place, "this one does not"),
        );
    }
    let every = context.time(raw.every());
    let timeout = context.time(raw.timeout());
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Some(Health {
        path: path.as_str().to_owned(),
        every,
        timeout,
        healthy_after: small(context.within(raw.healthy_after(), 1, 100)),
        unhealthy_after: small(context.within(raw.unhealthy_after(), 1, 100)),
    })
}

fn host_policy(text: &At<Text>, context: &mut Context<'_>) -> HostPolicy {
    match text.as_str() {
        "keep" => HostPolicy::Keep,
        "upstream" => HostPolicy::Upstream,
        name => match name.parse::<Authority>() {
            Ok(authority) if !name.contains('@') => HostPolicy::Fixed(authority),
            _ => {
                let problem = Problem::error(format!("`{name}` is not a host"));
                context.push(problem.at(
                    text.place,
                    "\"keep\", \"upstream\" or a host name was expected",
                ));
                HostPolicy::Keep
            }
        },
    }
}
