//! Servers that the gateway connects to: `http://HOST[:PORT][/PATH]`, `https://…`, `unix:/PATH`.

use std::sync::Arc;

use http::Uri;
use http::uri::Authority;

use crate::reading::{At, Context, OneOrMany, OrBroken, Secret, ShortOr, Text, forms, settings};
use tollgate_policy::upstream::{HostPolicy, Server, ServerAddress};

settings! {
    /// One server of an upstream.
    for Server as RawServer {
        /// Where it is: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`.
        @required("{ url = \"http://10.0.0.2:3000\", weight = 2 }") url: ServiceUrl => "http://10.0.0.2:3000",
        /// Its share among the servers, 1 to 1000.
        weight: u32 [1..=1000] = 1 => 2,
    }
    make Server { weight, ..url };
}

forms! {
    /// `http://HOST[:PORT][/PATH]`, `https://…`, `unix:/PATH`.
    ServiceUrl -> Server = server;
    /// A secret, which must come from the environment.
    ServiceSecret -> Secret = secret;
    /// `keep`, `upstream` or a host.
    HostHeader -> HostPolicy = host_policy;
    HealthPath -> String = |text, context| {
        let path = text.as_str();
        if !path.starts_with('/') {
            let title = "a health check's path begins with `/`";
            context.error(title, text.place, "this one does not");
        }
        Some(path.to_owned())
    };
    /// Servers, each once: URLs, or tables with a weight.
    Servers -> Vec<Server> as OneOrMany<OrBroken<ShortOr<ServiceUrl, Server>>> = servers;
}

/// The server at this URL, with the weight 1.
pub(crate) fn server(text: &At<Text>, context: &mut Context<'_>) -> Option<Server> {
    let written = text.as_str();
    if let Some(path) = written.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Some(Server {
            address: ServerAddress::Unix(context.path(&text.with(Text::plain(path)))),
            tls: None,
            authority: Authority::from_static("localhost"),
            base_path: String::new(),
            weight: 1,
        });
    }
    let report = |label: &str| {
        let title = format!("`{written}` is not the URL of a server");
        context.error(title, text.place, label).help(
            "write \"http://10.0.0.1:3000\", \"https://api.example.com\" or \"unix:/run/app.sock\"",
        );
    };
    over_tcp(written).map_err(report).ok()
}

fn over_tcp(written: &str) -> Result<Server, &'static str> {
    let (scheme, rest) = written.split_once("://").ok_or("`http://` is missing")?;
    let tls = match scheme {
        "http" | "h2c" => false,
        "https" => true,
        _ => return Err("http, https and unix are known"),
    };
    if rest.contains('@') {
        return Err("a server's URL holds no user");
    }
    if rest.contains(['?', '#']) {
        return Err("a server's URL has no query");
    }
    let uri = written.replacen(scheme, "http", 1).parse::<Uri>();
    let uri = uri.map_err(|_| "a host and a port were expected")?;
    let authority = uri
        .authority()
        .filter(|authority| !authority.host().is_empty());
    let authority = authority.ok_or("the host is missing")?;
    let before_path = &rest[..rest.find('/').unwrap_or(rest.len())];
    let port = before_path.rsplit_once(':').map(|(_, port)| port);
    let valid = |port: &str| port.ends_with(']') || port.parse::<u16>().is_ok_and(|port| port > 0);
    if port.is_some_and(|port| !valid(port)) {
        return Err("a port is a number from 1 to 65535");
    }
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let host = authority
        .host()
        .trim_matches(['[', ']'])
        .to_ascii_lowercase();
    Ok(Server {
        tls: tls.then(|| Arc::from(host.as_str())),
        address: ServerAddress::Tcp(host, port),
        authority: authority.clone(),
        base_path: uri.path().trim_end_matches('/').to_owned(),
        weight: 1,
    })
}

fn servers(
    list: &At<Vec<At<Option<ShortOr<Server, Server>>>>>,
    context: &mut Context<'_>,
) -> Option<Vec<Server>> {
    let mut made: Vec<At<Server>> = Vec::new();
    for at in &list.value {
        let Some(ShortOr::Short(server) | ShortOr::Table(server)) = &at.value else {
            continue;
        };
        let same = |other: &&At<Server>| {
            other.address == server.address && other.base_path == server.base_path
        };
        if let Some(first) = made.iter().find(same) {
            let title = format!("`{}` names a server twice", context.name());
            context
                .twice(title, at.place, first.place)
                .help("to give it a larger share write { url = \"…\", weight = 2 }");
        } else {
            made.push(at.with(server.clone()));
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

fn secret(text: &At<Text>, context: &mut Context<'_>) -> Option<Secret> {
    let written = text.as_str();
    if !text.is_from_environment(0, written.len()) || text.has_default {
        let title = "a secret is written in clear in the file";
        context
            .in_clear(title, text.place)
            .help("read it from the environment: secret = \"${TOLLGATE_WEBHOOK_SECRET}\"");
        return None;
    }
    let secret = text.with(Secret::new(written));
    let help = "openssl rand -hex 32 prints a good one";
    let fits = context.sealed || context.is_long("secret", &secret, help);
    fits.then_some(secret.value)
}
