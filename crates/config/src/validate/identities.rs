//! `[identities.*]`: how callers are identified.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::callers::{self, OwnNumbers};
use super::{check_name, entries_of, jwt, names_of};
use crate::raw::{RawFile, RawIdentity};
use crate::reading::{At, Context, Place, ShortOr, nearest};
use crate::values::key_source::{UNVERIFIED_CLAIM, WHEN_MISSING};
use tollgate_policy::identity::{Identity, Source, WhenMissing, WhenUnknown};

#[derive(Debug, Default)]
pub(crate) struct Identities {
    pub(crate) list: Vec<Identity>,
    /// Files of callers, with the identity each belongs to, if they can be read alone: none of their
    /// callers has limits of its own.
    pub(crate) caller_files: Vec<(usize, PathBuf)>,
    /// The callers that have limits of their own, of tables and of files.
    pub(crate) own_numbers: Vec<OwnNumbers>,
    /// Whether one of them could not be built; indices are then unusable for further checks.
    pub(crate) broken: bool,
}

/// Words with a meaning of their own in `per`.
pub(crate) const SCOPES: [&str; 6] = [
    "address",
    "everyone",
    "route",
    "method",
    "host",
    "descriptor",
];

pub(crate) fn identities(raw: &RawFile, names: &[&str], context: &mut Context<'_>) -> Identities {
    let mut made = Identities {
        own_numbers: callers::of_main_file(raw).collect(),
        ..Identities::default()
    };
    for (name, identity) in entries_of(&raw.identities) {
        check_name(name, "identity", context);
        if SCOPES.contains(&name.value.as_str()) {
            let title = format!("`{}` cannot name an identity", name.value);
            context.error(title, name.place, "this word has its own meaning in `per`");
        }
        let mut own = Vec::new();
        match self::identity(name, identity, raw, names, &mut own, context) {
            Some((identity, file)) => {
                let index = made.list.len();
                let alone = file.filter(|_| own.is_empty());
                made.caller_files.extend(alone.map(|file| (index, file)));
                made.own_numbers.append(&mut own);
                made.list.push(identity);
            }
            None => made.broken = true,
        }
    }
    made
}

fn identity(
    name: &At<String>,
    raw: &At<RawIdentity>,
    file: &RawFile,
    names: &[&str],
    own: &mut Vec<OwnNumbers>,
    context: &mut Context<'_>,
) -> Option<(Identity, Option<PathBuf>)> {
    let key_place = raw.key.place().unwrap_or(raw.place);
    let sources = raw.key.get().and_then(|key| {
        let (list, first_of) = match &key.value {
            ShortOr::Short(list) => (list.iter().map(|at| at.value.clone()).collect(), false),
            ShortOr::Table(table) => (table.first_of.get()?.value.clone(), true),
        };
        let list: Vec<Source> = list;
        if list.is_empty() {
            let title = format!("identity `{}` has no key", name.value);
            context.error(title, key.place, "an empty list");
        }
        (!list.is_empty()).then_some((list, first_of))
    });
    let when_missing = when_missing(raw, file, names, context);
    let when_unknown = when_unknown(name, raw, context);
    let callers = raw
        .callers
        .get()
        .map(|field| callers::callers(field, file, own, context));
    let of_token = |source: &Source| matches!(source, Source::JwtClaim(_));
    let uses_claims = sources
        .as_ref()
        .is_some_and(|(sources, _)| sources.iter().any(of_token));
    let jwt = raw.jwt.get().map(|jwt| jwt::policy(jwt, context));
    if let (Some(jwt), false, Some(_)) = (raw.jwt.place(), uses_claims, &sources) {
        let title = format!(
            "identity `{}` verifies tokens and uses none of their claims",
            name.value
        );
        context
            .error(title, jwt, "no key is made of a token")
            .at(key_place, "the key")
            .help("write key = [\"jwt:sub\"]");
    }
    if uses_claims && raw.jwt.is_absent() {
        let title = format!(
            "identity `{}` does not say how tokens are verified",
            name.value
        );
        context.error(title, key_place, UNVERIFIED_CLAIM).help("add jwt = { keys = \"jwks.json\", issuer = \"https://id.example.com\", audience = \"api\", algorithms = [\"ES256\"] }");
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

/// What happens to a request without the key, and the tier of clients identified by address.
fn when_missing(
    raw: &RawIdentity,
    file: &RawFile,
    names: &[&str],
    context: &mut Context<'_>,
) -> Option<(WhenMissing, Option<Arc<str>>)> {
    let written = raw.when_missing.get()?;
    let (text, tier, in_table) = match &written.value {
        ShortOr::Short(text) => (written.with(text.clone()), None, false),
        ShortOr::Table(table) => (table.r#use.get()?.clone(), table.tier.get(), true),
    };
    let word = text.as_str();
    let other = word.strip_prefix("use:").or(in_table.then_some(word));
    let missing = match (word, other) {
        (_, Some("address")) => WhenMissing::UseAddress,
        ("refuse", None) => WhenMissing::Refuse,
        ("skip", None) => WhenMissing::Skip,
        (_, None) => {
            let label = match nearest(word, ["refuse", "skip", "use:address"]) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None if names.contains(&word) => format!("did you mean \"use:{word}\"?"),
                None => "no such choice".to_owned(),
            };
            context
                .error(
                    format!("`when_missing` cannot be \"{word}\""),
                    text.place,
                    label,
                )
                .help(WHEN_MISSING);
            return None;
        }
        (_, Some(other)) => match names.iter().position(|identity| *identity == other) {
            Some(index) => WhenMissing::Use(index),
            None => {
                let known: Vec<&str> = names.iter().copied().chain(["address"]).collect();
                let place = text.part(word.len() - other.len(), word.len());
                context.unknown("identity", other, place, &known);
                return None;
            }
        },
    };
    let tier = tier.map(|tier| {
        let tiers = names_of(&file.tiers);
        if !tiers.contains(&tier.as_str()) {
            context.unknown("tier", tier.as_str(), tier.place, &tiers);
        }
        if missing != WhenMissing::UseAddress {
            let title = "a tier here is for clients that are counted by their address";
            context
                .error(title, tier.place, "another identity counts instead")
                .help("write the tier where that identity's own key is missing");
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
    let listed: Option<Place> = match raw.callers.is_absent() {
        true => None,
        false => Some(raw.callers.place().unwrap_or(raw.place)),
    };
    if let (Some(place), true) = (listed, raw.when_unknown.is_absent()) {
        let title = format!(
            "identity `{}` does not say what happens to keys that are not on its list",
            name.value
        );
        context
            .error(title, raw.place, "`when_unknown` is missing")
            .at(place, "callers are listed here")
            .help("when_unknown = \"refuse\" answers 401, \"use:address\" counts the client's address instead, \"accept\" takes any key: a made-up one is then a fresh bucket");
    }
    if let (None, Some(place)) = (listed, raw.when_unknown.place()) {
        let title = "`when_unknown` means nothing where no callers are listed";
        context
            .error(title, place, "every key is unknown")
            .help(format!(
                "list them in [identities.{}.callers], or leave it out",
                name.value
            ));
    }
    raw.when_unknown.or(WhenUnknown::Accept)
}
