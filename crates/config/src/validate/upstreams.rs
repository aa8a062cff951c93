//! `[upstreams.*]`: forms of their values, checks between their keys, and the upstreams that routes
//! name by their URL.

use std::sync::Arc;

use http::uri::Authority;

use crate::context::Context;
use crate::declare::forms;
use crate::lists::{OneOrMany, ShortOr};
use crate::raw::{RawFile, RawServer, Retries, RetryOn};
use crate::reader::{Table, literal};
use crate::source::At;
use crate::text::Text;
use crate::values::certificates::pair;
use crate::values::servers::server;
use tollgate_limit::Micros;
use tollgate_policy::routes::{Route, RouteLimit};
use tollgate_policy::upstream::{
    HostPolicy, ProxyProtocol, Retry, Server, ServerAddress, Upstream,
};
use tollgate_policy::{Rule, SettleFrom, UpstreamTimeouts};

#[derive(Debug, Default)]
pub(crate) struct Upstreams {
    pub(crate) list: Vec<Arc<Upstream>>,
    /// Whether egress mode is on: upstreams then get their own name as Host unless the file sets
    /// another.
    egress: bool,
}

impl Upstreams {
    pub(crate) fn new(raw: &RawFile, egress: bool, context: &mut Context<'_>) -> Self {
        let mut made = Self {
            egress,
            ..Self::default()
        };
        for (name, upstream) in super::entries_of(&raw.upstreams) {
            super::check_name(name, "upstream", context);
            if name.contains("://") || name.starts_with("builtin:") || name.starts_with("unix:") {
                let title = format!("`{}` cannot name an upstream", name.value);
                context.error(title, name.place, "it would be taken for a URL");
            }
            let written = context.place(&format!("upstreams.{}.host", name.value));
            made.add(name, written.is_some(), upstream.value.clone());
        }
        made
    }

    fn add(&mut self, name: &str, host_written: bool, mut upstream: Upstream) {
        upstream.name = name.into();
        // A Unix socket has no host name.
        let mut addresses = upstream.servers.iter().map(|server| &server.address);
        let named = addresses.all(|address| matches!(address, ServerAddress::Tcp(..)));
        if self.egress && named && !host_written {
            upstream.host = HostPolicy::Upstream;
        }
        self.list.push(Arc::new(upstream));
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.list
            .iter()
            .position(|upstream| &*upstream.name == name)
    }

    /// The index of the upstream for a URL in a route; added if it is new.
    pub(crate) fn at_url(&mut self, text: &At<Text>, context: &mut Context<'_>) -> Option<usize> {
        if let Some(index) = self.index(text.as_str()) {
            return Some(index);
        }
        let servers = vec![server(text, 1, context)?];
        let defaults = literal::<Upstream>("upstream", "{ servers = \"http://localhost\" }")?;
        let upstream = Upstream {
            servers,
            ..defaults
        };
        self.add(text.as_str(), false, upstream);
        Some(self.list.len() - 1)
    }
}

/// How long a language model may take, as the clients of OpenAI and Anthropic wait for it.
const MODEL_TIME: Micros = Micros::from_secs(600);

impl Upstreams {
    /// Gives the upstreams of routes whose responses state their cost in the body the time of a
    /// language model, where the file writes none.
    pub(crate) fn wait_for_models(
        &mut self,
        routes: &[Route],
        rules: &[Rule],
        context: &Context<'_>,
    ) {
        let states_cost = |limit: &RouteLimit| {
            let settle = rules[limit.rule].settle.as_ref();
            settle.is_some_and(|settle| matches!(settle.from, SettleFrom::Json(_)))
        };
        for route in routes {
            for target in 0..=route.over_limit.len() {
                let over = route.over_limit(target).map(|over| over.upstream);
                let index = over.or(route.target.upstream());
                let Some(upstream) = index.and_then(|index| self.list.get_mut(index)) else {
                    continue;
                };
                if !route.limits_of(target).iter().any(states_cost) {
                    continue;
                }
                let name = Arc::clone(&upstream.name);
                let written = |key| context.place(&format!("upstreams.{name}.timeouts.{key}"));
                let timeouts = &mut Arc::make_mut(upstream).timeouts;
                for (key, timeout) in [
                    ("response", &mut timeouts.response),
                    ("idle", &mut timeouts.idle),
                ] {
                    if written(key).is_none() {
                        *timeout = MODEL_TIME;
                    }
                }
            }
        }
    }
}

forms! {
    /// `keep`, `upstream` or a host.
    HostHeader -> HostPolicy = host_policy;
    /// A path.
    HealthPath -> String = |text, context| {
        let path = text.as_str();
        if !path.starts_with('/') {
            let title = "a health check's path begins with `/`";
            context.error(title, text.place, "this one does not");
        }
        Some(path.to_owned())
    };
    /// Servers, each once: URLs, or tables with a weight.
    Servers -> Vec<Server> as OneOrMany<ShortOr<Text, RawServer>> = servers;
}

fn servers(
    list: &At<Vec<At<ShortOr<Text, RawServer>>>>,
    context: &mut Context<'_>,
) -> Option<Vec<Server>> {
    let mut made: Vec<At<Server>> = Vec::new();
    for at in &list.value {
        let read = match &at.value {
            ShortOr::Short(url) => server(&at.with(url.clone()), 1, context),
            ShortOr::Table(table) => {
                let weight = table.weight().value;
                table.url.get().and_then(|url| server(url, weight, context))
            }
        };
        let Some(server) = read else { continue };
        let same = |other: &&At<Server>| {
            other.address == server.address && other.base_path == server.base_path
        };
        if let Some(first) = made.iter().find(same) {
            let title = format!("`{}` names a server twice", context.name());
            context
                .twice(title, at.place, first.place)
                .help("to give it a larger share write { url = \"…\", weight = 2 }");
        } else {
            made.push(at.with(server));
        }
    }
    if list.is_empty() {
        let title = format!("`{}` is empty", context.name());
        context
            .error(title, list.place, "no servers")
            .help("write servers = [\"http://10.0.0.1:3000\"]");
    }
    let unlike = |server: &&At<Server>| server.tls.is_some() != made[0].tls.is_some();
    if let Some(at) = made.iter().find(unlike) {
        let title = format!("`{}`: only some of them speak TLS", context.name());
        context.warning(title, at.place, "unlike the first");
    }
    Some(made.into_iter().map(|at| at.value).collect())
}

/// The servers; `name` replaces the name in the URL of each that uses TLS.
pub(crate) fn named(mut servers: Vec<Server>, name: Option<Arc<str>>) -> Vec<Server> {
    for tls in servers.iter_mut().filter_map(|server| server.tls.as_mut()) {
        *tls = name.clone().unwrap_or_else(|| Arc::clone(tls));
    }
    servers
}

/// After a single attempt nothing is sent again.
pub(crate) fn check_retries(made: &Retries, table: &Table<'_>, context: &mut Context<'_>) {
    if let (1, Some(place)) = (made.attempts, table.place("on")) {
        let title = format!("`{}` never tries again", context.name());
        let label = "says after what, but attempts = 1 is no retry";
        context.warning(title, place, label);
    }
}

/// A total time that is no longer than the one for a response, where both are written.
pub(crate) fn check_timeouts(
    made: &UpstreamTimeouts,
    table: &Table<'_>,
    context: &mut Context<'_>,
) {
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
    pub(crate) fn after(&self) -> Retry {
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
pub(crate) fn check_upstream(upstream: &Upstream, table: &Table<'_>, context: &mut Context<'_>) {
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

fn host_policy(text: &At<Text>, context: &mut Context<'_>) -> Option<HostPolicy> {
    Some(match text.as_str() {
        "keep" => HostPolicy::Keep,
        "upstream" => HostPolicy::Upstream,
        name => match name.parse::<Authority>() {
            Ok(authority) if !name.contains('@') => HostPolicy::Fixed(authority),
            _ => {
                let label = "\"keep\", \"upstream\" or a host name was expected";
                context.error(format!("`{name}` is not a host"), text.place, label);
                return None;
            }
        },
    })
}
