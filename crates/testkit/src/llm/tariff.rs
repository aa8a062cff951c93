//! What calls of a crowd are charged: tokens, or money.

use super::{Llm, Tokens};

/// A budget, and what calls reserve and use of it.
#[derive(Clone, Copy, Debug)]
pub struct Tariff {
    /// The units of the budget.
    pub budget: u64,
    /// Its limit, and what that needs, as TOML.
    pub limit: &'static str,
    /// What is reserved for a call that allows so many tokens of output, and has so many bytes.
    pub reserved: fn(u64, u64) -> u64,
    /// What these tokens of input and output cost.
    pub used: fn(u64, u64) -> u64,
}

/// A budget of tokens.
pub const TOKENS: Tariff = Tariff {
    budget: 1_200_000,
    limit: "[limits.tokens]\nrate = \"1200000/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nceiling = true\n\
            cost = { json = \"max_tokens\", times = \"n\", default = 50000, max = 50000, plus = \"body_bytes\" }\n\
            settle = { usage = [\"openai\", \"anthropic\"] }\n",
    reserved: |output, bytes| output + bytes,
    used: |input, output| input + output,
};

/// A budget of tokens that gateways lease from the store. It hardly flows back.
pub const LEASED: Tariff = Tariff {
    limit: "[limits.tokens]\nrate = \"24/day\"\nburst = 1200000\nper = \"everyone\"\nlease = true\n\
            cost = { json = \"max_tokens\", times = \"n\", default = 50000, max = 50000, plus = \"body_bytes\" }\n\
            settle = { usage = [\"openai\", \"anthropic\"] }\n",
    ..TOKENS
};

/// A budget of money, whose prices do not come out in whole micro-units.
pub const MONEY: Tariff = Tariff {
    budget: 50_000_000,
    limit: "[prices.models.m]\ninput = \"33.000007\"\noutput = \"90.000011\"\n\
            [limits.tokens]\nrate = \"50 USD/month\"\nalgorithm = \"fixed_window\"\n\
            window = { align = \"calendar\" }\nper = \"everyone\"\nceiling = true\nprices = \"json:model\"\n\
            cost = { json = \"max_tokens\", times = \"n\", default = 50000, max = 50000 }\n\
            settle = { usage = [\"openai\", \"anthropic\"] }\n",
    reserved: |output, bytes| micro_units(bytes, output),
    used: micro_units,
};

/// Micro-units of money for these tokens of input and output, rounded up.
fn micro_units(input: u64, output: u64) -> u64 {
    (input * 33_000_007 + output * 90_000_011).div_ceil(1_000_000)
}

impl Tariff {
    /// What the calls that reached the model have reserved.
    pub fn reserved_by(&self, model: &Llm) -> u64 {
        let calls = model.upstream().seen().into_iter();
        let one = calls.map(|seen| {
            let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap_or_default();
            let output = body["max_tokens"].as_u64().unwrap_or(0);
            (self.reserved)(output, seen.body.len() as u64)
        });
        one.sum()
    }

    /// What the calls of the model have used.
    pub fn used_by(&self, model: &Llm) -> u64 {
        let calls = model.used().into_iter();
        let cost = |tokens: Tokens| (self.used)(tokens.input, tokens.output);
        calls.map(cost).sum()
    }
}
