//! `per`: how a limit is split into buckets.

use crate::raw::{RawFile, RawIdentity, RawLimit, RawWhenMissing};
use crate::reading::{At, Context, Field, Named, Place, ShortOr, Text, slips};
use crate::validate::identities::SCOPES;
use crate::validate::{entries_of, names_of};
use crate::values::key_source::{UNVERIFIED_CLAIM, WHEN_MISSING, source};
use tollgate_policy::{Scope, ScopePart};

/// `per`. `identities`: their names by index.
pub(super) fn scope(
    name: &At<String>,
    limit: &At<RawLimit>,
    identities: &[&str],
    context: &mut Context<'_>,
) -> Option<Scope> {
    let per = limit.per.get()?;
    let mut parts: Vec<(ScopePart, Place)> = Vec::new();
    for part in &per.value {
        let word = part.as_str();
        let scope_part = match word {
            "everyone" if per.len() == 1 => return Some(Scope::Everyone),
            "everyone" => {
                let title = "`everyone` cannot be a part of a list";
                context
                    .error(title, part.place, "all callers together")
                    .help("leave it out: the other parts say who shares a bucket");
                return None;
            }
            "address" => ScopePart::Address,
            "route" => ScopePart::Route,
            "method" => ScopePart::Method,
            "host" => ScopePart::Host,
            "descriptor" => ScopePart::Descriptor,
            _ => {
                let own = own_name(word, &name.value);
                let find = |wanted: &str| identities.iter().position(|known| *known == wanted);
                match find(&own).or_else(|| find(word)) {
                    Some(index) => ScopePart::Identity(index),
                    None => {
                        unknown(part, identities, context);
                        return None;
                    }
                }
            }
        };
        if let Some((_, first)) = parts.iter().find(|(other, _)| *other == scope_part) {
            context.twice(format!("`per` names `{word}` twice"), part.place, *first);
            return None;
        }
        parts.push((scope_part, part.place));
    }
    if parts.is_empty() {
        context
            .error("`per` is an empty list", per.place, "an empty list")
            .help("write per = \"everyone\" for one bucket that all callers share");
        return None;
    }
    Some(Scope::Identities(
        parts.into_iter().map(|(part, _)| part).collect(),
    ))
}

fn unknown(part: &At<Text>, identities: &[&str], context: &mut Context<'_>) {
    let word = part.as_str();
    if word.starts_with("jwt:") {
        let title = format!("`{word}` does not say how tokens are verified");
        context.error(title, part.place, UNVERIFIED_CLAIM).help(
            format!("define [identities.user] with key = \"{word}\", when_missing = \"refuse\" and jwt = {{ keys = \"jwks.json\", algorithms = [\"ES256\"] }}, and write per = \"user\""),
        );
        return;
    }
    match slips::of_scope(word) {
        Some(help) => {
            let title = format!("unknown identity `{word}`");
            context
                .error(title, part.place, "no such identity")
                .help(help);
        }
        None => {
            let known: Vec<&str> = identities.iter().copied().chain(SCOPES).collect();
            context.unknown("identity", word, part.place, &known);
        }
    }
}

/// The name of the identity for a limit's source, if another limit treats requests without it differently.
fn own_name(source: &str, limit: &str) -> String {
    format!("{source}@{limit}")
}

/// Creates an identity for each source that a limit names in `per`. Limits that treat requests
/// without the key equally share it.
pub(crate) fn name_sources(raw: &mut RawFile, context: &mut Context<'_>) {
    let known: Vec<String> = names_of(&raw.identities)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut made: Vec<(At<String>, At<RawIdentity>)> = Vec::new();
    for (name, limit) in entries_of(&raw.limits) {
        let Some(per) = limit.per.get() else { continue };
        let is_source = |word: &str| {
            let named = word.contains(':') && !word.starts_with("jwt:");
            let bare = matches!(
                word,
                "bearer" | "basic" | "client_certificate" | "application"
            );
            (named || bare) && !known.iter().any(|known| known == word)
        };
        let sources: Vec<&At<Text>> = per.iter().filter(|part| is_source(part.as_str())).collect();
        let claim = per.iter().any(|part| part.as_str().starts_with("jwt:"));
        let none = sources.is_empty() && !claim;
        if let (true, Some(place)) = (none, limit.when_missing.place()) {
            let title = "`when_missing` is for a `per` that names a source of a key";
            context
                .error(title, place, "no key can be missing here")
                .help("an identity says it for itself; per = \"header:x-api-key\" names one");
        }
        for text in sources {
            let alike = |(other, identity): &&(At<String>, At<RawIdentity>)| {
                other.value == text.as_str()
                    && written(&identity.when_missing) == written(&limit.when_missing)
            };
            if made.iter().any(|one| alike(&one)) {
                continue;
            }
            let taken = made.iter().any(|(other, _)| other.value == text.as_str());
            let identity = if taken {
                own_name(text.as_str(), &name.value)
            } else {
                text.as_str().to_owned()
            };
            if limit.when_missing.is_absent() {
                context
                    .error(
                        format!("`limits.{}` needs `when_missing`", name.value),
                        text.place,
                        "`when_missing` is missing",
                    )
                    .help(WHEN_MISSING);
            }
            let key = source(text, context).map(|source| ShortOr::Short(vec![text.with(source)]));
            let raw = RawIdentity {
                key: key.map_or(Field::Broken, |key| Field::Here(text.with(key))),
                when_missing: limit.when_missing.clone(),
                ..RawIdentity::default()
            };
            made.push((text.with(identity), text.with(raw)));
        }
    }
    if made.is_empty() {
        return;
    }
    match &mut raw.identities {
        Field::Here(named) => named.value.entries.extend(made),
        Field::Absent => {
            let place = made[0].0.place;
            let value = Named {
                entries: made,
                ..Named::default()
            };
            raw.identities = Field::Here(At { value, place });
        }
        Field::Broken => {}
    }
}

/// `when_missing` as written, for comparison.
fn written(field: &Field<ShortOr<Text, RawWhenMissing>>) -> Option<(&str, Option<&str>)> {
    match &field.get()?.value {
        ShortOr::Short(text) => Some((text.value.as_str(), None)),
        ShortOr::Table(table) => Some((
            table.r#use.get()?.as_str(),
            table.tier.get().map(|tier| tier.as_str()),
        )),
    }
}
