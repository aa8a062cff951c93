//! What the tokens of a model cost, in money.
//!
//! Money is counted in millionths of its unit, in whole numbers. A price is written per million
//! tokens, so a token costs as many millionths of a micro-unit as the price has micro-units.

use std::sync::Arc;

use super::claims::SentBody;
use super::domains::Pattern;
use super::rule::BodyCost;
use super::source::Source;
use super::usage::{PerToken, TokenKind, Usage, Weights};

/// The tokens that a price is written for.
const PER: u128 = 1_000_000;

/// What the tokens of some models cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// The model, or the pattern of models, as the file names it.
    pub name: Arc<str>,
    /// Micro-units of money for a million tokens of each kind.
    pub per_million: Weights,
}

/// The prices of all models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// The unit of money, such as `USD`.
    pub currency: Arc<str>,
    /// The most specific first.
    list: Vec<(Pattern, Price)>,
}

/// The prices of a limit that counts money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrices {
    /// All prices.
    pub prices: Arc<Prices>,
    /// The member of the request's body that names the model.
    pub model: Source,
    /// The price of models without one, by its place; `None`: requests for them are refused.
    pub unknown: Option<PriceIndex>,
}

/// The place of a price in [`Prices`].
pub type PriceIndex = u16;

/// The price at which a request is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPrice {
    /// The one at this place.
    At(PriceIndex),
    /// The dearest of all, because the model is not known here.
    Dearest,
    /// None: the request is refused.
    Refused,
}

impl ModelPrice {
    /// The place of the price; `None`: the dearest.
    pub const fn place(self) -> Option<PriceIndex> {
        match self {
            Self::At(place) => Some(place),
            Self::Dearest | Self::Refused => None,
        }
    }
}

impl Price {
    /// The cost of a response that states these numbers; `None`: it states none.
    fn of_response(&self, usage: &Usage, numbers: &[Option<u64>]) -> Option<u64> {
        let each = |part: &super::usage::Part| self.per_million[part.kind() as usize];
        usage.sum(numbers, each).map(money)
    }

    /// The most that a request may cost: its output at the dearest price of output, and a token of
    /// input for every byte of its body at the dearest price of input.
    fn of_request(&self, output: u64, bytes: u64) -> u64 {
        let dearest = |kinds: &[TokenKind]| {
            let prices = kinds.iter().map(|kind| self.per_million[*kind as usize]);
            u128::from(prices.max().unwrap_or(0))
        };
        let input = dearest(&[
            TokenKind::Input,
            TokenKind::CachedInput,
            TokenKind::CacheWrite,
        ]);
        let written = dearest(&[TokenKind::Output, TokenKind::Reasoning]);
        money((input * u128::from(bytes)).saturating_add(written * u128::from(output)))
    }
}

/// Micro-units of money for a sum of tokens times prices: rounded up, once.
fn money(sum: u128) -> u64 {
    u64::try_from(sum.div_ceil(PER)).unwrap_or(u64::MAX)
}

impl Prices {
    /// The prices of a file. A name without `*` is more specific than any with one; of two patterns
    /// the one with more other characters is.
    pub fn new(currency: &str, list: Vec<Price>) -> Self {
        let mut list: Vec<(Pattern, Price)> = list
            .into_iter()
            .map(|price| (Pattern::new(&price.name), price))
            .collect();
        list.sort_by_key(|(_, price)| {
            let name = &price.name;
            let literal = name.chars().filter(|letter| *letter != '*').count();
            (
                name.contains('*'),
                std::cmp::Reverse(literal),
                Arc::clone(name),
            )
        });
        Self {
            currency: Arc::from(currency),
            list,
        }
    }

    /// The prices, the most specific first.
    pub fn list(&self) -> impl Iterator<Item = &Price> {
        self.list.iter().map(|(_, price)| price)
    }

    /// The price at a place.
    pub fn get(&self, place: PriceIndex) -> Option<&Price> {
        self.list.get(usize::from(place)).map(|(_, price)| price)
    }

    /// The place of the price of a model.
    pub fn of_model(&self, model: &str) -> Option<PriceIndex> {
        let place = self
            .list
            .iter()
            .position(|(pattern, _)| pattern.matches(model));
        place.and_then(|place| PriceIndex::try_from(place).ok())
    }

    /// The place of the price that is written under this name.
    pub fn named(&self, name: &str) -> Option<PriceIndex> {
        let place = self.list.iter().position(|(_, price)| *price.name == *name);
        place.and_then(|place| PriceIndex::try_from(place).ok())
    }

    /// The cost of a response of a model that states these numbers; `None`: it states none. `model`:
    /// the place of its price; `None`: the dearest.
    pub fn of_response(
        &self,
        model: Option<PriceIndex>,
        usage: &Usage,
        numbers: &[Option<u64>],
    ) -> Option<u64> {
        match model.and_then(|place| self.get(place)) {
            Some(price) => price.of_response(usage, numbers),
            None => {
                let costs = self.list().map(|price| price.of_response(usage, numbers));
                costs.max().flatten()
            }
        }
    }

    /// The most that any model may ask for a request.
    fn dearest(&self, output: u64, bytes: u64) -> u64 {
        let costs = self.list().map(|price| price.of_request(output, bytes));
        costs.max().unwrap_or(u64::MAX)
    }

    /// The most that so many tokens of output may cost.
    pub fn dearest_output(&self, tokens: u64) -> u64 {
        self.dearest(tokens, 0)
    }
}

impl ModelPrices {
    /// The price for a request with this body.
    pub(super) fn of(&self, body: SentBody<'_>) -> ModelPrice {
        let Some(facts) = body.facts else {
            return self.of_unread();
        };
        if facts.is_elsewhere() {
            return ModelPrice::Dearest;
        }
        if facts.is_opaque() {
            return self.of_unread();
        }
        let model = facts.value(&self.model);
        let model = model
            .as_deref()
            .and_then(|model| std::str::from_utf8(model).ok());
        model
            .and_then(|model| self.prices.of_model(model))
            .or(self.unknown)
            .map_or(ModelPrice::Refused, ModelPrice::At)
    }

    /// The price for a request whose body was not read. A client can cause that, so the price of
    /// unknown models does not hold: the model may be the dearest.
    const fn of_unread(&self) -> ModelPrice {
        match self.unknown {
            Some(_) => ModelPrice::Dearest,
            None => ModelPrice::Refused,
        }
    }

    /// The most that a request with this body may cost at this price.
    pub(super) fn reserve(&self, cost: &BodyCost, body: SentBody<'_>, model: ModelPrice) -> u64 {
        let output = cost.units(body, PerToken::ONE);
        let bytes = body.most_bytes().unwrap_or(0);
        match model.place().and_then(|place| self.prices.get(place)) {
            Some(price) => price.of_request(output, bytes),
            None => self.prices.dearest(output, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(name: &str, per_million: Weights) -> Price {
        Price {
            name: Arc::from(name),
            per_million,
        }
    }

    fn usage() -> Usage {
        use super::super::usage::Preset;
        Usage::of_presets(&[Preset::OpenAi], &[1; TokenKind::ALL.len()])
    }

    /// The cost of a response of the chat completions.
    fn cost(price: &Price, stated: &[(&str, u64)]) -> Option<u64> {
        let usage = usage();
        let number = |path: &Vec<String>| {
            let name = path.join(".");
            let found = stated.iter().find(|(known, _)| *known == name);
            found.map(|(_, number)| *number)
        };
        let numbers: Vec<_> = usage.paths().list().iter().map(number).collect();
        price.of_response(&usage, &numbers)
    }

    #[test]
    fn prices_cost_is_exact_and_rounded_up_once() {
        // 2.50, 1.25 and 10.00 for a million tokens.
        let model = price(
            "m",
            [2_500_000, 1_250_000, 2_500_000, 10_000_000, 10_000_000],
        );
        let stated = [
            ("usage.prompt_tokens", 1000),
            ("usage.prompt_tokens_details.cached_tokens", 400),
            ("usage.completion_tokens", 100),
            ("usage.completion_tokens_details.reasoning_tokens", 30),
        ];
        // 600 x 2.5 + 400 x 1.25 + 100 x 10
        assert_eq!(cost(&model, &stated), Some(3000));
        // Two halves of a micro-unit are one, not two.
        let cheap = price("m", [500_000, 0, 0, 500_000, 500_000]);
        let two = [("usage.prompt_tokens", 1), ("usage.completion_tokens", 1)];
        assert_eq!(cost(&cheap, &two), Some(1));
        assert_eq!(cost(&cheap, &[("usage.prompt_tokens", 1)]), Some(1));
        assert_eq!(cost(&cheap, &[("usage.prompt_tokens", 0)]), Some(0));
        assert_eq!(cost(&cheap, &[]), None);
    }

    #[test]
    fn prices_overflow_costs_the_maximum() {
        let dear = price("m", [u64::MAX; 5]);
        let huge = [
            ("usage.prompt_tokens", u64::MAX),
            ("usage.completion_tokens", u64::MAX),
        ];
        assert_eq!(cost(&dear, &huge), Some(u64::MAX));
        assert_eq!(dear.of_request(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn prices_of_a_model_are_those_of_the_most_specific_name() {
        let names = ["*", "gpt-4o*", "gpt-4o", "gpt-*-mini*", "*mini", "claude-*"];
        let list = names.iter().map(|name| price(name, [1; 5])).collect();
        let prices = Prices::new("USD", list);
        let of = |model: &str| {
            let place = prices.of_model(model).expect("`*` matches all");
            prices.get(place).expect("a price").name.to_string()
        };
        for (model, name) in [
            ("gpt-4o", "gpt-4o"),
            ("gpt-4o-2024-08-06", "gpt-4o*"),
            ("gpt-4o-mini", "gpt-*-mini*"),
            ("gpt-4-mini", "gpt-*-mini*"),
            ("o1-mini", "*mini"),
            ("claude-x", "claude-*"),
            ("GPT-4o", "*"),
            ("gpt-4o ", "gpt-4o*"),
            ("", "*"),
            ("ｇｐｔ-4o\u{0}", "*"),
        ] {
            assert_eq!(of(model), name, "{model:?}");
        }
        assert_eq!(Prices::new("USD", Vec::new()).of_model("x"), None);
    }

    #[test]
    fn prices_reservation_is_a_bound_for_every_way_to_use_its_tokens() {
        let price = price("m", [2, 1, 3, 8, 9].map(|units| units * 1_000_000));
        let reserved = price.of_request(50, 200);
        assert_eq!(reserved, 200 * 3 + 50 * 9);
        let dearest = [
            ("usage.prompt_tokens", 200),
            ("usage.prompt_tokens_details.cache_write_tokens", 200),
            ("usage.completion_tokens", 50),
            ("usage.completion_tokens_details.reasoning_tokens", 50),
        ];
        assert_eq!(cost(&price, &dearest), Some(reserved));
    }
}
