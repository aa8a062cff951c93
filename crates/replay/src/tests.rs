//! Logs through policies: figures that can be counted by hand, and what is not judged.

mod counted;
mod reported;
mod suggested;
mod written;

use tollgate_config::Config;
use tollgate_limit::Timestamp;

use crate::log::{Fields, Options, Survey};
use crate::suggest::{Ask, Rate, Suggestion, suggest};
use crate::{Outcome, Traffic, report};

fn config(text: &str) -> Config {
    tollgate_config::parse(text, "test.toml", &|_| None, Timestamp::default()).expect("a good file")
}

/// A file whose one limit holds for every request.
fn of_one_limit(rate: &str, burst: u64, per: &str) -> Config {
    config(&format!(
        "[limits.one]\nrate = \"{rate}\"\nburst = {burst}\nper = \"{per}\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n"
    ))
}

fn per_address(rate: &str, burst: u64) -> Config {
    of_one_limit(rate, burst, "address")
}

/// A combined line: the client's last octet, and seconds after ten.
fn line(client: u8, second: u32) -> String {
    format!(
        "192.0.2.{client} - - [17/May/2015:10:{:02}:{:02} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"x\"\n",
        second / 60,
        second % 60
    )
}

fn replayed(text: &str, config: &Config) -> (Outcome, Survey) {
    let mut traffic = Traffic::read_text(text.as_bytes(), &Options::default(), &[&config.policy]);
    let outcome = traffic.replay();
    (outcome, traffic.survey)
}

fn suggested(text: &str, rates: &[(u64, u64)]) -> Suggestion {
    let config = per_address("1/second", 1);
    let traffic = Traffic::read_text(text.as_bytes(), &Options::default(), &[&config.policy]);
    let rate = |(amount, period): &(u64, u64)| Rate {
        text: format!("{amount}/{period}us"),
        amount: *amount,
        period: *period,
    };
    let ask = Ask {
        rates: rates.iter().map(rate).collect(),
        refuse: 1_000,
        rule: 0,
        today: None,
    };
    suggest(&traffic, "address", ask).expect("numbers")
}
