//! The URL of an upstream's server: `http://HOST[:PORT][/PATH]`, `https://…`, `unix:/PATH`.

use std::sync::Arc;

use http::Uri;
use http::uri::Authority;

use crate::context::Context;
use crate::declare::forms;
use crate::settings::Secret;
use crate::source::At;
use crate::text::Text;
use tollgate_policy::upstream::{Server, ServerAddress};

pub(crate) fn server(text: &At<Text>, weight: u32, context: &mut Context<'_>) -> Option<Server> {
    let written = text.as_str();
    if let Some(path) = written.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Some(Server {
            address: ServerAddress::Unix(context.path(&text.with(Text::plain(path)))),
            tls: None,
            authority: Authority::from_static("localhost"),
            base_path: String::new(),
            weight,
        });
    }
    let report = |label: &str| {
        let title = format!("`{written}` is not the URL of a server");
        context.error(title, text.place, label).help(
            "write \"http://10.0.0.1:3000\", \"https://api.example.com\" or \"unix:/run/app.sock\"",
        );
    };
    over_tcp(written, weight).map_err(report).ok()
}

fn over_tcp(written: &str, weight: u32) -> Result<Server, &'static str> {
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
        weight,
    })
}

forms! {
    /// `http://HOST[:PORT][/PATH]`, `https://…`, `unix:/PATH`.
    ServiceUrl -> Server = |text, context| server(text, 1, context);
    /// A secret, which must come from the environment.
    ServiceSecret -> Secret = secret;
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
