//! Addresses of the listeners for decisions, and how they differ from the others.

use crate::context::Context;
use crate::declare::forms;
use crate::lists::{OneOrMany, OrBroken};
use crate::settings::{Admin, Decide, DecideListener, DecideProtocol, Listener, Server};
use crate::source::At;
use crate::text::Text;
use crate::values::listener::{each_once, listener, same_socket};

forms! {
    /// `http://ADDRESS:PORT`, `grpc://ADDRESS:PORT`, `unix:/PATH`, or a bare `ADDRESS:PORT`.
    DecideListenerText -> DecideListener = decide_listener;
    /// One listener or several, each once.
    DecideListeners -> Vec<DecideListener> as OneOrMany<OrBroken<DecideListenerText>> = |list, context| {
        let same = |one: &DecideListener, other: &DecideListener| {
            same_socket(&one.listener, &other.listener)
        };
        Some(each_once(list, same, context))
    };
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
