//! The cost of a request: constants, headers, lengths, settlements, and which requests count.

mod of_body;
mod of_response;
mod tables;

use http::StatusCode;
use serde_json::{Value, json};

use self::of_body::from_body;
pub(crate) use self::of_response::SettleSource;
use self::of_response::settle_from;
pub(crate) use self::tables::*;
use super::messages::header_name_of;
use crate::reading::{
    At, Context, Defs, Mirror, Node, OneOrMany, Place, Read, ShortOr, Text, forms,
};
use tollgate_policy::body::usage::Preset;
use tollgate_policy::{Cost, Count, Settle, SettleFrom, StatusMatch};

forms! {
    for Cost as ShortOr<u64, RawCost> = |written, context| match &written.value {
        ShortOr::Short(units) => Some(Cost::Fixed(*units)),
        ShortOr::Table(table) => from_request(table, written.place, context),
    };
}

fn from_request(raw: &RawCost, place: Place, context: &mut Context<'_>) -> Option<Cost> {
    let (least, most) = (raw.min().value, raw.max.get()?);
    if least > most.value {
        context
            .error(
                "the least cost is above the most",
                raw.min.place().unwrap_or(place),
                "the least",
            )
            .at(most.place, "the most");
        return None;
    }
    let most = most.value;
    if let Some(cost) = from_body(raw, least..=most, place, context)? {
        return Some(cost);
    }
    for (key, place) in raw.written(["times", "plus"]) {
        let title = format!("`{key}` is for a cost that the body says");
        context.error(title, place, "`json` is missing");
    }
    match (raw.header.get(), raw.content_length().value) {
        (Some(header), true) => {
            let title = "a cost comes from a header or from the length, not from both";
            let length = raw.content_length.place().unwrap_or(place);
            context.either(title, header.place, length);
            None
        }
        (Some(header), false) => {
            let default = raw.default.or(least.max(1));
            if !(least..=most).contains(&default) {
                let place = raw.default.place().unwrap_or(place);
                let label = format!("min is {least}, max is {most}");
                context.error("the default cost lies outside its bounds", place, label);
            }
            if let Some(per) = raw.per.place() {
                let label = "a header says units, not bytes";
                context.error("`per` is for content_length", per, label);
            }
            Some(Cost::Header {
                name: header_name_of(header.as_str(), header.place, context)?,
                default,
                least,
                most,
            })
        }
        (None, true) => {
            if let Some(place) = raw.default.place() {
                let label = "a request of unknown length costs `max`";
                context.error("`default` is for a header", place, label);
            }
            let per = raw.per().value;
            Some(Cost::ContentLength { per, least, most })
        }
        (None, false) => {
            context.error("a cost needs `header`, `json`, `usage` or `content_length`", place, "`header` is missing").help(
                "write { header = \"x-cost\", max = 50 }, { json = \"max_tokens\", max = 30000 }, { usage = \"openai\", max = 30000 } or { content_length = true, per = \"1KiB\", max = 1000 }",
            );
            None
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    /// As it runs, if the limit holds no more than the default of `max`.
    pub(crate) settle: Settle,
    /// The places of `estimate` and `max`; `None`: it is not written.
    pub(crate) estimate: Option<Place>,
    pub(crate) max: Option<Place>,
    /// The place of `weights`, or of the first `weight` of a number in `from`.
    pub(crate) weights: Option<Place>,
}

forms! {
    for Settlement as RawSettle = settlement;
}

fn settlement(raw: &At<RawSettle>, context: &mut Context<'_>) -> Option<Settlement> {
    let from = settle_from(raw, raw.place, context);
    let estimate = raw.estimate.get();
    let most = match estimate {
        Some(estimate) => raw.max.or(estimate.value.saturating_mul(100)),
        None => raw.max.or(0),
    };
    match estimate {
        Some(estimate) if most < estimate.value => {
            let title = "the most a response may cost is below the estimate";
            context
                .error(title, raw.max.place().unwrap_or(raw.place), "the most")
                .at(estimate.place, "the estimate");
        }
        Some(_) => {}
        None => {
            for (key, place) in raw.written(["broken_off_per", "untold"]) {
                let title = format!("`{key}` needs an `estimate`");
                let label = "a response that does not state its cost keeps the whole reservation";
                context.error(title, place, label);
            }
        }
    }
    let from = from?;
    let presets = raw.usage.get().into_iter().flat_map(|list| &list.value);
    let is_openai = presets
        .into_iter()
        .any(|preset| preset.value == Preset::OpenAi);
    if let (Some(place), true, false) = (raw.ask.place(), raw.ask().value, is_openai) {
        let title = "`ask` is for `usage = \"openai\"`";
        let label = "only OpenAI's chat completions leave the usage out of a stream";
        context.error(title, place, label);
    }
    if let (Some(place), SettleFrom::Bytes { .. }) = (raw.broken_off_per.place(), &from) {
        let title = "`broken_off_per` is for a cost that the response says";
        let label = "by `bytes` a response costs what was sent of it, broken off or not";
        context.error(title, place, label);
    }
    Some(Settlement {
        settle: Settle {
            from,
            estimate: estimate.map(|at| at.value),
            most,
            broken_off_per: raw.broken_off_per.get().map(|at| at.value),
            untold_costs_most: raw.untold().value == RawUntold::Max,
            ask: raw.ask().value,
        },
        estimate: raw.estimate.place(),
        max: raw.max.place(),
        weights: raw.weights.place().or_else(|| first_weight(raw)),
    })
}

fn first_weight(raw: &RawSettle) -> Option<Place> {
    match &raw.from.get()?.value {
        SettleSource::Sum(numbers) => numbers.iter().find_map(|number| number.weight.place()),
        SettleSource::One(_) => None,
    }
}

pub(crate) enum Counted {}

impl Read for Counted {
    type Value = Count;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Count> {
        match node.value.as_str() {
            Some("all") => Some(Count::All),
            Some("failures") => Some(Count::Statuses(vec![401..=401, 403..=403])),
            _ => OneOrMany::<Status>::read(node, context)
                .map(|list| Count::Statuses(list.into_iter().map(|at| at.value).collect())),
        }
    }

    fn schema(defs: &mut Defs) -> Value {
        OneOrMany::<Text>::schema(defs)
    }
}

forms! {
    /// A status, or a class of them: `"502"`, `"5xx"`.
    Status -> StatusMatch = status;
}

fn status(text: &At<Text>, context: &mut Context<'_>) -> Option<StatusMatch> {
    let written = text.as_str();
    let (digits, class) = match written.strip_suffix("xx") {
        Some(digit) => (format!("{digit}00"), true),
        None => (written.to_owned(), false),
    };
    let number = digits.parse::<u16>().ok();
    let number = number.filter(|status| (100..=599).contains(status) && digits.len() == 3);
    let expected = "a status like \"502\" or a class like \"5xx\" was expected";
    let number = context.value_of(text, number, "is not a status", expected);
    number.map(|from| from..=if class { from + 99 } else { from })
}

pub(crate) enum RefuseStatus {}

impl Read for RefuseStatus {
    type Value = StatusCode;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<StatusCode> {
        let status = u16::read(node, context)?;
        let read = CHOICES.into_iter().find(|choice| *choice == status);
        if read.is_none() {
            let title = format!("a limit cannot refuse with status {status}");
            context
                .error(title, node.place, "429 or 402 was expected")
                .help(
                    "429 says that requests come too fast, 402 that a budget is used up; a proxy that asks for decisions \
                     gets another status by `refuse_status` of [decide]",
                );
        }
        read
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "type": "integer", "enum": CHOICES.map(|choice| choice.as_u16()) })
    }
}

const CHOICES: [StatusCode; 2] = [StatusCode::TOO_MANY_REQUESTS, StatusCode::PAYMENT_REQUIRED];
