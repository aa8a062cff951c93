//! `[admin] operators`: who may change buckets over the admin listener.

use crate::context::Context;
use crate::declare::forms;
use crate::reader::Table;
use crate::settings::{Admin, Listener, Operator};
use crate::source::At;
use crate::text::Text;
use tollgate_policy::identity::callers::digest_words;
use tollgate_policy::identity::parse_digest;

forms! {
    /// The SHA-256 of a token.
    TokenDigest -> [u8; 32] = token;
}

fn token(text: &At<Text>, context: &mut Context<'_>) -> Option<[u8; 32]> {
    let error = match parse_digest(text.as_str()) {
        Ok(digest) => return Some(digest),
        Err(error) => error,
    };
    if text.as_str().starts_with("sha256:") {
        context.error("this is not a SHA-256", text.place, error.message);
    } else {
        let digest = digest_words(text.as_str().as_bytes());
        let title = "an operator's token is written in plain text in the file";
        let label = "operators are listed by the SHA-256 of their token";
        let problem = context.error(title, text.place, label);
        problem.secret = true;
        problem.help(format!("if this is the token itself, write \"{digest}\""));
    }
    None
}

/// An operator is known in one way.
pub(crate) fn check_operator(operator: &Operator, table: &Table<'_>, context: &mut Context<'_>) {
    let written = [table.place("token"), table.place("user")];
    if written.iter().flatten().count() != 1 {
        let title = format!(
            "operator `{}` needs either `token` or `user`",
            operator.name
        );
        context
            .error(title, table.place, "how the operator is known")
            .help(
                "openssl rand -hex 24 | tee token.txt | tollgate hash prints the token's SHA-256",
            );
    }
}

/// Operators differ, and users are known only on a Unix socket.
pub(crate) fn check_operators(admin: &Admin, context: &mut Context<'_>) {
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
