//! Addresses that the gateway listens on.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::reading::{At, Context, OneOrMany, OrBroken, Text, forms};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    Tcp { address: SocketAddr, tls: bool },
    Unix(PathBuf),
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp {
                address,
                tls: false,
            } => write!(f, "http://{address}"),
            Self::Tcp { address, tls: true } => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address over which other programs ask for decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecideListener {
    pub listener: Listener,
    pub protocol: DecideProtocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecideProtocol {
    Http,
    Grpc,
}

impl fmt::Display for DecideListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.listener, self.protocol) {
            (Listener::Tcp { address, .. }, DecideProtocol::Grpc) => write!(f, "grpc://{address}"),
            (listener, _) => listener.fmt(f),
        }
    }
}

forms! {
    /// `http://ADDRESS:PORT`, `https://ADDRESS:PORT`, `unix:/PATH`, or a bare `ADDRESS:PORT`.
    ListenerText -> Listener = listener;
    AdminListener -> Option<Listener> = |text, context| match text.as_str() {
        "off" => Some(None),
        _ => listener(text, context).map(Some),
    };
    Listeners -> Vec<Listener> as OneOrMany<OrBroken<ListenerText>> = |list, context| {
        Some(each_once(list, same_socket, context))
    };
    /// `http://ADDRESS:PORT`, `grpc://ADDRESS:PORT`, `unix:/PATH`, or a bare `ADDRESS:PORT`.
    DecideListenerText -> DecideListener = decide_listener;
    DecideListeners -> Vec<DecideListener> as OneOrMany<OrBroken<DecideListenerText>> = |list, context| {
        let same = |one: &DecideListener, other: &DecideListener| {
            same_socket(&one.listener, &other.listener)
        };
        Some(each_once(list, same, context))
    };
}

/// The listeners of `list` that could be read; reports an empty list, and listeners that are the `same`.
pub(crate) fn each_once<T: Clone>(
    list: &At<Vec<At<Option<T>>>>,
    same: impl Fn(&T, &T) -> bool,
    context: &mut Context<'_>,
) -> Vec<T> {
    if list.is_empty() {
        context.error("nothing to listen on", list.place, "an empty list");
    }
    let list: Vec<At<T>> = list
        .iter()
        .filter_map(|at| Some(at.with(at.value.clone()?)))
        .collect();
    for (index, again) in list.iter().enumerate() {
        let mut earlier = list[..index].iter();
        if let Some(first) = earlier.find(|other| same(other, again)) {
            let written = context.sources.text(again.place);
            let title = format!(
                "`{}` is listened on twice",
                written.trim_matches(['"', '\''])
            );
            context.twice(title, again.place, first.place);
        }
    }
    list.into_iter().map(|at| at.value).collect()
}

/// Whether only one of two listeners can be bound: an unspecified address takes in all of its
/// family. Port 0 is a new port each time.
pub(crate) fn same_socket(one: &Listener, other: &Listener) -> bool {
    match (one, other) {
        (Listener::Tcp { address: one, .. }, Listener::Tcp { address: other, .. }) => {
            let overlap = one.ip().is_unspecified() || other.ip().is_unspecified();
            let same = one.ip() == other.ip() || (overlap && one.is_ipv4() == other.is_ipv4());
            same && one.port() == other.port() && one.port() != 0
        }
        _ => one == other,
    }
}

pub(crate) fn listener(text: &At<Text>, context: &mut Context<'_>) -> Option<Listener> {
    const HELP: &str =
        "write \"http://0.0.0.0:8080\", \"https://[::]:8443\" or \"unix:/run/tollgate.sock\"";
    let written = text.as_str();
    if let Some(path) = written.strip_prefix("unix:") {
        if path.is_empty() {
            let title = "a Unix socket without a path";
            context
                .error(title, text.place, "the path is missing")
                .help(HELP);
            return None;
        }
        return Some(Listener::Unix(context.path(&text.with(Text::plain(path)))));
    }
    let (tls, start) = match written.split_once("://") {
        Some(("http", _)) => (false, "http://".len()),
        Some(("https", _)) => (true, "https://".len()),
        Some((scheme, _)) => {
            let place = text.part(0, scheme.len());
            let title = format!("cannot listen on `{scheme}`");
            context
                .error(title, place, "http, https and unix are known")
                .help(HELP);
            return None;
        }
        None => (false, 0),
    };
    let address = written[start..].trim_end_matches('/');
    let port = address
        .strip_prefix(':')
        .or_else(|| address.strip_prefix("*:"));
    let address = match port {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.replace("localhost:", "127.0.0.1:"),
    };
    if let Ok(address) = address.parse() {
        return Some(Listener::Tcp { address, tls });
    }
    let bare = address.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let label = if bare {
        "the port is missing"
    } else {
        "an IP address and a port were expected"
    };
    let place = text.part(start, written.len());
    context
        .error(format!("cannot listen on `{written}`"), place, label)
        .help(HELP);
    None
}

fn decide_listener(text: &At<Text>, context: &mut Context<'_>) -> Option<DecideListener> {
    const HELP: &str = "keep it on 127.0.0.1, a Unix socket or an internal network";
    let grpc = text.as_str().strip_prefix("grpc://");
    let (address, protocol) = match grpc {
        Some(rest) => (text.with(Text::plain(rest)), DecideProtocol::Grpc),
        None => (text.clone(), DecideProtocol::Http),
    };
    let listener = listener(&address, context)?;
    let problem = match (&listener, protocol) {
        (Listener::Tcp { tls: true, .. }, _) => (
            "decisions are not asked for over TLS",
            "http, grpc or unix were expected",
        ),
        (Listener::Unix(_), DecideProtocol::Grpc) => (
            "`grpc://` is followed by an address",
            "grpc://ADDRESS:PORT was expected",
        ),
        _ => return Some(DecideListener { listener, protocol }),
    };
    context.error(problem.0, text.place, problem.1).help(HELP);
    None
}
