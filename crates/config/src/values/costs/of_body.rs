//! Costs that the body of a request says.

use std::ops::RangeInclusive;

use super::RawCost;
use crate::reading::{At, Context, Mirror, Place, Text};
use tollgate_policy::body::usage::Preset;
use tollgate_policy::identity::source::json_path;
use tollgate_policy::routes::ParseError;
use tollgate_policy::{BodyCost, Cost};

/// A cost that the body says; `None`: another part of the request says it.
pub(super) fn from_body(
    raw: &RawCost,
    bounds: RangeInclusive<u64>,
    place: Place,
    context: &mut Context<'_>,
) -> Option<Option<Cost>> {
    let (key, at) = match (raw.json.place(), raw.usage.place()) {
        (Some(json), Some(usage)) => {
            let title = "`json` and `usage` both say where the cost is stated";
            context.either(title, json, usage);
            ("usage", usage)
        }
        (Some(json), None) => ("json", json),
        (None, Some(usage)) => ("usage", usage),
        (None, None) => return Some(None),
    };
    let others = raw.written(["header", "content_length", "per", "times"]);
    for (other, written) in others.filter(|(other, _)| *other != "times" || key == "usage") {
        let title = format!("`{other}` has no meaning beside `{key}`");
        context.either(title, at, written);
    }
    let members = match raw.usage.get() {
        Some(presets) => Some(members_of(presets)),
        None => {
            let paths = members(raw.json.get()?, context);
            let times = raw
                .times
                .get()
                .map_or(Some(Vec::new()), |times| members(times, context));
            paths.zip(times)
        }
    };
    if matches!(&members, Some((paths, _)) if paths.is_empty()) {
        context.error("a cost needs a member", at, "an empty list");
    }
    let (least, most) = (*bounds.start(), *bounds.end());
    let default = raw.default.or(match key {
        "usage" => most,
        _ => least.max(1),
    });
    if !bounds.contains(&default) {
        let place = raw.default.place().unwrap_or(place);
        let label = format!("min is {least}, max is {most}");
        context.error("the default cost lies outside its bounds", place, label);
    }
    let plus = match raw.plus.get() {
        Some(text) => Some(plus(text, context)?),
        None => None,
    };
    let (paths, times) = members?;
    Some(Some(Cost::Body(Box::new(BodyCost {
        paths,
        times,
        plus,
        default,
        least,
        most,
    }))))
}

fn members(list: &At<Vec<At<Text>>>, context: &mut Context<'_>) -> Option<Vec<Vec<String>>> {
    let members = list.value.iter().map(|path| member(path, 0, context));
    members.collect()
}

/// The members in which requests of these formats state the most tokens of output, and their number.
fn members_of(presets: &At<Vec<At<Preset>>>) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
    let (mut most, mut times) = (Vec::new(), Vec::new());
    let add = |to: &mut Vec<Vec<String>>, names: &[&str]| {
        for name in names {
            let path = vec![(*name).to_owned()];
            if !to.contains(&path) {
                to.push(path);
            }
        }
    };
    for preset in &presets.value {
        let members = preset.value.output_members();
        add(&mut most, members.most);
        add(&mut times, members.times);
    }
    (most, times)
}

/// `body_bytes`, or a part of them: the bytes for each unit.
fn plus(text: &At<Text>, context: &mut Context<'_>) -> Option<u64> {
    let rest = text.as_str().strip_prefix("body_bytes").map(str::trim);
    let per = match rest {
        Some("") => Some(1),
        Some(rest) => rest
            .strip_prefix('/')
            .and_then(|number| number.trim().parse().ok())
            .filter(|per| *per > 0),
        None => None,
    };
    let expected = "`body_bytes` or a part of it like `body_bytes / 4` was expected";
    context.value_of(text, per, "cannot be added to a cost", expected)
}

/// The names that lead to a member, from the byte `from` of `text`.
pub(super) fn member(
    text: &At<Text>,
    from: usize,
    context: &mut Context<'_>,
) -> Option<Vec<String>> {
    let path = &text.as_str()[from..];
    let report = |error: ParseError| {
        let title = format!("`{path}` is not a path into JSON");
        let place = text.part(from + error.at.start, from + error.at.end);
        context.error(title, place, error.message).help(
            "a path leads through objects by the names of their members; there are no lists, indices or wildcards",
        );
    };
    json_path(path).map_err(report).ok()
}
