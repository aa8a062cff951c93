//! Requests that are charged in money: their reservation, and models without a price.

use std::sync::Arc;

use super::fixtures::{policy, route, rule, send};
use crate::identity::IdentityReason;
use crate::prices::{ModelPrices, Price, PriceIndex, Prices};
use crate::source::Source;
use crate::usage::{Preset, Usage};
use crate::{
    BodyCost, BodyReading, Claimed, Claims, Cost, Identified, Policy, Scope, Settle, SettleFrom,
};

/// A limit in money and one for everyone on one route.
fn priced(unknown: Option<PriceIndex>) -> Policy {
    let price = |name: &str, input, output| Price {
        name: Arc::from(name),
        per_million: [input, input, input, output, output],
    };
    let list = vec![
        price("small*", 1_000_000, 2_000_000),
        price("large", 10_000_000, 30_000_000),
    ];
    let mut budget = rule("budget", Scope::Everyone);
    budget.cost = Cost::Body(Box::new(BodyCost {
        paths: vec![vec!["max_tokens".into()]],
        times: Some(vec!["n".into()]),
        plus: None,
        default: 100,
        least: 1,
        most: 1000,
    }));
    budget.settle = Some(Settle {
        from: SettleFrom::Json(Arc::new(Usage::of_presets(&[Preset::OpenAi], &[1; 5]))),
        estimate: None,
        most: 0,
        broken_off_per: None,
        untold_costs_most: false,
    });
    budget.prices = Some(ModelPrices {
        prices: Arc::new(Prices::new("USD", list)),
        model: Source::parse("json:model").expect("a source"),
        unknown,
    });
    let all = rule("all", Scope::Everyone);
    policy(
        Vec::new(),
        vec![budget, all],
        vec![route("POST /x", &[0, 1])],
    )
}

/// The claims of a request with this body, and how far they are known.
fn claimed(policy: &Policy, body: &str) -> (Claimed, Claims) {
    let sent = send("POST /x", &[]);
    let mut request = sent.describe(policy);
    let asked = policy.asked(&policy.find_route(&request));
    let reading = BodyReading::new(&policy.wanted, asked, policy.body, &sent.headers);
    let mut reading = reading.expect("readable").expect("not compressed");
    reading.feed(body.as_bytes()).expect("JSON");
    let facts = reading.finish().expect("unambiguous");
    request.body = Some(&facts);
    let matched = policy.route(&request).expect("a route");
    let (mut who, mut claims) = (Identified::default(), Claims::default());
    let length = Some(body.len() as u64);
    let into = (&mut who, &mut claims);
    (policy.claim(into, &matched, &request, length, 0), claims)
}

/// What the first limit charges.
fn reserved(policy: &Policy, body: &str) -> u64 {
    let (claimed, claims) = claimed(policy, body);
    assert_eq!(claimed, Claimed::Complete, "{body}");
    claims.charges()[0].cost
}

#[test]
fn prices_request_reserves_its_bytes_and_its_output_at_the_price_of_its_model() {
    let policy = priced(None);
    for (body, input, output) in [
        (r#"{"model":"small-1","max_tokens":50}"#, 1, 50 * 2),
        (r#"{"model":"large","max_tokens":50}"#, 10, 50 * 30),
        (r#"{"model":"large","max_tokens":50,"n":3}"#, 10, 150 * 30),
        (r#"{"model":"large"}"#, 10, 100 * 30),
        (r#"{"model":"large","max_tokens":"50"}"#, 10, 1000 * 30),
        (r#"{"model":"large","max_tokens":-1}"#, 10, 1000 * 30),
    ] {
        let bytes = body.len() as u64;
        assert_eq!(reserved(&policy, body), bytes * input + output, "{body}");
    }
}

#[test]
fn prices_model_without_one_is_refused_and_charged_on_other_limits() {
    let policy = priced(None);
    for body in [
        r#"{"model":"other"}"#,
        r#"{"model":"Large"}"#,
        r#"{"model":""}"#,
        r#"{"model":null}"#,
        r#"{"model":7}"#,
        "{}",
        r#"{"model":"\u0000large"}"#,
    ] {
        let (claimed, claims) = claimed(&policy, body);
        let Claimed::Refused(refusal) = claimed else {
            panic!("{body}: {claimed:?}");
        };
        assert_eq!(refusal.reason, IdentityReason::ModelUnknown, "{body}");
        assert_eq!(refusal.status(), 400, "{body}");
        assert_eq!(&*refusal.identity, "budget");
        let rules: Vec<_> = claims.charges().iter().map(|charge| charge.rule).collect();
        assert_eq!(rules, [1], "{body}");
    }
}

#[test]
fn prices_model_without_one_costs_the_price_that_is_named() {
    let place = priced(None).rules[0]
        .prices
        .as_ref()
        .and_then(|its| its.prices.named("large"));
    let policy = priced(place);
    let body = r#"{"model":"other","max_tokens":50}"#;
    assert_eq!(reserved(&policy, body), body.len() as u64 * 10 + 50 * 30);
}
