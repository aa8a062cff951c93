//! `[server]`, `[admin]`, `[log]`, `[address]`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Context, list_of};
use crate::problem::Problem;
use crate::quantity::{Count, Size, share};
use crate::raw;
use crate::reader::{Field, Setting};
use crate::scalar::Text;
use crate::settings::{
    AccessLog, Admin, Bounds, Certificate, Listener, Log, ReloadGuard, Server, ServerTimeouts,
};
use crate::source::{At, Place};
use tollgate_limit::Timestamp;
use tollgate_policy::address::{AddressPolicy, ForwardingHeader};
use tollgate_policy::expiry::first_expiry;

/// `[server]`.
pub(crate) fn server(field: &Field<raw::Server>, context: &mut Context<'_>) -> Server {
    let raw = &field.or(raw::Server::default());
    let timeouts = raw.timeouts.or(raw::ServerTimeouts::default());
    let server = Server {
        listen: listeners(raw, context),
        certificates: certificates(raw, context),
        client_ca: raw
            .client_ca
            .get()
            .and_then(|file| context.readable(file, "authorities are read from here")),
        client_certificates: raw.client_certificates().value,
        cold_start: raw.cold_start().value,
        state_file: raw.state_file.get().map(|file| context.path(file)),
        proxy_protocol: raw.proxy_protocol().value,
        workers: workers(&raw.workers(), context),
        upgrades: upgrades(&raw.upgrades().value, context),
        egress: raw.egress().value,
        via: via(&raw.via().at(), context),
        reload: reload(&raw.reload, context),
        timeouts: ServerTimeouts {
            header_read: context.time(timeouts.header_read()),
            body_idle: context.time(timeouts.body_idle()),
            keep_alive: context.time(timeouts.keep_alive()),
            drain: context.time(timeouts.drain()),
            drain_delay: context.span(timeouts.drain_delay()),
            tls_handshake: context.time(timeouts.tls_handshake()),
            upgrade_idle: context.time(timeouts.upgrade_idle()),
        },
        bounds: bounds(&raw.bounds.or(raw::Bounds::default()), context),
    };
    check_tls(raw, &server, context);
    server
}

fn reload(raw: &Field<raw::Reload>, context: &mut Context<'_>) -> Option<ReloadGuard> {
    let raw = raw.get()?;
    let bytes = context.bounded(raw.remember(), 1 << 20, 4 << 30);
    let Some(text) = raw.refuse_if_newly_limited.get() else {
        if raw.refuse_if_newly_limited.is_absent() {
            let problem = Problem::error("`reload` without `refuse_if_newly_limited`");
            let help = "add refuse_if_newly_limited = \"1% of keys\", or remove the table";
            context.push(problem.at(raw.place, "nothing is refused by it").help(help));
        }
        return None;
    };
    let of_keys = !text.as_str().trim_end().ends_with("requests");
    let of = if of_keys { "of keys" } else { "of requests" };
    match share(text.as_str(), of) {
        Ok(hundredths) => Some(ReloadGuard {
            hundredths,
            of_keys,
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        }),
        Err(flaw) => {
            context.flaw(flaw, text);
            None
        }
    }
}

fn bounds(raw: &raw::Bounds, context: &mut Context<'_>) -> Bounds {
    const MANY: u64 = 10_000_000;
    let narrow = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let streams = context.within(raw.http2_streams(), 1, 10_000);
    Bounds {
        connections: narrow(context.within(raw.connections(), 1, MANY)),
        connections_per_address: raw
            .connections_per_address
            .setting("connections_per_address")
            .map(|most| narrow(context.within(most, 1, MANY))),
        requests: raw
            .requests
            .setting("requests")
            .map(|most| narrow(context.within(most, 1, MANY))),
        header_bytes: narrow(context.bounded(raw.header_bytes(), 8 << 10, 1 << 20)),
        headers: narrow(context.within(raw.headers(), 10, 1_000)),
        body: match raw.body().value {
            Size::Bytes(bytes) => Some(bytes),
            Size::Unlimited => None,
        },
        body_rate: context.within(raw.body_rate(), 0, 1 << 30),
        http2_streams: u32::try_from(streams).unwrap_or(u32::MAX),
    }
}

/// Mistakes in the combination of TLS keys.
fn check_tls(raw: &raw::Server, server: &Server, context: &mut Context<'_>) {
    let tls = server
        .listen
        .iter()
        .any(|listener| matches!(listener, Listener::Tcp { tls: true, .. }));
    if tls && raw.certificates.is_absent() {
        let problem = Problem::error("an https listener needs a certificate");
        let list = raw
            .listen
            .get()
            .map_or(&[][..], |listen| listen.list.as_slice());
        let speaks = list
            .iter()
            .find(|text| text.as_str().starts_with("https:"))
            .map(|text| text.place);
        let problem = problem.at(speaks.unwrap_or_default(), "TLS is spoken here");
        context.push(problem.help(
            "add certificates = [{ certificate = \"site.pem\", key = \"site.key\" }] to [server]",
        ));
    }
    if let (false, Some(place)) = (tls, raw.certificates.place()) {
        let problem = Problem::warning("certificates that no listener shows")
            .at(place, "no listener speaks TLS");
        context.push(problem.help("listen on \"https://0.0.0.0:8443\""));
    }
    if let (false, Some(place)) = (tls, raw.client_ca.place()) {
        let label = "no caller can show a certificate without TLS";
        context.push(Problem::error("`client_ca` needs an https listener").at(place, label));
    }
    if let (true, Some(place)) = (raw.client_ca.is_absent(), raw.client_certificates.place()) {
        let label = "no certificate could be verified";
        context.push(Problem::error("`client_certificates` needs `client_ca`").at(place, label));
    }
}

fn workers(count: &Setting<Count>, context: &mut Context<'_>) -> Option<usize> {
    context
        .count(count, 1_024)
        .and_then(|number| usize::try_from(number).ok())
}

fn upgrades(list: &[At<Text>], context: &mut Context<'_>) -> Vec<String> {
    for name in list
        .iter()
        .filter(|name| name.as_str().eq_ignore_ascii_case("h2c"))
    {
        let problem = Problem::error("an upgrade to `h2c` is never passed on");
        context.push(problem.at(name.place, "it would be a tunnel past every limit"));
    }
    for name in list
        .iter()
        .filter(|name| !name.as_str().split('/').all(is_token))
    {
        let problem = Problem::error(format!("`{}` is no protocol", name.as_str()));
        context.push(problem.at(name.place, "a token was expected, like `websocket`"));
    }
    list.iter()
        .map(|name| name.as_str().to_ascii_lowercase())
        .collect()
}

/// `via`: a pseudonym (RFC 9110 section 7.6.3) or `off`.
fn via(name: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    match name.as_str() {
        "off" => None,
        written if is_token(written) && written.len() <= 64 => Some(written.to_owned()),
        written => {
            let problem = Problem::error(format!("`{written}` cannot stand in Via"));
            context.push(problem.at(
                name.place,
                "a name without spaces, or \"off\", was expected",
            ));
            None
        }
    }
}

/// A token (RFC 9110 section 5.6.2).
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

fn listeners(raw: &raw::Server, context: &mut Context<'_>) -> Vec<Listener> {
    let listen = raw.listen().at();
    let mut list: Vec<(Listener, Place)> = Vec::new();
    for text in &listen.list {
        let Some(listener) = listener(text, context) else {
            continue;
        };
        match list.iter().find(|(other, _)| same_socket(other, &listener)) {
            Some((_, first)) => {
                let problem = Problem::error(format!("`{}` is listened on twice", text.as_str()));
                context.push(
                    problem
                        .at(text.place, "again here")
                        .at(*first, "first here"),
                );
            }
            None => list.push((listener, text.place)),
        }
    }
    if listen.list.is_empty() {
        context.push(Problem::error("nothing to listen on").at(listen.place, "an empty list"));
    }
    list.into_iter().map(|(listener, _)| listener).collect()
}

/// Whether two listeners would bind the same socket; port 0 is a new port each time.
fn same_socket(one: &Listener, other: &Listener) -> bool {
    match (one, other) {
        (Listener::Tcp { address: one, .. }, Listener::Tcp { address: other, .. }) => {
            one == other && one.port() != 0
        }
        _ => one == other,
    }
}

/// `http://ADDRESS:PORT`, `https://ADDRESS:PORT`, `unix:/PATH`, or a bare `ADDRESS:PORT`.
fn listener(text: &At<Text>, context: &mut Context<'_>) -> Option<Listener> {
    const HELP: &str =
        "write \"http://0.0.0.0:8080\", \"https://[::]:8443\" or \"unix:/run/tollgate.sock\"";
    let written = text.as_str();
    if let Some(path) = written.strip_prefix("unix:") {
        if path.is_empty() {
            context.push(
                Problem::error("a Unix socket without a path")
                    .at(text.place, "the path is missing")
                    .help(HELP),
            );
            return None;
        }
        return Some(Listener::Unix(context.path(&text.with(Text::plain(path)))));
    }
    let (tls, start) = match written.split_once("://") {
        Some(("http", _)) => (false, "http://".len()),
        Some(("https", _)) => (true, "https://".len()),
        Some((scheme, _)) => {
            let problem = Problem::error(format!("cannot listen on `{scheme}`"));
            context.push(
                problem
                    .at(text.part(0, scheme.len()), "http, https and unix are known")
                    .help(HELP),
            );
            return None;
        }
        None => (false, 0),
    };
    let address = written[start..].trim_end_matches('/');
    let address = match address
        .strip_prefix(':')
        .or_else(|| address.strip_prefix("*:"))
    {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.replace("localhost:", "127.0.0.1:"),
    };
    match address.parse() {
        Ok(address) => Some(Listener::Tcp { address, tls }),
        Err(_) => {
            let bare = address.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            let label = if bare {
                "the port is missing"
            } else {
                "an IP address and a port were expected"
            };
            let problem = Problem::error(format!("cannot listen on `{written}`"));
            context.push(
                problem
                    .at(text.part(start, written.len()), label)
                    .help(HELP),
            );
            None
        }
    }
}

fn certificates(raw: &raw::Server, context: &mut Context<'_>) -> Vec<Certificate> {
    let mut list = Vec::new();
    for at in list_of(&raw.certificates) {
        for (key, absent) in [
            ("certificate", at.certificate.is_absent()),
            ("key", at.key.is_absent()),
        ] {
            if absent {
                let problem = Problem::error(format!("a certificate entry without `{key}`"));
                context.push(problem.at(at.place, format!("`{key}` is missing")));
            }
        }
        let certificate = at
            .certificate
            .get()
            .and_then(|file| context.readable(file, "the certificate is read from here"));
        let key = at
            .key
            .get()
            .and_then(|file| context.readable(file, "the private key is read from here"));
        let hosts = list_of(&at.hosts)
            .iter()
            .map(|host| host.as_str().to_ascii_lowercase())
            .collect();
        if let (Some(certificate), Some(key)) = (certificate, key) {
            list.push(Certificate {
                certificate,
                key,
                hosts,
            });
        }
    }
    list
}

/// Warns of certificates that clients refuse, or soon will.
pub(crate) fn warn_of_expiry(
    field: &Field<raw::Server>,
    now: Timestamp,
    context: &mut Context<'_>,
) {
    let Some(server) = field.get() else { return };
    for text in list_of(&server.certificates)
        .iter()
        .filter_map(|one| one.certificate.get())
    {
        let path = context.path(text);
        let Some(expires) = first_expiry(&path) else {
            continue;
        };
        let left = expires.as_micros().saturating_sub(now.as_micros()) / DAY;
        let title = match left {
            _ if expires <= now => format!("the certificate in `{}` has expired", path.display()),
            0 => format!(
                "the certificate in `{}` expires within a day",
                path.display()
            ),
            1..EXPIRY_NEAR => format!(
                "the certificate in `{}` expires in {left} days",
                path.display()
            ),
            _ => continue,
        };
        let problem = Problem::warning(title).at(text.place, "it, or one of its chain");
        context.push(
            problem
                .help("callers refuse it from then on; a new file is taken up without a restart"),
        );
    }
}

/// Microseconds of a day.
const DAY: u64 = 86_400_000_000;
/// How many days before its expiry a certificate is warned of.
const EXPIRY_NEAR: u64 = 14;

/// `[admin]`.
pub(crate) fn admin(
    field: &Field<raw::Admin>,
    public: &Server,
    context: &mut Context<'_>,
) -> Admin {
    let raw = field.or(raw::Admin::default());
    let hosts = names(&raw.hosts().value, context);
    let text = &raw.listen().at();
    if text.as_str() == "off" {
        return Admin {
            listen: None,
            hosts,
        };
    }
    let Some(listen) = listener(text, context) else {
        return Admin {
            listen: None,
            hosts,
        };
    };
    if matches!(listen, Listener::Tcp { tls: true, .. }) {
        let problem = Problem::error("the admin listener does not speak TLS")
            .at(text.place, "http or unix were expected");
        context.push(problem.help("keep it on 127.0.0.1 or a Unix socket"));
    } else if public
        .listen
        .iter()
        .any(|other| same_socket(other, &listen))
    {
        let problem = Problem::error("the admin listener is the public one")
            .at(text.place, "callers come in here");
        context.push(problem.help("health, metrics and inspection belong on a port of their own"));
    } else if matches!(listen, Listener::Tcp { address, .. } if address.ip().is_unspecified()) {
        let problem = Problem::warning("the admin listener is open to every network")
            .at(text.place, "every interface");
        context.push(
            problem.help("127.0.0.1, or the address of an internal interface, keeps it inside"),
        );
    }
    Admin {
        listen: Some(listen),
        hosts,
    }
}

/// Host names in the form of a Host header, without the port.
fn names(list: &[At<Text>], context: &mut Context<'_>) -> Vec<String> {
    let mut names = Vec::new();
    for text in list {
        let name = text.as_str().trim_end_matches('.').to_ascii_lowercase();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !name.is_empty() && name.bytes().all(plain) && !name.starts_with('.') {
            names.push(name);
            continue;
        }
        let problem = Problem::error(format!("`{}` is not a host name", text.as_str()));
        let problem = problem.at(text.place, "a name without scheme and port was expected");
        context
            .push(problem.help(
                "\"tollgate.internal\" is one; addresses and `localhost` need not be listed",
            ));
    }
    names
}

/// `[log]`.
pub(crate) fn log(field: &Field<raw::Log>, context: &mut Context<'_>) -> Log {
    let raw = field.or(raw::Log::default());
    let sample = raw.sample().at();
    let sample = match share(sample.as_str(), "of requests") {
        Ok(share) => share,
        Err(flaw) => {
            context.flaw(flaw, &sample);
            0
        }
    };
    Log {
        access: access_log(&raw.access().at(), context),
        format: raw.format().value,
        sample,
        keys: raw.keys().value,
        query: raw.query().value,
        level: raw.level().value,
        operations: raw.operations().value,
    }
}

fn access_log(text: &At<Text>, context: &mut Context<'_>) -> AccessLog {
    match text.as_str() {
        "stdout" => AccessLog::Stdout,
        "stderr" => AccessLog::Stderr,
        "off" => AccessLog::Off,
        path if path.contains(['/', '.']) => AccessLog::File(context.path(text)),
        other => {
            let problem = Problem::error(format!("`access` cannot be \"{other}\""));
            let problem = problem.at(
                text.place,
                "\"stdout\", \"stderr\", \"off\" or a path was expected",
            );
            context.push(problem.help(format!("a path has a `/` or a `.` in it: \"./{other}\"")));
            AccessLog::Stdout
        }
    }
}

/// `[address]`.
pub(crate) fn address(field: &Field<raw::Address>, context: &mut Context<'_>) -> AddressPolicy {
    let raw = field.or(raw::Address::default());
    for text in list_of(&raw.trusted_proxies) {
        if text
            .as_str()
            .parse::<IpNet>()
            .is_ok_and(|network| network.prefix_len() == 0)
        {
            let problem = Problem::warning("every client is a trusted proxy").at(
                text.place,
                "so each client chooses the address it is counted by",
            );
            context.push(
                problem.help("name the networks of your own proxies, such as \"10.0.0.0/8\""),
            );
        }
    }
    let trusted_hops = raw.trusted_hops.setting("trusted_hops");
    if let (Some(hops), Some(proxies)) = (raw.trusted_hops.place(), raw.trusted_proxies.place()) {
        let problem = Problem::error("proxies are trusted by their addresses or by their number")
            .at(hops, "one of them must go")
            .at(proxies, "the other");
        context.push(problem.help("addresses are safer: a client that reaches the gateway past the proxies is then not believed"));
    }
    let trusted_hops = trusted_hops.map_or(0, |hops| context.within(hops, 1, 32));
    let prefix = context.within(raw.ipv6_prefix(), 16, 128);
    AddressPolicy {
        trusted_proxies: raw
            .trusted_proxies()
            .value
            .iter()
            .filter_map(|text| network(text, context))
            .collect(),
        trusted_hops: u8::try_from(trusted_hops).unwrap_or(0),
        ipv6_prefix: u8::try_from(prefix).unwrap_or(64),
        exempt: raw
            .exempt()
            .value
            .iter()
            .filter_map(|text| network(text, context))
            .collect(),
        trust_unix: raw.trust_unix().value,
        header: match raw.header().value {
            raw::RawForwarding::Either => ForwardingHeader::Either,
            raw::RawForwarding::XForwardedFor => ForwardingHeader::XForwardedFor,
            raw::RawForwarding::Forwarded => ForwardingHeader::Forwarded,
        },
    }
}

/// A network, or one address.
fn network(text: &At<Text>, context: &mut Context<'_>) -> Option<IpNet> {
    let written = text.as_str();
    if let Ok(address) = written.parse::<IpAddr>() {
        return Some(IpNet::from(address));
    }
    let problem = match written.parse::<IpNet>() {
        Ok(net) if net.trunc() == net => return Some(net),
        Ok(net) => Problem::error(format!("`{written}` has bits beyond its prefix"))
            .at(text.place, format!("did you mean `{}`?", net.trunc()))
            .help(format!(
                "one address is written without a prefix: \"{}\"",
                net.addr()
            )),
        Err(_) => Problem::error(format!("`{written}` is not a network"))
            .at(text.place, "an address with a prefix was expected")
            .help("\"10.0.0.0/8\", \"2001:db8::/32\" and \"192.0.2.7\" are networks"),
    };
    context.push(problem);
    None
}
