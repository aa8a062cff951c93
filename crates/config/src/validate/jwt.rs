//! `jwt` of an identity: how tokens are verified.

use http::Uri;

use crate::raw::RawJwt;
use crate::reading::{At, Context, Field, Program, Text, defaults, listed, nearest};
use tollgate_policy::identity::JwtSettings;
use tollgate_policy::identity::jwt::{
    Algorithm, FetchSettings, JwtPolicy, KeysUrl, may_be_fetched,
};

/// How tokens are verified; `None`: they cannot be, which was reported.
pub(super) fn policy(raw: &At<RawJwt>, context: &mut Context<'_>) -> Option<JwtPolicy> {
    let secret = context.secret("secret", &raw.secret, &raw.secret_file);
    let secret_written = !(raw.secret.is_absent() && raw.secret_file.is_absent());
    if raw.keys.is_absent() && raw.discovery.is_absent() && !secret_written {
        context
            .error("`jwt` needs `keys`", raw.place, "`keys` is missing")
            .help("keys = \"jwks.json\" (or a PEM file, or a URL) for RS, PS, ES and EdDSA; secret = \"${JWT_SECRET}\" for HS256");
    }
    if let (Some(keys), Some(discovery)) = (raw.keys.place(), raw.discovery.place()) {
        let title = "`jwt` has `keys` and an issuer that names them";
        context.either(title, keys, discovery);
        return None;
    }
    let shared = raw.secret.place().or(raw.secret_file.place());
    let public = raw.keys.place().or(raw.discovery.place());
    if let (Some(keys), Some(secret)) = (public, shared) {
        context.either("`jwt` has public keys and a shared secret", keys, secret);
        return None;
    }
    let algorithms = algorithms(raw, secret_written, context);
    let fetched = fetched_from(raw, context);
    let keys = raw.keys.get().filter(|_| fetched.is_none());
    let keys = keys.and_then(|file| {
        let (_, content) = context.bytes(file, "the keys are read from here")?;
        Some((content, file.place))
    });
    let secret = secret.map(|at| {
        let content = at.value.expose().as_bytes().to_vec();
        (content, at.place)
    });
    let texts = |field: &Field<Vec<At<String>>>| {
        let list = field.or(Vec::new());
        list.into_iter().map(|at| at.value).collect()
    };
    let mut settings = JwtSettings {
        algorithms: algorithms?,
        issuers: texts(&raw.issuer),
        audiences: texts(&raw.audience),
        leeway: raw.leeway().value.ceil_secs(),
    };
    if let Some(from) = fetched {
        let from = from?;
        if raw.issuer.is_absent() {
            settings.issuers.extend(from.issuer.clone());
        }
        return Some(JwtPolicy::fetched(settings, from));
    }
    let (content, place) = keys.or(secret)?;
    let report = |why| {
        context.error("these keys cannot verify tokens", place, why);
    };
    JwtPolicy::new(settings, &content).map_err(report).ok()
}

/// Where the keys are fetched from; `None`: they are not. `Some(None)`: that is wrong, which was reported.
fn fetched_from(raw: &At<RawJwt>, context: &mut Context<'_>) -> Option<Option<KeysUrl>> {
    let by_url = raw.keys.get().filter(|keys| keys.as_str().contains("://"));
    let Some(written) = by_url.or(raw.discovery.get()) else {
        if let Some(place) = raw.fetch.place() {
            let label = "the keys are in a file, or are a secret";
            context.error("`fetch` is for keys that are fetched", place, label);
        }
        return None;
    };
    if context.program == Program::Service {
        let title = "a service does not fetch keys";
        context
            .error(title, written.place, "only a gateway does")
            .help("write the name of a file that has them: keys = \"jwks.json\"");
        return Some(None);
    }
    let issuer = raw.discovery.get().map(|at| at.as_str().to_owned());
    let Some(url) = url(written, issuer.is_some(), context) else {
        return Some(None);
    };
    let settings = match raw.fetch.get() {
        Some(at) => at.value.clone(),
        None if raw.fetch.is_absent() => defaults::<FetchSettings>(),
        None => return Some(None),
    };
    Some(Some(KeysUrl {
        url,
        issuer,
        settings,
    }))
}

fn url(written: &At<Text>, of_issuer: bool, context: &mut Context<'_>) -> Option<Uri> {
    let text = written.as_str();
    let whole = match of_issuer {
        true => format!(
            "{}/.well-known/openid-configuration",
            text.trim_end_matches('/')
        ),
        false => text.to_owned(),
    };
    let shown = text.split('?').next().unwrap_or_default();
    let has_more = text.contains(['@', '#']) || of_issuer && text.contains('?');
    let read = whole.parse::<Uri>().ok().filter(|_| !has_more);
    let has_host = |url: &Uri| url.host().is_some_and(|host| !host.is_empty());
    let Some(url) = read.filter(has_host) else {
        let title = format!("keys cannot be fetched from `{shown}`");
        context
            .error(title, written.place, "this is no URL of a document")
            .help(match of_issuer {
                true => "write \"https://id.example.com\"",
                false => "write \"https://id.example.com/.well-known/jwks.json\"",
            });
        return None;
    };
    if let Err(why) = may_be_fetched(&url) {
        let title = format!("keys are not fetched from `{shown}`");
        context
            .error(title, written.place, why)
            .help("https proves who sends them; http is for this machine: http://127.0.0.1:8080/");
        return None;
    }
    Some(url)
}

fn algorithms(raw: &RawJwt, secret: bool, context: &mut Context<'_>) -> Option<Vec<Algorithm>> {
    const KNOWN: [&str; 12] = [
        "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
        "ES384", "EdDSA",
    ];
    let list = raw.algorithms.get()?;
    if list.is_empty() {
        let label = "no token could be verified";
        context.error("`algorithms` is an empty list", list.place, label);
        return None;
    }
    let mut algorithms = Vec::new();
    for text in &list.value {
        let name = text.as_str();
        let shared = name.starts_with("HS");
        match name.parse::<Algorithm>() {
            Ok(algorithm) if shared == secret => algorithms.push(algorithm),
            Ok(_) => {
                let label = if shared {
                    "needs a shared secret, not public keys"
                } else {
                    "needs public keys, not a shared secret"
                };
                context.error(format!("`{name}` does not fit the keys"), text.place, label);
            }
            Err(_) => {
                let label = match nearest(name, KNOWN) {
                    _ if name.eq_ignore_ascii_case("none") => {
                        "a token without a signature proves nothing".to_owned()
                    }
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "no such algorithm".to_owned(),
                };
                context
                    .error(format!("unknown algorithm `{name}`"), text.place, label)
                    .note(format!("algorithms are {}", listed(KNOWN)));
            }
        }
    }
    (algorithms.len() == list.len()).then_some(algorithms)
}
