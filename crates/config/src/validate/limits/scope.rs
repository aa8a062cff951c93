//! `per`: how a limit is split into buckets.

use crate::problem::Problem;
use crate::raw::{RawFile, RawIdentity, RawLimit, RawWhenMissing};
use crate::reader::Field;
use crate::scalar::{Named, OneOrMany, ShortOr, Text};
use crate::slips;
use crate::source::{At, Place};
use crate::validate::{Context, entries_of, names_of};
use tollgate_policy::{Scope, ScopePart};

/// `per`. `identities`: their names by index.
pub(super) fn scope(
    name: &At<String>,
    limit: &At<RawLimit>,
    identities: &[&str],
    context: &mut Context<'_>,
) -> Option<Scope> {
    let Some(per) = limit.per.get() else {
        if limit.per.is_absent() {
            let problem = Problem::error(format!("limit `{}` does not say for whom", name.value));
            context.push(problem.at(limit.place, "`per` is missing").help(
                "per = \"address\" counts each address by itself, per = \"everyone\" all callers together, the name of an identity each of its keys",
            ));
        }
        return None;
    };
    let mut parts: Vec<(ScopePart, Place)> = Vec::new();
    for part in &per.list {
        let word = part.as_str();
        let scope_part = match word {
            "everyone" if per.list.len() == 1 => return Some(Scope::Everyone),
            "everyone" => {
                let problem = Problem::error("`everyone` cannot be a part of a list")
                    .at(part.place, "all callers together");
                context.push(problem.help("leave it out: the other parts say who shares a bucket"));
                return None;
            }
            "address" => ScopePart::Address,
            "route" => ScopePart::Route,
            "method" => ScopePart::Method,
            "host" => ScopePart::Host,
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
            let problem = Problem::error(format!("`{word}` stands in `per` twice"));
            context.push(
                problem
                    .at(part.place, "again here")
                    .at(*first, "first here"),
            );
            return None;
        }
        parts.push((scope_part, part.place));
    }
    if parts.is_empty() {
        let problem = Problem::error("`per` is an empty list").at(per.place, "nobody");
        context
            .push(problem.help("write per = \"everyone\" for one bucket that all callers share"));
        return None;
    }
    Some(Scope::Identities(
        parts.into_iter().map(|(part, _)| part).collect(),
    ))
}

fn unknown(part: &At<Text>, identities: &[&str], context: &mut Context<'_>) {
    let word = part.as_str();
    if word.starts_with("jwt:") {
        let problem = Problem::error(format!("`{word}` does not say how tokens are verified"));
        context.push(problem.at(part.place, "a claim of a token that nobody verified is worth nothing").help(
            format!("define [identities.user] with key = \"{word}\", when_missing = \"refuse\" and jwt = {{ keys = \"jwks.json\", algorithms = [\"ES256\"] }}, and write per = \"user\""),
        ));
        return;
    }
    let words = ["address", "everyone", "route", "method", "host"];
    match slips::of_scope(word) {
        Some(help) => {
            let problem = Problem::error(format!("unknown identity `{word}`"));
            context.push(problem.at(part.place, "no such identity").help(help));
        }
        None => {
            let known: Vec<&str> = identities.iter().copied().chain(words).collect();
            context.unknown("identity", word, part.place, &known);
        }
    }
}

/// The name of the identity for a limit's source, if another limit treats requests without it
/// differently.
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
            let bare = matches!(word, "bearer" | "basic" | "client_certificate");
            (named || bare) && !known.iter().any(|known| known == word)
        };
        let sources: Vec<&At<Text>> = per
            .list
            .iter()
            .filter(|part| is_source(part.as_str()))
            .collect();
        let claim = per
            .list
            .iter()
            .any(|part| part.as_str().starts_with("jwt:"));
        let none = sources.is_empty() && !claim;
        if let (true, Some(place)) = (none, limit.when_missing.place()) {
            let problem =
                Problem::error("`when_missing` is for a `per` that names where a key stands");
            context.push(problem.at(place, "no key can be missing here").help(
                "an identity says it for itself; per = \"header:x-api-key\" names where a key stands",
            ));
        }
        for source in sources {
            let alike = |(other, identity): &&(At<String>, At<RawIdentity>)| {
                other.value == source.as_str()
                    && written(&identity.when_missing) == written(&limit.when_missing)
            };
            if made.iter().any(|one| alike(&one)) {
                continue;
            }
            let taken = made.iter().any(|(other, _)| other.value == source.as_str());
            let identity = if taken {
                own_name(source.as_str(), &name.value)
            } else {
                source.as_str().to_owned()
            };
            let key = OneOrMany {
                list: vec![source.clone()],
            };
            let raw = RawIdentity {
                key: Field::Here(source.with(ShortOr::Short(key))),
                when_missing: limit.when_missing.clone(),
                ..RawIdentity::default()
            };
            made.push((source.with(identity), source.with(raw)));
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
