//! `[server]`, `[admin]` and `[decide]`: checks between their keys, and between their listeners.

use crate::reading::{At, Context};
use crate::settings::{AcmeChallenge, Admin, Decide, Listener, Operator, Server};
use crate::values::listener::same_socket;
use tollgate_limit::Timestamp;
use tollgate_policy::expiry::first_expiry;

/// What the listeners need, and what cannot be written together.
pub(crate) fn check_server(server: &At<Server>, context: &mut Context<'_>) {
    let place_of = |key| context.place(&format!("server.{key}"));
    let (certificates, acme) = (place_of("certificates"), place_of("acme"));
    let (client_ca, client_certificates) = (place_of("client_ca"), place_of("client_certificates"));
    let listen = place_of("listen").unwrap_or(server.place);
    let redirect = place_of("redirect_to_https");
    let has = |encrypted: bool| {
        let is = |listener: &Listener| matches!(listener, Listener::Tcp { tls, .. } if *tls == encrypted);
        server.listen.iter().any(is)
    };
    let (tls, plain) = (has(true), has(false));
    if tls && certificates.is_none() && acme.is_none() {
        let entries = (0..).map_while(|at| context.place(&format!("server.listen[{at}]")));
        let mut entries = entries.filter(|place| context.sources.text(*place).contains("https:"));
        let place = entries.next().unwrap_or(listen);
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
    if let (None, Some(place)) = (client_ca, client_certificates) {
        let label = "no certificate could be verified";
        context.error("`client_certificates` needs `client_ca`", place, label);
    }
    if let (Some(acme), Some(place)) = (&server.acme, acme) {
        if let Some(other) = certificates {
            let title = "`certificates` and `acme` are both written";
            context
                .either(title, place, other)
                .help("`acme` orders the certificate of every https listener");
        }
        if !tls {
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
    if let (true, Some(place)) = (server.redirect_to_https, redirect)
        && !(tls && plain)
    {
        let title = "`redirect_to_https` needs an http listener and an https listener";
        let missing = if tls { "http" } else { "https" };
        context
            .error(title, place, format!("there is no {missing} listener"))
            .help("listen = [\"http://0.0.0.0:80\", \"https://0.0.0.0:443\"]");
    }
}

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
    check_operators(admin, context);
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

/// Operators differ, and users are known only on a Unix socket.
fn check_operators(admin: &Admin, context: &mut Context<'_>) {
    for (index, operator) in admin.operators.iter().enumerate() {
        let place = |key: &str| format!("admin.operators[{index}].{key}");
        let tcp = matches!(admin.listen, Some(Listener::Tcp { .. }));
        if let (true, Some(place)) = (tcp, context.place(&place("user"))) {
            let title = "`user` needs an admin listener on a Unix socket";
            context
                .error(title, place, "a TCP connection does not tell its user")
                .help("listen = \"unix:/run/tollgate/admin.sock\", or give the operator a token");
        }
        let is_same = |other: &Operator| {
            other.name == operator.name
                || (other.token.is_some() && other.token == operator.token)
                || (other.user.is_some() && other.user == operator.user)
        };
        let twice = admin.operators[..index].iter().any(is_same);
        if let (true, Some(place)) = (twice, context.place(&place("name"))) {
            let title = format!("operator `{}` is listed twice", operator.name);
            context.error(title, place, "another one has this name, token or user");
        }
    }
}

/// The listeners for decisions must not be those for clients or for operators.
pub(crate) fn check_decide(
    decide: &Decide,
    server: &Server,
    admin: &Admin,
    context: &mut Context<'_>,
) {
    for (index, one) in decide.listen.iter().enumerate() {
        let others = [
            (
                server
                    .listen
                    .iter()
                    .any(|other| same_socket(other, &one.listener)),
                "clients connect here",
            ),
            (
                admin
                    .listen
                    .iter()
                    .any(|other| same_socket(other, &one.listener)),
                "the admin listener is here",
            ),
        ];
        let Some((_, label)) = others.into_iter().find(|(same, _)| *same) else {
            continue;
        };
        let place = context
            .place(&format!("decide.listen[{index}]"))
            .or_else(|| context.place("decide.listen"));
        context
            .error(
                "the listener for decisions is another one's",
                place.unwrap_or_default(),
                label,
            )
            .help("decisions are asked for on a port of their own");
    }
}
