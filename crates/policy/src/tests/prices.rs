//! Requests that are charged in money: their reservation, and models without a price.

use std::sync::Arc;

use super::fixtures::{policy, route, rule, send};
use crate::body::usage::{Preset, Usage};
use crate::claims::prices::{ModelPrices, Price, PriceIndex, Prices};
use crate::identity::IdentityReason;
use crate::identity::source::Source;
use crate::{
    BodyCost, BodyFacts, BodyReading, Claimed, Claims, Cost, Identified, Policy, Scope, Settle,
    SettleFrom,
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
        times: vec![vec!["n".into()]],
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
        ask: false,
    });
    budget.prices = Some(ModelPrices {
        prices: Arc::new(Prices::new("USD", list)),
        models: vec![
            Source::parse("path:deployment").expect("a source"),
            Source::parse("json:model").expect("a source"),
        ],
        unknown,
    });
    let all = rule("all", Scope::Everyone);
    policy(
        Vec::new(),
        vec![budget, all],
        vec![
            route("POST /x", &[0, 1]),
            route("POST /d/{deployment}/x", &[0, 1]),
        ],
    )
}

/// The claims of a request with this body, and how far they are known.
fn claimed(policy: &Policy, body: &str) -> (Claimed, Claims) {
    claimed_with(policy, &[], body)
}

/// The same, with these headers.
fn claimed_with(
    policy: &Policy,
    headers: &[(&'static str, &str)],
    body: &str,
) -> (Claimed, Claims) {
    let sent = send("POST /x", headers);
    let request = sent.describe(policy);
    let asked = policy.asked(&policy.find_route(&request));
    let reading = BodyReading::new(&policy.wanted, asked, policy.body, &sent.headers);
    let mut reading = reading.expect("readable").expect("not compressed");
    reading.feed(body.as_bytes()).expect("JSON");
    claimed_of(policy, reading.finish().expect("unambiguous"))
}

/// The claims of a request of whose body this is known.
fn claimed_of(policy: &Policy, facts: BodyFacts) -> (Claimed, Claims) {
    claimed_at(policy, "POST /x", facts)
}

/// The same, of a request with this line.
fn claimed_at(policy: &Policy, line: &str, facts: BodyFacts) -> (Claimed, Claims) {
    let sent = send(line, &[]);
    let request = sent.describe(policy);
    request.body.set(Some(&facts));
    let matched = policy.route(&request).expect("a route");
    let (mut who, mut claims) = (Identified::default(), Claims::default());
    let claimed = policy.claim(&mut who, &mut claims, &matched, &request, None, 0);
    (claimed, claims)
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
        (r#"{"model":" LARGE\t"}"#, 10, 100 * 30),
    ] {
        let bytes = body.len() as u64;
        assert_eq!(reserved(&policy, body), bytes * input + output, "{body}");
    }
    let never = policy.rules[0].live.algorithm.greatest_cost() + 1;
    for most in [r#""50""#, "-1", "1001"] {
        let body = format!(r#"{{"model":"large","max_tokens":{most}}}"#);
        assert_eq!(reserved(&policy, &body), never, "{body}");
    }
}

#[test]
fn prices_model_without_one_is_refused_and_charged_on_other_limits() {
    let policy = priced(None);
    for body in [
        r#"{"model":"other"}"#,
        r#"{"model":"largo"}"#,
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
    let policy = priced(place("large"));
    let body = r#"{"model":"other","max_tokens":50}"#;
    assert_eq!(reserved(&policy, body), body.len() as u64 * 10 + 50 * 30);
}

/// The place of the price that has this name.
fn place(name: &str) -> Option<PriceIndex> {
    let its = &priced(None).rules[0].prices;
    its.as_ref().and_then(|its| its.prices.named(name))
}

#[test]
fn prices_body_that_is_not_read_never_fits_a_reservation() {
    // Whatever the price of unknown models is: a client can make its body unreadable.
    let policy = priced(place("small*"));
    let padded = |length| BodyFacts::unread(&policy.wanted, length);
    let (known, claims) = claimed_of(&policy, padded(Some(70_000)));
    assert_eq!(known, Claimed::Complete);
    let charge = claims.charges()[0];
    let never = policy.rules[0].live.algorithm.greatest_cost() + 1;
    assert_eq!((charge.cost, charge.price), (never, None));
    let body = "model=large";
    let (known, claims) = claimed_with(&policy, &[("content-type", "text/plain")], body);
    assert_eq!(known, Claimed::Complete);
    let charge = claims.charges()[0];
    assert_eq!((charge.cost, charge.price), (never, None));
    // No number of units is enough for a body without an end.
    let (known, _) = claimed_of(&policy, padded(None));
    assert!(matches!(known, Claimed::Refused(_)), "{known:?}");
    // Where unknown models are refused, so is a body that may name one.
    let policy = priced(None);
    let (known, _) = claimed_of(&policy, BodyFacts::unread(&policy.wanted, Some(70_000)));
    assert!(matches!(known, Claimed::Refused(_)), "{known:?}");
}

#[test]
fn prices_body_that_a_proxy_has_reserves_the_dearest_price() {
    for unknown in [None, place("small*")] {
        let policy = priced(unknown);
        let (known, claims) = claimed_of(&policy, policy.body_of_proxy());
        assert_eq!(known, Claimed::Complete, "{unknown:?}");
        let charge = claims.charges()[0];
        let most = policy.body.most as u64;
        assert_eq!((charge.cost, charge.price), (most * 10 + 1000 * 30, None));
        // The client of a service chooses whether it announces the length.
        let (known, claims) = claimed_of(&policy, policy.body_of_service(Some(200)));
        assert_eq!(known, Claimed::Complete, "{unknown:?}");
        assert_eq!(claims.charges()[0].cost, 200 * 10 + 1000 * 30);
        let (known, _) = claimed_of(&policy, policy.body_of_service(None));
        assert!(matches!(known, Claimed::Refused(_)), "{known:?}");
    }
}

#[test]
fn prices_model_of_the_path_is_the_one_that_counts_on_a_route_with_it() {
    let policy = priced(place("small*"));
    for (line, charged) in [
        ("POST /d/small-1/x", place("small*")),
        ("POST /d/Large/x", place("large")),
        ("POST /d/%6Carge/x", place("large")),
        ("POST /d/%20large/x", place("large")),
        ("POST /d/other/x", place("small*")),
        ("POST /d/large;x/x", place("large")),
    ] {
        // What the body names, or that it was not read, is of no importance.
        let body = BodyFacts::unread(&policy.wanted, Some(70_000));
        let (known, claims) = claimed_at(&policy, line, body);
        assert_eq!(known, Claimed::Complete, "{line}");
        assert_eq!(claims.charges()[0].price, charged, "{line}");
    }
    // A proxy that asks knows the path.
    let (_, claims) = claimed_at(&policy, "POST /d/small/x", policy.body_of_proxy());
    assert_eq!(claims.charges()[0].price, place("small*"));
}
