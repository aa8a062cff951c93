//! Costs that the body of a request says.

use std::ops::RangeInclusive;

use crate::context::Context;
use crate::raw::RawCost;
use crate::source::{At, Place};
use crate::text::Text;
use tollgate_policy::source::json_path;
use tollgate_policy::{BodyCost, Cost};

/// A cost that the body says.
pub(super) fn from_body(
    raw: &RawCost,
    json: &At<Vec<At<Text>>>,
    bounds: RangeInclusive<u64>,
    place: Place,
    context: &mut Context<'_>,
) -> Option<Cost> {
    let others = [
        ("header", raw.header.place()),
        ("content_length", raw.content_length.place()),
        ("per", raw.per.place()),
    ];
    for (key, other) in others {
        if let Some(other) = other {
            let title = format!("`{key}` has no meaning beside `json`");
            context.either(title, json.place, other);
        }
    }
    if json.value.is_empty() {
        context.error("a cost needs a member", json.place, "an empty list");
    }
    let (least, most) = (*bounds.start(), *bounds.end());
    let default = raw.default.or(least.max(1));
    if !bounds.contains(&default) {
        let place = raw.default.place().unwrap_or(place);
        let label = format!("min is {least}, max is {most}");
        context.error("the default cost lies outside its bounds", place, label);
    }
    let paths: Option<Vec<Vec<String>>> = json
        .value
        .iter()
        .map(|path| member(path, 0, context))
        .collect();
    let times = match raw.times.get() {
        Some(path) => Some(member(path, 0, context)?),
        None => None,
    };
    let plus = match raw.plus.get() {
        Some(text) => Some(plus(text, context)?),
        None => None,
    };
    Some(Cost::Body(Box::new(BodyCost {
        paths: paths?,
        times,
        plus,
        default,
        least,
        most,
    })))
}

/// `body_bytes`, or a part of them: the bytes for each unit.
fn plus(text: &At<Text>, context: &mut Context<'_>) -> Option<u64> {
    let written = text.as_str();
    let rest = written.strip_prefix("body_bytes").map(str::trim);
    let per = match rest {
        Some("") => Some(1),
        Some(rest) => rest
            .strip_prefix('/')
            .and_then(|number| number.trim().parse().ok())
            .filter(|per| *per > 0),
        None => None,
    };
    if per.is_none() {
        let title = format!("`{written}` cannot be added to a cost");
        let label = "`body_bytes` or a part of it like `body_bytes / 4` was expected";
        context.error(title, text.place, label);
    }
    per
}

/// The names that lead to a member, from the byte `from` of `text`.
pub(super) fn member(
    text: &At<Text>,
    from: usize,
    context: &mut Context<'_>,
) -> Option<Vec<String>> {
    let path = &text.as_str()[from..];
    match json_path(path) {
        Ok(path) => Some(path),
        Err(error) => {
            let title = format!("`{path}` is not a path into JSON");
            let place = text.part(from + error.at.start, from + error.at.end);
            context.error(title, place, error.message).help(
                "a path leads through objects by the names of their members; there are no lists, indices or wildcards",
            );
            None
        }
    }
}
