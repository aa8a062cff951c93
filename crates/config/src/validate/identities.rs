//! `[identities.*]`: how callers are identified.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{Context, callers, entries_of, list_of};
use crate::problem::{Problem, listed, nearest};
use crate::raw::{self, RawIdentity, RawJwt};
use crate::scalar::{ShortOr, Text};
use crate::source::At;
use tollgate_policy::identity::{
    Identity, JwtSettings, Source, WhenMissing, WhenUnknown, parse_algorithm,
};
use tollgate_policy::jwt::{Algorithm, JwtPolicy};

/// The identities of a file.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    /// By index.
    pub(crate) list: Vec<Identity>,
    /// The place of each.
    pub(crate) written: Vec<At<String>>,
    /// Files of callers, with the identity each belongs to.
    pub(crate) caller_files: Vec<(usize, PathBuf)>,
    /// Whether one of them could not be built; indices are then unusable for further checks.
    pub(crate) broken: bool,
}

/// Compiles `[identities]`.
pub(crate) fn identities(
    raw: &raw::RawFile,
    names: &[&str],
    context: &mut Context<'_>,
) -> Identities {
    let mut made = Identities::default();
    for (name, identity) in entries_of(&raw.identities) {
        super::limits::check_name(name, "identity", context);
        if matches!(
            name.value.as_str(),
            "address" | "everyone" | "route" | "method" | "host"
        ) {
            let problem = Problem::error(format!("`{}` cannot name an identity", name.value));
            context.push(problem.at(name.place, "this word has its own meaning in `per`"));
        }
        match self::identity(name, identity, raw, names, context) {
            Some((identity, file)) => {
                if let Some(file) = file {
                    made.caller_files.push((made.list.len(), file));
                }
                made.list.push(identity);
                made.written.push(name.clone());
            }
            None => made.broken = true,
        }
    }
    made
}

fn identity(
    name: &At<String>,
    raw: &At<RawIdentity>,
    file: &raw::RawFile,
    names: &[&str],
    context: &mut Context<'_>,
) -> Option<(Identity, Option<PathBuf>)> {
    let sources = sources(name, raw, context);
    let when_missing = when_missing(name, raw, file, names, context);
    let when_unknown = when_unknown(name, raw, context);
    let callers = raw
        .callers
        .get()
        .map(|field| callers::callers(field, file, context));
    let has_claim = sources.as_ref().is_some_and(|(sources, _)| {
        sources
            .iter()
            .any(|source| matches!(source, Source::JwtClaim(_)))
    });
    let jwt = raw.jwt.get().map(|jwt| self::jwt(jwt, context));
    if let (Some(jwt), false, Some(_)) = (raw.jwt.place(), has_claim, &sources) {
        let problem = Problem::error(format!(
            "identity `{}` verifies tokens and uses none of their claims",
            name.value
        ));
        let problem = problem
            .at(jwt, "no key is made of a token")
            .at(raw.key.place().unwrap_or(raw.place), "the key");
        context.push(problem.help("write key = [\"jwt:sub\"]"));
    }
    if has_claim && raw.jwt.is_absent() {
        let problem = Problem::error(format!(
            "identity `{}` does not say how tokens are verified",
            name.value
        ));
        let problem = problem.at(
            raw.key.place().unwrap_or(raw.place),
            "a claim of a token that nobody verified is worth nothing",
        );
        context.push(problem.help("add jwt = { keys = \"jwks.json\", issuer = \"https://id.example.com\", audience = \"api\", algorithms = [\"ES256\"] }"));
        return None;
    }
    let (callers, path) = match callers {
        None => (None, None),
        Some(read) => {
            let (callers, path) = read?;
            (Some(ArcSwap::from_pointee(callers)), path)
        }
    };
    let jwt = match jwt {
        None => None,
        Some(made) => Some(made?),
    };
    let (sources, first_of) = sources?;
    let (when_missing, address_tier) = when_missing?;
    let identity = Identity {
        name: Arc::from(name.value.as_str()),
        sources,
        first_of,
        when_missing,
        when_unknown,
        address_tier,
        callers,
        jwt,
    };
    Some((identity, path))
}

/// The sources of a key, and whether the key is the first source present.
fn sources(
    name: &At<String>,
    raw: &At<RawIdentity>,
    context: &mut Context<'_>,
) -> Option<(Vec<Source>, bool)> {
    if raw.key.is_absent() {
        let problem = Problem::error(format!("identity `{}` has no key", name.value))
            .at(raw.place, "`key` is missing");
        context.push(
            problem.help("write where the key stands in a request: key = \"header:x-api-key\""),
        );
    }
    let key = raw.key.get()?;
    let (list, first_of) = match &key.value {
        ShortOr::Short(list) => (list.list.as_slice(), false),
        ShortOr::Table(table) => (list_of(&table.first_of), true),
    };
    if list.is_empty() {
        context.push(
            Problem::error(format!("identity `{}` has no key", name.value))
                .at(key.place, "an empty list"),
        );
        return None;
    }
    let sources: Vec<Source> = list
        .iter()
        .filter_map(|text| source(text, context))
        .collect();
    (sources.len() == list.len()).then_some((sources, first_of))
}

/// One source of a key.
pub(super) fn source(text: &At<Text>, context: &mut Context<'_>) -> Option<Source> {
    const KINDS: [&str; 9] = [
        "address",
        "header",
        "bearer",
        "basic",
        "cookie",
        "query",
        "path",
        "jwt",
        "client_certificate",
    ];
    let error = match Source::parse(text.as_str()) {
        Ok(source) => return Some(source),
        Err(error) => error,
    };
    let title = format!("`{}` is no source of a key", text.as_str());
    let kind = text.as_str().split(':').next().unwrap_or_default();
    if KINDS.contains(&kind) {
        context.parse_error(title, error, text);
        return None;
    }
    let label = nearest(kind, KINDS).map_or_else(
        || "no such source".to_owned(),
        |near| format!("did you mean `{near}`?"),
    );
    let problem = Problem::error(title).at(text.part(0, kind.len()), label);
    let header = kind
        .contains('-')
        .then(|| format!("write \"header:{kind}\" for a header"));
    context.push(problem.maybe_help(header).note("sources are `address`, `header:NAME`, `bearer`, `basic`, `cookie:NAME`, `query:NAME`, `path:NAME`, `jwt:CLAIM` and `client_certificate`"));
    None
}

/// What happens to a request without the key, and the tier of clients identified by address.
fn when_missing(
    name: &At<String>,
    raw: &At<RawIdentity>,
    file: &raw::RawFile,
    names: &[&str],
    context: &mut Context<'_>,
) -> Option<(WhenMissing, Option<Arc<str>>)> {
    const HELP: &str = "when_missing = \"refuse\" answers 401, \"skip\" leaves out the limits by this identity, \"use:address\" counts the client's address instead";
    if raw.when_missing.is_absent() {
        let problem = Problem::error(format!(
            "identity `{}` does not say what happens when its key is missing",
            name.value
        ));
        context.push(
            problem
                .at(raw.place, "`when_missing` is missing")
                .help(HELP),
        );
    }
    let (text, tier) = match &raw.when_missing.get()?.value {
        ShortOr::Short(text) => (raw.when_missing.get()?.with(text.clone()), None),
        ShortOr::Table(table) => {
            if table.r#use.is_absent() {
                let place = raw.when_missing.place().unwrap_or(raw.place);
                let problem = Problem::error("what counts instead of the key?");
                context.push(
                    problem
                        .at(place, "`use` is missing")
                        .help("{ use = \"address\", tier = \"anonymous\" }"),
                );
            }
            (table.r#use.get()?.clone(), table.tier.get())
        }
    };
    let in_table = matches!(raw.when_missing.get()?.value, ShortOr::Table(_));
    let word = text.as_str();
    let missing = match word {
        "address" if in_table => WhenMissing::UseAddress,
        "use:address" => WhenMissing::UseAddress,
        "refuse" if !in_table => WhenMissing::Refuse,
        "skip" if !in_table => WhenMissing::Skip,
        _ => {
            let other = word.strip_prefix("use:").or(in_table.then_some(word));
            let Some(other) = other else {
                let problem = Problem::error(format!("`when_missing` cannot be \"{word}\""));
                let near = nearest(word, ["refuse", "skip", "use:address"]);
                let label = match near {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None if names.contains(&word) => format!("did you mean \"use:{word}\"?"),
                    None => "no such choice".to_owned(),
                };
                context.push(problem.at(text.place, label).help(HELP));
                return None;
            };
            let Some(index) = names.iter().position(|identity| *identity == other) else {
                let known: Vec<&str> = names.iter().copied().chain(["address"]).collect();
                let place = text.part(word.len() - other.len(), word.len());
                context.unknown("identity", other, place, &known);
                return None;
            };
            WhenMissing::Use(index)
        }
    };
    let tier = tier.map(|tier| {
        let tiers = super::names_of(&file.tiers);
        if !tiers.contains(&tier.as_str()) {
            context.unknown("tier", tier.as_str(), tier.place, &tiers);
        }
        if missing != WhenMissing::UseAddress {
            let problem =
                Problem::error("a tier here is for clients that are counted by their address");
            context.push(
                problem
                    .at(tier.place, "another identity counts instead")
                    .help("write the tier where that identity's own key is missing"),
            );
        }
        Arc::from(tier.as_str())
    });
    Some((missing, tier))
}

fn when_unknown(
    name: &At<String>,
    raw: &At<RawIdentity>,
    context: &mut Context<'_>,
) -> WhenUnknown {
    let listed = !raw.callers.is_absent();
    if listed && raw.when_unknown.is_absent() {
        let problem = Problem::error(format!(
            "identity `{}` does not say what happens to keys that are not on its list",
            name.value
        ));
        let place = raw.callers.place().unwrap_or(raw.place);
        context.push(problem.at(raw.place, "`when_unknown` is missing").at(place, "callers are listed here").help(
            "when_unknown = \"refuse\" answers 401, \"use:address\" counts the caller's address instead, \"accept\" takes any key: a made-up one is then a fresh bucket",
        ));
    }
    if let (false, Some(place)) = (listed, raw.when_unknown.place()) {
        let problem = Problem::error("`when_unknown` means nothing where no callers are listed")
            .at(place, "every key is unknown");
        context.push(problem.help(format!(
            "list them in [identities.{}.callers], or leave it out",
            name.value
        )));
    }
    match raw.when_unknown.or(raw::WhenUnknown::Accept) {
        raw::WhenUnknown::Refuse => WhenUnknown::Refuse,
        raw::WhenUnknown::UseAddress => WhenUnknown::UseAddress,
        raw::WhenUnknown::Accept => WhenUnknown::Accept,
    }
}

fn jwt(raw: &At<RawJwt>, context: &mut Context<'_>) -> Option<JwtPolicy> {
    if raw.algorithms.is_absent() {
        let problem = Problem::error("`jwt` does not say which algorithms it takes")
            .at(raw.place, "`algorithms` is missing");
        context.push(problem.help("a token must not choose its own: algorithms = [\"ES256\"]"));
    }
    let secret = context.secret("secret", &raw.secret, &raw.secret_file);
    let secret_written = !(raw.secret.is_absent() && raw.secret_file.is_absent());
    if raw.keys.is_absent() && !secret_written {
        let problem = Problem::error("`jwt` does not say which keys tokens are verified with")
            .at(raw.place, "`keys` is missing");
        context.push(problem.help(
            "keys = \"jwks.json\" (or a PEM file) for RS, PS, ES and EdDSA; secret = \"${JWT_SECRET}\" for HS256",
        ));
    }
    if let (Some(keys), Some(secret)) = (
        raw.keys.place(),
        raw.secret.place().or(raw.secret_file.place()),
    ) {
        context.push(
            Problem::error("`jwt` has public keys and a shared secret")
                .at(keys, "one of them must go")
                .at(secret, "the other"),
        );
        return None;
    }
    let algorithms = algorithms(raw, secret_written, context);
    let keys = raw.keys.get().and_then(|file| {
        Some((
            context.content(file, "the keys are read from here")?,
            file.place,
        ))
    });
    let (path, bytes, place) = match (keys, secret) {
        (Some((content, place)), _) => (
            raw.keys
                .get()
                .map(|file| context.path(file))
                .unwrap_or_default(),
            content.into_bytes(),
            place,
        ),
        (None, Some(secret)) => (
            PathBuf::from("secret"),
            secret.value.expose().as_bytes().to_vec(),
            secret.place,
        ),
        (None, None) => return None,
    };
    let texts = |field: &crate::reader::Field<crate::scalar::OneOrMany<crate::scalar::Text>>| {
        field.get().map_or_else(Vec::new, |list| {
            list.list
                .iter()
                .map(|text| text.as_str().to_owned())
                .collect()
        })
    };
    let settings = JwtSettings {
        keys_file: path,
        algorithms: algorithms?,
        issuers: texts(&raw.issuer),
        audiences: texts(&raw.audience),
        leeway: raw.leeway().value.0.ceil_secs(),
    };
    match JwtPolicy::new(settings, &bytes) {
        Ok(policy) => {
            if let Some((algorithm, keys)) = policy.untried() {
                let problem =
                    Problem::warning("a token without a key id is not tried with every key");
                let label = format!(
                    "{keys} keys are for {algorithm:?}; a token without `kid` is tried with the first 4"
                );
                context.push(
                    problem
                        .at(place, label)
                        .help("have the issuer name its key in each token's header"),
                );
            }
            Some(policy)
        }
        Err(why) => {
            context.push(Problem::error("these keys cannot verify tokens").at(place, why));
            None
        }
    }
}

fn algorithms(raw: &At<RawJwt>, secret: bool, context: &mut Context<'_>) -> Option<Vec<Algorithm>> {
    let list = list_of(&raw.algorithms);
    if list.is_empty() {
        if let Some(place) = raw.algorithms.place() {
            context.push(
                Problem::error("`algorithms` is an empty list")
                    .at(place, "no token could be verified"),
            );
        }
        return None;
    }
    let mut algorithms = Vec::new();
    let mut whole = true;
    for text in list {
        match parse_algorithm(text.as_str()) {
            Ok(algorithm) => {
                let shared = text.as_str().starts_with("HS");
                if shared != secret {
                    let label = if shared {
                        "needs a shared secret, not public keys"
                    } else {
                        "needs public keys, not a shared secret"
                    };
                    context.push(
                        Problem::error(format!("`{}` does not fit the keys", text.as_str()))
                            .at(text.place, label),
                    );
                    whole = false;
                }
                algorithms.push(algorithm);
            }
            Err(error) => {
                whole = false;
                const KNOWN: [&str; 12] = [
                    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384",
                    "PS512", "ES256", "ES384", "EdDSA",
                ];
                let problem = Problem::error(format!("unknown algorithm `{}`", text.as_str()));
                let label = match nearest(text.as_str(), KNOWN) {
                    _ if text.as_str().eq_ignore_ascii_case("none") => {
                        "a token without a signature proves nothing".to_owned()
                    }
                    Some(near) if near != text.as_str() => format!("did you mean `{near}`?"),
                    _ => error.message,
                };
                context.push(
                    problem
                        .at(text.place, label)
                        .note(format!("algorithms are {}", listed(KNOWN))),
                );
            }
        }
    }
    whole.then_some(algorithms)
}
