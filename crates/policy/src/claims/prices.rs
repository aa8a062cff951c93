//! What the tokens of a model cost, in money.
//!
//! Money is counted in millionths of its unit, in whole numbers. A price is written per million
//! tokens, so a token costs as many millionths of a micro-unit as the price has micro-units.

use std::sync::Arc;

use super::wildcard::Wildcard;
use crate::body::usage::{TokenKind, Usage, Weights};
use crate::identity::Source;

/// The tokens that a price is written for.
const PER: u128 = 1_000_000;
const MILLION: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// The model, or the pattern of models, as the file names it.
    pub name: Arc<str>,
    /// Micro-units of money for a million tokens of each kind.
    pub per_million: Weights,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// The unit of money, such as `USD`.
    pub currency: Arc<str>,
    list: Vec<(Wildcard, Price)>,
}

pub type PriceIndex = u16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrices {
    pub prices: Arc<Prices>,
    /// What names the model: the first that a route has. A member of the body, which every route
    /// has, or a segment of the path.
    pub models: Vec<Source>,
    /// The price of models without one, by its place; `None`: requests for them are refused.
    pub unknown: Option<PriceIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPrice {
    At(PriceIndex),
    /// The dearest of all, because the model is not known here.
    Dearest,
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
        let each = |part: &crate::body::usage::Part| self.per_million[part.kind as usize];
        usage.sum(numbers, each).map(money)
    }

    /// The most that a request may cost: its output at the dearest price of output, and a token of
    /// input for every byte of its body at the dearest price of input.
    pub(super) fn of_request(&self, output: u64, bytes: u64) -> u64 {
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

/// The name of a model as it is compared.
fn folded(name: &str) -> String {
    name.trim().to_ascii_lowercase()
}

/// Micro-units of money for a sum of tokens times prices: rounded up, once.
fn money(sum: u128) -> u64 {
    u64::try_from(sum.div_ceil(PER)).unwrap_or(u64::MAX)
}

impl Prices {
    /// The prices of a file. A name without `*` is more specific than any with one; of two patterns
    /// the one with more other characters is.
    pub fn new(currency: &str, list: Vec<Price>) -> Self {
        let mut list: Vec<(Wildcard, Price)> = list
            .into_iter()
            .map(|price| (Wildcard::new(&folded(&price.name)), price))
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

    pub fn get(&self, place: PriceIndex) -> Option<&Price> {
        self.list.get(usize::from(place)).map(|(_, price)| price)
    }

    /// The place of the price of a model. Blanks around its name and the case of its letters do not
    /// count: an upstream may ignore them.
    pub fn of_model(&self, model: &str) -> Option<PriceIndex> {
        let model = &folded(model);
        let place = self
            .list
            .iter()
            .position(|(pattern, _)| pattern.matches(model));
        place.and_then(|place| PriceIndex::try_from(place).ok())
    }

    /// Whether no price is dearer than the one at `place`, for tokens of any kind.
    pub fn is_dearest(&self, place: PriceIndex) -> bool {
        let Some(price) = self.get(place) else {
            return false;
        };
        self.list().all(|other| {
            let kinds = price.per_million.iter().zip(&other.per_million);
            kinds.into_iter().all(|(this, other)| this >= other)
        })
    }

    /// Another name that is the same when names are compared.
    pub fn same_as(&self, name: &str) -> Option<&Arc<str>> {
        let same = |price: &&Price| *price.name != *name && folded(&price.name) == folded(name);
        self.list().find(same).map(|price| &price.name)
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

    /// The places of the prices of models that a response names, without the one `asked` for. A name
    /// that only `*` matches has no price of its own, so the price of the request holds.
    pub fn named_by_response<'n>(
        &self,
        asked: Option<PriceIndex>,
        names: impl Iterator<Item = &'n str>,
    ) -> Vec<PriceIndex> {
        let is_own = |place: &PriceIndex| {
            let price = self.get(*place);
            Some(*place) != asked && price.is_some_and(|price| &*price.name != "*")
        };
        let places = names.filter_map(|name| self.of_model(name));
        places.filter(is_own).collect()
    }

    /// What would be reserved where `reserved` is, if the model `asked` for were the dearest of
    /// `models`: as if all of it were of the kind of tokens for which that is dearer. A kind for which
    /// the model that was asked for costs nothing reserved nothing.
    pub fn raised(&self, reserved: u64, asked: Option<PriceIndex>, models: &[PriceIndex]) -> u64 {
        let Some(asked) = asked.and_then(|place| self.get(place)) else {
            return reserved;
        };
        let raised = |model: &Price| {
            let of_kind = |(input, output)| {
                let rate = |price: &Price| u128::from(price.of_request(output, input));
                let whole = u128::from(reserved).saturating_mul(rate(model));
                match rate(asked) {
                    0 => u128::from(reserved),
                    asked => whole.div_ceil(asked),
                }
            };
            let most = of_kind((MILLION, 0)).max(of_kind((0, MILLION)));
            u64::try_from(most).unwrap_or(u64::MAX)
        };
        let models = models.iter().filter_map(|place| self.get(*place));
        models.map(raised).fold(reserved, u64::max)
    }

    /// The most that a request may cost with so many tokens of output and so many bytes of body,
    /// whichever model it names.
    pub fn dearest(&self, output: u64, bytes: u64) -> u64 {
        let costs = self.list().map(|price| price.of_request(output, bytes));
        costs.max().unwrap_or(u64::MAX)
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
        use crate::body::usage::Preset;
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
    fn prices_reservation_of_a_kind_that_costs_nothing_is_not_scaled() {
        let embeds = price("embeds", [20_000, 20_000, 20_000, 0, 0]);
        let dear = price(
            "dear",
            [2_500_000, 2_500_000, 2_500_000, 10_000_000, 10_000_000],
        );
        let prices = Prices::new("USD", vec![embeds, dear]);
        let place = |name: &str| prices.of_model(name).expect("a price");
        let (embeds, dear) = (place("embeds"), place("dear"));
        // Input is 125 times as dear; output reserved nothing.
        assert_eq!(prices.raised(8, Some(embeds), &[dear]), 1_000);
        assert_eq!(prices.raised(1_000, Some(dear), &[embeds]), 1_000);
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
            ("GPT-4o", "gpt-4o"),
            (" gpt-4O\t", "gpt-4o"),
            ("gpt-4o\u{a0}", "gpt-4o"),
            ("gpt-4o-MINI", "gpt-*-mini*"),
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
