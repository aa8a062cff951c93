//! `per`: what splits a limit into buckets.

use crate::problem::Problem;
use crate::raw::RawLimit;
use crate::source::{At, Place};
use crate::validate::Context;
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
            _ => match identities.iter().position(|identity| *identity == word) {
                Some(index) => ScopePart::Identity(index),
                None => {
                    let known: Vec<&str> = identities
                        .iter()
                        .copied()
                        .chain(["address", "everyone"])
                        .collect();
                    context.unknown("identity", word, part.place, &known);
                    return None;
                }
            },
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
