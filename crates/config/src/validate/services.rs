//! Services that the gateway itself sends documents to.

use crate::context::Context;
use crate::declare::forms;
use crate::settings::Secret;
use crate::source::At;
use crate::text::Text;
use tollgate_policy::upstream::Server;

use super::server_url::server;

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
