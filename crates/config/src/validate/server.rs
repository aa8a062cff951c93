//! `[server]`, `[admin]`, `[log]`: forms of their values, and checks between their keys.

use crate::context::Context;
use crate::declare::forms;
use crate::reader::Table;
use crate::settings::{AccessLog, Admin, Listener, Server};
use crate::source::At;
use crate::text::Text;
use crate::values::listener::same_socket;
use tollgate_limit::Timestamp;
use tollgate_policy::expiry::first_expiry;

forms! {
    /// A protocol that connections may be upgraded to.
    Upgrade -> String = upgrade;
    /// A pseudonym (RFC 9110 section 7.6.3), or `off`.
    ViaName -> Option<String> = via;
    /// A host name in the form of a Host header, without the port.
    HostName -> String = host_name;
    /// A text in lower case.
    LowerCase -> String = |text, _| Some(text.as_str().to_ascii_lowercase());
    /// Where the access log goes.
    AccessLogTarget -> AccessLog = access_log;
}

pub(crate) fn check_server(server: &Server, table: &Table<'_>, context: &mut Context<'_>) {
    let tls = server
        .listen
        .iter()
        .any(|listener| matches!(listener, Listener::Tcp { tls: true, .. }));
    let (certificates, client_ca) = (table.place("certificates"), table.place("client_ca"));
    super::acme::check_acme(server, table, context);
    if tls && certificates.is_none() && table.place("acme").is_none() {
        let entries = (0..).map_while(|at| context.place(&format!("server.listen[{at}]")));
        let mut entries = entries.filter(|place| context.sources.text(*place).contains("https:"));
        let place = entries.next().or(table.place("listen"));
        let place = place.unwrap_or(table.place);
        context
            .error("an https listener needs a certificate", place, "TLS is spoken here")
            .help("add certificates = [{ certificate = \"site.pem\", key = \"site.key\" }] to [server], or have it ordered: [server.acme]");
    }
    if let (false, Some(place)) = (tls, certificates) {
        context
            .warning(
                "certificates that no listener shows",
                place,
                "no listener speaks TLS",
            )
            .help("listen on \"https://0.0.0.0:8443\"");
    }
    if let (false, Some(place)) = (tls, client_ca) {
        let label = "no client can show a certificate without TLS";
        context.error("`client_ca` needs an https listener", place, label);
    }
    if let (None, Some(place)) = (client_ca, table.place("client_certificates")) {
        let label = "no certificate could be verified";
        context.error("`client_certificates` needs `client_ca`", place, label);
    }
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
    match text.as_str() {
        "off" => Some(None),
        name if is_token(name) && name.len() <= 64 => Some(Some(name.to_owned())),
        name => {
            let label = "a name without spaces, or \"off\", was expected";
            context.error(format!("`{name}` cannot stand in Via"), text.place, label);
            None
        }
    }
}

/// A token (RFC 9110 section 5.6.2).
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

fn host_name(text: &At<Text>, context: &mut Context<'_>) -> Option<String> {
    let name = text.as_str().trim_end_matches('.').to_ascii_lowercase();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.is_empty() && name.bytes().all(plain) && !name.starts_with('.') {
        return Some(name);
    }
    let title = format!("`{}` is not a host name", text.as_str());
    context
        .error(
            title,
            text.place,
            "a name without scheme and port was expected",
        )
        .help("\"tollgate.internal\" is one; addresses and `localhost` need not be listed");
    None
}

fn access_log(text: &At<Text>, context: &mut Context<'_>) -> Option<AccessLog> {
    Some(match text.as_str() {
        "stdout" => AccessLog::Stdout,
        "stderr" => AccessLog::Stderr,
        "off" => AccessLog::Off,
        path if path.contains(['/', '.']) => AccessLog::File(context.path(text)),
        other => {
            let label = "\"stdout\", \"stderr\", \"off\" or a path was expected";
            context
                .error(format!("`access` cannot be \"{other}\""), text.place, label)
                .help(format!("a path has a `/` or a `.` in it: \"./{other}\""));
            return None;
        }
    })
}

/// Warns of certificates that clients refuse, or soon will.
pub(crate) fn warn_of_expiry(server: &Server, now: Timestamp, context: &mut Context<'_>) {
    for (index, certificate) in server.certificates.iter().enumerate() {
        let path = &certificate.certificate;
        let Some(expires) = first_expiry(path) else {
            continue;
        };
        let left = expires.as_micros().saturating_sub(now.as_micros()) / DAY;
        let when = match left {
            _ if expires <= now => "has expired".to_owned(),
            0 => "expires within a day".to_owned(),
            1..EXPIRY_NEAR => format!("expires in {left} days"),
            _ => continue,
        };
        let title = format!("the certificate in `{}` {when}", path.display());
        let place = context.place(&format!("server.certificates[{index}].certificate"));
        context
            .warning(title, place.unwrap_or_default(), "it, or one of its chain")
            .help("clients refuse it from then on; a new file is taken up without a restart");
    }
}

const DAY: u64 = 86_400_000_000;
/// How many days before its expiry a certificate is warned of.
const EXPIRY_NEAR: u64 = 14;

/// The admin listener must not be the public one, nor open to other machines unawares.
pub(crate) fn check_admin(admin: &Admin, public: &Server, context: &mut Context<'_>) {
    super::operators::check_operators(admin, context);
    let (Some(listen), Some(place)) = (&admin.listen, context.place("admin.listen")) else {
        return;
    };
    if matches!(listen, Listener::Tcp { tls: true, .. }) {
        let title = "the admin listener does not speak TLS";
        context
            .error(title, place, "http or unix were expected")
            .help("keep it on 127.0.0.1 or a Unix socket");
    } else if public.listen.iter().any(|other| same_socket(other, listen)) {
        context
            .error(
                "the admin listener is the public one",
                place,
                "clients connect here",
            )
            .help("health, metrics and inspection belong on a port of their own");
    } else if matches!(listen, Listener::Tcp { address, .. } if address.ip().is_unspecified()) {
        let title = "the admin listener is open to every network";
        context
            .warning(title, place, "every interface")
            .help("127.0.0.1, or the address of an internal interface, keeps it inside");
    }
}
