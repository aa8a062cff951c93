use crate::declare::table;
use crate::lists::Named;
use crate::text::Text;
use crate::validate::prices::Money;

table! {
    /// What the tokens of language models cost. Limits with `prices` count money by it.
    RawPrices {
        /// The unit of money, by its code of three letters. Limits count in millionths of it.
        currency: Text = "USD" => "EUR",
        /// The prices of each model, by its name; `*` stands for any characters. A name without `*` is the most specific, then the one with
        /// the most other characters.
        @required("[prices.models.\"gpt-4o*\"] with input = \"2.50\" and output = \"10\"") models: Named<RawPrice> => { "gpt-4o*" = { input = "2.50", output = "10" } },
    }
}

table! {
    /// The prices of a model, for a million tokens of each kind. At most six digits after the point.
    RawPrice {
        /// Tokens read from the request.
        @required("input = \"2.50\" is 2.50 for a million tokens") input: Money => "2.50",
        /// Tokens read from a cache. Default: as `input`.
        cached_input: Money => "1.25",
        /// Tokens written into a cache. Default: as `input`.
        cache_write: Money => "3.75",
        /// Tokens that the model wrote.
        @required("output = \"10\" is 10 for a million tokens") output: Money => "10.00",
        /// Tokens of reasoning. Default: as `output`.
        reasoning: Money => "10.00",
    }
}
