//! `jwt` of an identity: how tokens are verified.

use crate::context::Context;
use crate::problem::{listed, nearest};
use crate::raw::RawJwt;
use crate::reader::Field;
use crate::source::At;
use tollgate_policy::identity::{JwtSettings, parse_algorithm};
use tollgate_policy::jwt::{Algorithm, JwtPolicy};

/// How tokens are verified; `None`: they cannot be, which was reported.
pub(super) fn policy(raw: &At<RawJwt>, context: &mut Context<'_>) -> Option<JwtPolicy> {
    let secret = context.secret("secret", &raw.secret, &raw.secret_file);
    let secret_written = !(raw.secret.is_absent() && raw.secret_file.is_absent());
    if raw.keys.is_absent() && !secret_written {
        context
            .error("`jwt` needs `keys`", raw.place, "`keys` is missing")
            .help("keys = \"jwks.json\" (or a PEM file) for RS, PS, ES and EdDSA; secret = \"${JWT_SECRET}\" for HS256");
    }
    let shared = raw.secret.place().or(raw.secret_file.place());
    if let (Some(keys), Some(secret)) = (raw.keys.place(), shared) {
        context.either("`jwt` has public keys and a shared secret", keys, secret);
        return None;
    }
    let algorithms = algorithms(raw, secret_written, context);
    let keys = raw.keys.get().and_then(|file| {
        let (_, content) = context.bytes(file, "the keys are read from here")?;
        Some((content, file.place))
    });
    let secret = secret.map(|at| {
        let content = at.value.expose().as_bytes().to_vec();
        (content, at.place)
    });
    let (content, place) = keys.or(secret)?;
    let texts = |field: &Field<Vec<At<String>>>| {
        let list = field.or(Vec::new());
        list.into_iter().map(|at| at.value).collect()
    };
    let settings = JwtSettings {
        algorithms: algorithms?,
        issuers: texts(&raw.issuer),
        audiences: texts(&raw.audience),
        leeway: raw.leeway().value.ceil_secs(),
    };
    let policy = JwtPolicy::new(settings, &content)
        .map_err(|why| {
            context.error("these keys cannot verify tokens", place, why);
        })
        .ok()?;
    if let Some((algorithm, keys)) = policy.untried() {
        let title = "a token without a key id is not tried with every key";
        let label = format!(
            "{keys} keys are for {algorithm:?}; a token without `kid` is tried with the first 4"
        );
        context
            .warning(title, place, label)
            .help("have the issuer name its key in each token's header");
    }
    Some(policy)
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
        match parse_algorithm(name) {
            Ok(algorithm) if shared == secret => algorithms.push(algorithm),
            Ok(_) => {
                let label = if shared {
                    "needs a shared secret, not public keys"
                } else {
                    "needs public keys, not a shared secret"
                };
                context.error(format!("`{name}` does not fit the keys"), text.place, label);
            }
            Err(error) => {
                let label = match nearest(name, KNOWN) {
                    _ if name.eq_ignore_ascii_case("none") => {
                        "a token without a signature proves nothing".to_owned()
                    }
                    Some(near) if near != name => format!("did you mean `{near}`?"),
                    _ => error.message,
                };
                context
                    .error(format!("unknown algorithm `{name}`"), text.place, label)
                    .note(format!("algorithms are {}", listed(KNOWN)));
            }
        }
    }
    (algorithms.len() == list.len()).then_some(algorithms)
}
