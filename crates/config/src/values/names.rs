//! Names of hosts, servers, protocols and mailboxes.

use std::net::IpAddr;
use std::sync::Arc;

use rustls_pki_types as pki_types;

use crate::reading::{At, Context, OneOrMany, OrBroken, Text, forms};

forms! {
    /// A host name that an authority gives a certificate for.
    AcmeHost -> String = host;
    /// One such name or several, each once.
    AcmeHosts -> Vec<String> as OneOrMany<OrBroken<AcmeHost>> = hosts;
    AcmeDirectory -> String = directory;
    /// The mail address of one person or list.
    Email -> String = email;
    /// A protocol that connections may be upgraded to.
    Upgrade -> String = upgrade;
    /// A pseudonym (RFC 9110 section 7.6.3), or `off`.
    ViaName -> Option<String> = via;
    /// A host name in the form of a Host header, without the port.
    HostName -> String = host_name;
    LowerCase -> String = |text, _| Some(text.as_str().to_ascii_lowercase());
    /// A name for certificates, without a port.
    ServerName -> Arc<str> = server_name;
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
    let url = uri.filter(is_https).map(|_| text.as_str().to_owned());
    let expected = "a URL with `https://` was expected";
    context.value_of(text, url, "is not the URL of a directory", expected)
}

fn email(text: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    let written = text.as_str();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b",?".contains(&byte);
    let parts = written.split_once('@');
    let is_address = parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        && written.bytes().all(is_plain);
    let address = is_address.then(|| written.to_owned());
    let expected = "one address was expected, like \"ops@example.com\"";
    context.value_of(text, address, "is not a mail address", expected)
}

fn upgrade(text: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    let name = text.as_str();
    if name.eq_ignore_ascii_case("h2c") {
        let label = "it would be a tunnel past every limit";
        context.error("an upgrade to `h2c` is never passed on", text.place, label);
    }
    if !name.split('/').all(is_token) {
        let label = "a token was expected, like `websocket`";
        context.error(format!("`{name}` is no protocol"), text.place, label);
    }
    Some(name.to_ascii_lowercase())
}

fn via(text: &At<Text>, context: &mut Context<'_>) -> Option<Option<String>> {
    let via = match text.as_str() {
        "off" => Some(None),
        name => (is_token(name) && name.len() <= 64).then(|| Some(name.to_owned())),
    };
    let expected = "a name without spaces, or \"off\", was expected";
    context.value_of(text, via, "cannot stand in Via", expected)
}

fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

fn host_name(text: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    let name = text.as_str().trim_end_matches('.').to_ascii_lowercase();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = !name.is_empty() && name.bytes().all(plain) && !name.starts_with('.');
    let expected = "a name without scheme and port was expected, like \"tollgate.internal\"";
    context.value_of(
        text,
        is_name.then_some(name),
        "is not a host name",
        expected,
    )
}

fn server_name(text: &At<Text>, context: &mut Context<'_>) -> Option<Arc<str>> {
    let name = text.as_str().to_ascii_lowercase();
    let is_name = pki_types::ServerName::try_from(name.as_str()).is_ok();
    let expected = "a host name or an address was expected, without a port";
    context.value_of(
        text,
        is_name.then(|| name.into()),
        "is not a server's name",
        expected,
    )
}

/// As many names as Let's Encrypt puts into one certificate.
const HOSTS_MAX: usize = 100;
