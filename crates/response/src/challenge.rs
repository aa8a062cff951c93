//! The challenge of a 401 response: each 401 contains at least one (RFC 9110 11.6.1).

use http::{HeaderValue, StatusCode};

use tollgate_policy::Policy;
use tollgate_policy::identity::{Identity, IdentityRefusal, Source};

/// The challenge for a caller that its identity refuses; `None` for a refusal that is no 401.
pub fn challenge(policy: &Policy, refusal: &IdentityRefusal) -> Option<HeaderValue> {
    if refusal.status() != StatusCode::UNAUTHORIZED {
        return None;
    }
    let mut identities = policy.identities.iter();
    of_identity(identities.find(|one| one.name == refusal.identity)?)
}

/// The value of `WWW-Authenticate` for an identity: a registered scheme if the source has one,
/// otherwise `ApiKey` with OpenAPI's names for the location of a key. Of several sources the first
/// is used, an address only if there is no other, because no client can choose its address.
fn of_identity(identity: &Identity) -> Option<HeaderValue> {
    let registered = identity.sources.iter().find_map(registered);
    if registered.is_some() {
        return registered;
    }
    let mut sources = identity.sources.iter();
    let chosen = sources.find(|source| **source != Source::Address);
    let source = chosen.or(identity.sources.first())?;
    let realm = quoted(&identity.name);
    let text = match source {
        Source::Header(name) => api_key(&realm, "header", name.as_str()),
        Source::Cookie(name) => api_key(&realm, "cookie", name),
        Source::Query(name) => api_key(&realm, "query", name),
        Source::Path(name) => api_key(&realm, "path", name),
        Source::ClientCertificate => format!("ClientCertificate realm={realm}"),
        Source::Address => format!("Address realm={realm}"),
        Source::Application => format!("Application realm={realm}"),
        Source::Json(_) | Source::JsonDigest(_) | Source::Form(_) | Source::GraphqlOperation => {
            api_key(&realm, "body", &source.words())
        }
        // These sources have registered schemes.
        Source::Bearer | Source::JwtClaim(_) | Source::BasicUser => return None,
    };
    HeaderValue::from_str(&text).ok()
}

fn registered(source: &Source) -> Option<HeaderValue> {
    match source {
        Source::Bearer | Source::JwtClaim(_) => Some(HeaderValue::from_static("Bearer")),
        Source::BasicUser => Some(HeaderValue::from_static(
            "Basic realm=\"api\", charset=\"UTF-8\"",
        )),
        _ => None,
    }
}

fn api_key(realm: &str, place: &str, name: &str) -> String {
    format!(
        "ApiKey realm={realm}, in=\"{place}\", name={}",
        quoted(name)
    )
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            ' '..='~' => quoted.push(letter),
            _ => quoted.push('?'),
        }
    }
    quoted + "\""
}
