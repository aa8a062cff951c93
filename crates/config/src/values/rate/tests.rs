use super::*;

fn per(amount: u64, seconds: u64, unit: Unit) -> Result<Rate, Flaw> {
    let rate = tollgate_limit::Rate::new(amount, Micros::from_secs(seconds));
    let currency = None;
    Ok(Rate::Per {
        rate,
        unit,
        currency,
    })
}

#[test]
fn rates_in_money_are_millionths() {
    let money = |text: &str| match rate(text) {
        Ok(Rate::Per {
            rate,
            currency: Some(currency),
            ..
        }) => Some((rate.amount, currency.as_str().to_owned())),
        _ => None,
    };
    let usd = |amount| Some((amount, "USD".to_owned()));
    assert_eq!(money("50 USD/month"), usd(50_000_000));
    assert_eq!(money("0.25USD / day"), usd(250_000));
    assert_eq!(money("0.000001 USD/hour"), usd(1));
    for text in [
        "0 USD/day",
        "0.0000001 USD/day",
        "usd/day",
        "5 usd/day",
        "-5 USD/day",
        "5. USD/day",
        ".5 USD/day",
        "1e3 USD/day",
        "20000000000000 USD/day",
    ] {
        assert_eq!(money(text), None, "{text}");
    }
}

#[test]
fn rate_in_another_unit_than_the_limit_counts_is_refused() {
    let amount = |text, counted| rate_in(text, counted).map(|rate| rate.amount);
    assert_eq!(amount("80 USD/month", Some("USD")), Ok(80_000_000));
    assert_eq!(amount("80/month", None), Ok(80));
    let without = amount("80 /month", Some("USD")).expect_err("no unit");
    assert_eq!(
        without,
        "the rate of a limit with `prices` is money, and in `80 /month` the unit of money is \
         missing: write `80 USD/month`"
    );
    for (text, counted) in [
        ("80 EUR/month", Some("USD")),
        ("80 USD/month", None),
        ("unlimited", Some("USD")),
        ("80", Some("USD")),
    ] {
        assert!(rate_in(text, counted).is_err(), "{text}");
    }
}

#[test]
fn rates_read_as_people_write_them() {
    assert_eq!(rate("100/minute"), per(100, 60, Unit::Span));
    assert_eq!(rate("10/10s"), per(10, 10, Unit::Span));
    assert_eq!(rate("1_000 / hour"), per(1_000, 3_600, Unit::Span));
    assert_eq!(rate("5000/day"), per(5_000, 86_400, Unit::Day));
    assert_eq!(rate("1/1h30m"), per(1, 5_400, Unit::Span));
    assert_eq!(rate("unlimited"), Ok(Rate::Unlimited));
}

#[test]
fn rate_invalid_is_pointed_at() {
    for (text, start, end) in [
        ("100", 0, 3),
        ("100/", 4, 5),
        ("100/minite", 4, 10),
        ("100/60", 4, 6),
        ("x/s", 0, 1),
        ("1.5/s", 0, 3),
        ("0/s", 0, 1),
        ("1/0s", 2, 4),
        ("1/1y", 3, 4),
        ("-5/s", 0, 2),
    ] {
        let flaw = rate(text).expect_err(text);
        assert_eq!((flaw.start, flaw.end), (start, end), "{text}: {flaw:?}");
    }
}

/// Where a rate is given alone, its mistake is one line: it says what to write.
#[test]
fn rate_that_is_none_is_refused_with_what_to_write() {
    let mistake = |text: &str| finite(text).expect_err("no rate");
    let missing = "`100` is not a rate: write it as \"100/minute\", or with another period";
    assert_eq!(mistake("100"), missing);
    let period = mistake("100/fortnight");
    for word in ["fortnight", "minute", "day"] {
        assert!(period.contains(word), "{period}");
    }
    let slip = mistake("10r/s");
    assert!(slip.ends_with("write \"10/second\""), "{slip}");
}
