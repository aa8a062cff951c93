//! `[prices]`, and the limits that count money.

use std::sync::Arc;

use super::entries_of;
use crate::context::Context;
use crate::quantity::micro_units;
use crate::raw::{RawFile, RawLimit, RawPrice};
use crate::source::{At, Place};
use crate::text::{Text, texts};
use tollgate_policy::prices::{ModelPrices, Price, Prices};
use tollgate_policy::source::Source;
use tollgate_policy::{Cost, SettleFrom};

texts! {
    /// An amount of money, as micro-units: `"2.50"`.
    Money -> u64 = money;
}

/// The highest price of a million tokens: a thousand million.
const DEAREST: u64 = 1_000_000_000_000_000;

fn money(text: &At<Text>, context: &mut Context<'_>) -> Option<u64> {
    let written = text.as_str();
    let price = micro_units(written).filter(|price| *price <= DEAREST);
    if price.is_none() {
        let title = format!("`{written}` is not a price");
        let label = "a number like \"2.50\" was expected, with at most six digits after the point";
        context.error(title, text.place, label);
    }
    price
}

/// Whether `text` is the code of a unit of money.
pub(crate) fn is_currency(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Compiles `[prices]`.
pub(crate) fn prices(raw: &RawFile, context: &mut Context<'_>) -> Option<Arc<Prices>> {
    let raw = &raw.prices.get()?.value;
    let currency = raw.currency();
    if !is_currency(currency.as_str()) {
        let title = format!("`{}` is not a unit of money", currency.as_str());
        let place = raw.currency.place().unwrap_or_default();
        context.error(title, place, "a code like \"USD\" was expected");
    }
    let list: Vec<Price> = entries_of(&raw.models)
        .iter()
        .filter_map(|(name, price)| {
            Some(Price {
                name: Arc::from(name.value.as_str()),
                per_million: price.value.by_kind()?,
            })
        })
        .collect();
    if list.len() > usize::from(u16::MAX) {
        let place = raw.models.place().unwrap_or_default();
        context.error("there are too many prices", place, "more than 65535");
    }
    Some(Arc::new(Prices::new(currency.as_str(), list)))
}

impl RawPrice {
    fn by_kind(&self) -> Option<[u64; 5]> {
        let (input, output) = (self.input.get()?.value, self.output.get()?.value);
        Some([
            input,
            self.cached_input.or(input),
            self.cache_write.or(input),
            output,
            self.reasoning.or(output),
        ])
    }
}

/// The prices that a limit names, and its mistakes with them.
pub(crate) fn of_limit(
    limit: &RawLimit,
    prices: Option<&Arc<Prices>>,
    context: &mut Context<'_>,
) -> Option<ModelPrices> {
    let Some(source) = limit.prices.get() else {
        if let Some(place) = limit.unknown_model.place() {
            context.error(
                "`unknown_model` is for `prices`",
                place,
                "`prices` is missing",
            );
        }
        return None;
    };
    let Some(prices) = prices else {
        let title = "this limit counts money, and there are no prices";
        context
            .error(title, source.place, "`[prices]` is missing")
            .help("[prices.models.\"gpt-4o*\"] with input = \"2.50\" and output = \"10\"");
        return None;
    };
    check_costs(limit, source.place, context);
    let unknown = limit.unknown_model();
    let unknown = match unknown.as_str() {
        "refuse" => None,
        name => {
            let place = prices.named(name);
            if place.is_none() {
                let title = format!("there is no price `{name}`");
                let label = "`refuse`, or a name of `[prices.models]` was expected";
                context.error(title, unknown.place, label);
            }
            place
        }
    };
    match Source::parse(source.as_str()) {
        Ok(model @ Source::Json(_)) => Some(ModelPrices {
            prices: Arc::clone(prices),
            model,
            unknown,
        }),
        _ => {
            let title = format!("`{}` does not name a model", source.as_str());
            let label = "a member of the body like \"json:model\" was expected";
            context.error(title, source.place, label);
            None
        }
    }
}

/// Reports costs that are not money.
fn check_costs(limit: &RawLimit, place: Place, context: &mut Context<'_>) {
    let Some(settle) = limit.settle.get() else {
        context
            .error(
                "a limit with `prices` is settled by what a response used",
                place,
                "`settle` is missing",
            )
            .help("add settle = { usage = [\"openai\", \"anthropic\"] }");
        return;
    };
    if !matches!(settle.value.settle.from, SettleFrom::Json(_)) {
        let label = "`usage`, or numbers of the JSON body with their `kind` were expected";
        context.error("only numbers of tokens have a price", settle.place, label);
    }
    if let Some(weights) = settle.value.weights {
        let title = "a token has a weight or a price, not both";
        context.either(title, weights, place);
    }
    let cost = limit.cost();
    if settle.value.settle.estimate.is_none() || matches!(cost.value, Cost::Body(_)) {
        let place = limit.cost.place().unwrap_or(settle.place);
        check_cost(&cost.value, place, context);
    }
}

/// Reports a cost that does not say the most tokens of output. Returns whether it does.
pub(crate) fn check_cost(cost: &Cost, place: Place, context: &mut Context<'_>) -> bool {
    match cost {
        Cost::Body(body) if body.plus.is_some() => {
            let label = "every byte of the body is reserved at the dearest price of input already";
            context.error("`plus` has no meaning beside `prices`", place, label);
        }
        Cost::Body(_) => return true,
        _ => {
            context
                .error("a reservation of money needs the most tokens of output", place, "not said by the body")
                .help("add cost = { json = [\"max_tokens\", \"max_completion_tokens\", \"max_output_tokens\"], times = \"n\", default = 4096, max = 32000 }");
        }
    }
    false
}
