//! `[server.acme]` and `redirect_to_https`: forms of their values, and what they need of the listeners.

use std::net::IpAddr;

use crate::context::Context;
use crate::declare::forms;
use crate::lists::{OneOrMany, OrBroken};
use crate::reader::Table;
use crate::settings::{AcmeChallenge, Listener, Server};
use crate::source::At;
use crate::text::Text;

forms! {
    /// A host name that an authority gives a certificate for.
    AcmeHost -> String = host;
    /// One such name or several, each once.
    AcmeHosts -> Vec<String> as OneOrMany<OrBroken<AcmeHost>> = hosts;
    /// The URL of an authority's directory.
    AcmeDirectory -> String = directory;
    /// The mail address of one person or list.
    Email -> String = email;
}

fn hosts(list: &At<Vec<At<Option<String>>>>, context: &mut Context<'_>) -> Option<Vec<String>> {
    let mut hosts: Vec<String> = Vec::new();
    for at in &list.value {
        match &at.value {
            Some(host) if hosts.contains(host) => {
                let title = format!("`{host}` is named twice");
                context.error(title, at.place, "again here");
            }
            Some(host) => hosts.push(host.clone()),
            None => {}
        }
    }
    if list.is_empty() || list.len() > HOSTS_MAX {
        let title = format!("a certificate has 1 to {HOSTS_MAX} hosts");
        context.error(title, list.place, format!("{} hosts", list.len()));
    }
    Some(hosts)
}

fn host(text: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    let written = text.as_str();
    let name = written.trim_end_matches('.').to_ascii_lowercase();
    let title = format!("no certificate can be ordered for `{written}`");
    if written.contains('*') {
        let label = "a wildcard is proved by DNS (DNS-01), which the gateway does not offer";
        context.error(title, text.place, label).help(
            "name each host, or get the certificate from another program and write `certificates`",
        );
        return None;
    }
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(plain)
    };
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if address || name.len() > 253 || !name.split('.').all(is_label) {
        let label = "a host name without scheme and port was expected";
        let help = "an international name is written in its ASCII form: xn--bcher-kva.example";
        context.error(title, text.place, label).help(help);
        return None;
    }
    Some(name)
}

fn directory(text: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    let uri = text.as_str().parse::<http::Uri>().ok();
    let is_https = |uri: &http::Uri| {
        uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty())
    };
    if uri.is_some_and(|uri| is_https(&uri)) {
        return Some(text.as_str().to_owned());
    }
    let title = format!("`{}` is not the URL of a directory", text.as_str());
    context.error(title, text.place, "a URL with `https://` was expected");
    None
}

fn email(text: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    let written = text.as_str();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b",?".contains(&byte);
    let parts = written.split_once('@');
    if parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        && written.bytes().all(is_plain)
    {
        return Some(written.to_owned());
    }
    let title = format!("`{written}` is not a mail address");
    let label = "one address was expected, like \"ops@example.com\"";
    context.error(title, text.place, label);
    None
}

/// The listeners that certificates, challenges and redirects need, and what cannot be written together.
pub(crate) fn check_acme(server: &Server, table: &Table<'_>, context: &mut Context<'_>) {
    let is = |encrypted: bool| move |listener: &Listener| matches!(listener, Listener::Tcp { tls, .. } if *tls == encrypted);
    let (encrypted, plain) = (
        server.listen.iter().any(is(true)),
        server.listen.iter().any(is(false)),
    );
    if let (Some(acme), Some(place)) = (&server.acme, table.place("acme")) {
        if let Some(other) = table.place("certificates") {
            let title = "`certificates` and `acme` are both written";
            context
                .either(title, place, other)
                .help("`acme` orders the certificate of every https listener");
        }
        if !encrypted {
            let label = "its certificate would be shown nowhere";
            context
                .error("`acme` needs an https listener", place, label)
                .help("listen on \"https://0.0.0.0:443\"");
        }
        if acme.challenge == AcmeChallenge::Http01 && !plain {
            let place = context.place("server.acme.challenge").unwrap_or(place);
            let label = "no http listener could answer it";
            context
                .error(
                    "the challenge `http-01` needs an http listener",
                    place,
                    label,
                )
                .help("listen on \"http://0.0.0.0:80\" too, or leave `challenge` out");
        }
    }
    if let (true, Some(place)) = (server.redirect_to_https, table.place("redirect_to_https"))
        && !(encrypted && plain)
    {
        let title = "`redirect_to_https` needs an http listener and an https listener";
        let missing = if encrypted { "http" } else { "https" };
        context
            .error(title, place, format!("there is no {missing} listener"))
            .help("listen = [\"http://0.0.0.0:80\", \"https://0.0.0.0:443\"]");
    }
}

/// As many names as Let's Encrypt puts into one certificate.
const HOSTS_MAX: usize = 100;
