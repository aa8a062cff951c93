//! `[prices]`, and the limits that count money.

use std::sync::Arc;

use super::entries_of;
use crate::raw::{RawFile, RawLimit};
use crate::reading::{Context, Place};
use crate::values::rate::is_currency;
use tollgate_policy::body::usage::Usage;
use tollgate_policy::claims::prices::{ModelPrices, Price, PriceIndex, Prices};
use tollgate_policy::identity::source::Source;
use tollgate_policy::{Cost, Settle, SettleFrom};

pub(crate) fn prices(raw: &RawFile, context: &mut Context<'_>) -> Option<Arc<Prices>> {
    let raw = &raw.prices.get()?.value;
    let currency = raw.currency();
    let unit = is_currency(currency.as_str()).then_some(());
    let expected = "a code like \"USD\" was expected";
    context.value_of(&currency, unit, "is not a unit of money", expected);
    let list: Vec<Price> = entries_of(&raw.models)
        .iter()
        .map(|(name, price)| Price {
            name: Arc::from(name.value.as_str()),
            per_million: price.value.0,
        })
        .collect();
    if list.len() > usize::from(u16::MAX) {
        let place = raw.models.place().unwrap_or_default();
        context.error("there are too many prices", place, "more than 65535");
    }
    let prices = Prices::new(currency.as_str(), list);
    for (name, _) in entries_of(&raw.models) {
        if let Some(other) = prices.same_as(&name.value) {
            let title = format!("two prices are called `{other}`");
            let label = "the case of letters and blanks around a name do not count";
            context.error(title, name.place, label);
        }
        if name.value == "*"
            && let Some(place) = prices.named(&name.value)
        {
            warn_of_cheap(&prices, place, name.place, context);
        }
    }
    Some(Arc::new(prices))
}

fn warn_of_cheap(prices: &Prices, place: PriceIndex, written: Place, context: &mut Context<'_>) {
    if prices.is_dearest(place) {
        return;
    }
    let title = "a model that is not known costs less than some that are";
    let label = "another price is dearer for a kind of tokens";
    context.warning(title, written, label).help(
        "a caller chooses the name of the model: if the upstream knows a dear one by another name, it is paid at this price",
    );
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
            if let Some(place) = place.filter(|_| name != "*") {
                warn_of_cheap(prices, place, unknown.place, context);
            }
            place
        }
    };
    let mut models = Vec::new();
    for written in &source.value {
        match Source::parse(written.as_str()) {
            Ok(model @ (Source::Json(_) | Source::Path(_))) => models.push(model),
            _ => {
                let title = format!("`{}` does not name a model", written.as_str());
                let label = "a member of the body like \"json:model\", or a segment of the path like \"path:deployment\", was expected";
                context.error(title, written.place, label);
            }
        }
    }
    (models.len() == source.len()).then(|| ModelPrices {
        prices: Arc::clone(prices),
        models,
        unknown,
    })
}

/// The settlement of a limit in money, which also reads the model that a response names.
pub(crate) fn with_models(
    settle: Settle,
    limit: &RawLimit,
    context: &mut Context<'_>,
) -> Option<Settle> {
    let SettleFrom::Json(usage) = &settle.from else {
        return Some(settle);
    };
    let Some(usage) = Usage::clone(usage).with_models() else {
        let place = limit.settle.place().unwrap_or_default();
        let label = "the model that a response names is read as well";
        context.error("a response is read for too many members", place, label);
        return None;
    };
    Some(Settle {
        from: SettleFrom::Json(Arc::new(usage)),
        ..settle
    })
}

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
                .error(
                    "a reservation of money needs the most tokens of output",
                    place,
                    "not said by the body",
                )
                .help("add cost = { usage = [\"openai\", \"anthropic\"], max = 32000 }");
        }
    }
    false
}
