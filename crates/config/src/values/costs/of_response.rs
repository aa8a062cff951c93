//! Costs that the response says.

use std::sync::Arc;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::of_body::member;
use super::{RawNumber, RawSettle};
use crate::reading::{At, Context, Defs, Node, Place, Read, Text};
use crate::values::messages::header_name_of;
use tollgate_policy::SettleFrom;
use tollgate_policy::body::json::PATHS_MAX;
use tollgate_policy::body::usage::{Number, TokenKind, Usage};

#[derive(Clone, Debug)]
pub(crate) enum SettleSource {
    One(At<Text>),
    Sum(Vec<At<RawNumber>>),
}

impl Read for SettleSource {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        match node.value {
            DeValue::Array(_) => Vec::<At<RawNumber>>::read(node, context).map(Self::Sum),
            _ => At::<Text>::read(node, context).map(Self::One),
        }
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "anyOf": [Text::schema(defs), Vec::<RawNumber>::schema(defs)] })
    }
}

pub(super) fn settle_from(
    raw: &RawSettle,
    place: Place,
    context: &mut Context<'_>,
) -> Option<SettleFrom> {
    if let (Some(place), None) = (raw.weights.place(), raw.usage.get()) {
        let label = "`usage` is missing; numbers of `from` have their own `weight`";
        context.error("`weights` is for `usage`", place, label);
    }
    match (raw.from.get(), raw.usage.get()) {
        (Some(from), Some(usage)) => {
            let title = "`from` and `usage` both say where the cost is stated";
            context.either(title, from.place, usage.place);
            None
        }
        (None, None) => {
            let title = "`settle` does not say where the cost is stated";
            context.error(title, place, "`from` or `usage` is missing").help(
                "write { from = \"json:usage.total_tokens\", estimate = 500 } or { usage = \"openai\", estimate = 500 }",
            );
            None
        }
        (None, Some(usage)) => {
            no_bytes(raw, context);
            if usage.value.is_empty() {
                context.error("`usage` names no format", usage.place, "an empty list");
                return None;
            }
            let presets: Vec<_> = usage.value.iter().map(|preset| preset.value).collect();
            let weights = raw.weights.get();
            let weights = weights.map_or([1; TokenKind::ALL.len()], |at| at.value.0);
            Some(json(Usage::of_presets(&presets, &weights)))
        }
        (Some(from), None) => match &from.value {
            SettleSource::One(text) => one(raw, text, context),
            SettleSource::Sum(numbers) => {
                no_bytes(raw, context);
                sum(numbers, from.place, context)
            }
        },
    }
}

fn json(usage: Usage) -> SettleFrom {
    SettleFrom::Json(Arc::new(usage))
}

fn no_bytes(raw: &RawSettle, context: &mut Context<'_>) {
    if let Some(place) = raw.per.place() {
        let label = "the response says units, not bytes";
        context.error("`per` is for bytes", place, label);
    }
}

fn one(raw: &RawSettle, from: &At<Text>, context: &mut Context<'_>) -> Option<SettleFrom> {
    let written = from.as_str();
    if written == "bytes" {
        let per = raw.per().value;
        return Some(SettleFrom::Bytes { per });
    }
    no_bytes(raw, context);
    if let Some(name) = written.strip_prefix("header:") {
        let place = from.part("header:".len(), written.len());
        return header_name_of(name, place, context).map(SettleFrom::Header);
    }
    if !written.starts_with("json:") {
        let title = format!("a cost cannot be settled from `{written}`");
        let label = "`header:NAME`, `bytes` or `json:PATH` was expected";
        context.error(title, from.place, label);
        return None;
    }
    member(from, "json:".len(), context).map(|path| json(Usage::one(path)))
}

fn sum(list: &[At<RawNumber>], place: Place, context: &mut Context<'_>) -> Option<SettleFrom> {
    if list.is_empty() {
        context.error("a sum needs a number", place, "an empty list");
        return None;
    }
    let numbers: Option<Vec<Number>> = list
        .iter()
        .map(|number| number_of(number, list, context))
        .collect();
    let usage = Usage::of_numbers(&numbers?);
    if usage.is_none() {
        let title = format!("a response is read for at most {PATHS_MAX} members");
        context.error(title, place, "more than that");
    }
    usage.map(json)
}

fn number_of(
    number: &At<RawNumber>,
    list: &[At<RawNumber>],
    context: &mut Context<'_>,
) -> Option<Number> {
    let raw = &number.value;
    let json = raw.json.get()?;
    let inside = match raw.inside.get() {
        Some(kind) => {
            let is_whole = |other: &At<RawNumber>| {
                other.value.inside.is_absent() && other.value.kind().value == kind.value
            };
            let whole = list.iter().position(is_whole);
            if whole.is_none() || raw.kind().value == kind.value {
                let title = format!(
                    "no other number of the list is of the kind `{}`",
                    kind.value.words()
                );
                context.error(
                    title,
                    kind.place,
                    "the number that contains this one was expected",
                );
                return None;
            }
            whole
        }
        None => None,
    };
    let paths: Option<Vec<_>> = json
        .value
        .iter()
        .map(|path| member(path, 0, context))
        .collect();
    Some(Number {
        paths: paths?,
        kind: raw.kind().value,
        weight: raw.weight().value,
        inside,
    })
}
