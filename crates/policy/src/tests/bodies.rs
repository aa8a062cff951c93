//! Routes and costs by what the body of a request says.

use std::sync::Arc;

use super::fixtures::{by, identity, policy, route, rule, send};
use crate::body::usage::{Number, Preset, TokenKind, Usage};
use crate::identity::WhenMissing;
use crate::identity::source::Source;
use crate::routes::Route;
use crate::{
    BodyCost, BodyFacts, BodyFlaw, BodyReading, BodyRefusal, Cost, OperationFlaw, Policy,
    PolicyParts, Scope, SentBody, Settle, SettleFrom,
};

fn said(pattern: &str, limits: &[usize], conditions: &[(&str, Option<&str>)]) -> Route {
    let mut route = route(pattern, limits);
    route.pattern.body = conditions
        .iter()
        .map(|(source, value)| {
            let source = Source::parse(source).expect("a source");
            (source, value.map(str::to_owned))
        })
        .collect();
    route
}

/// The route that takes a request with this body, and the cost on its first limit.
fn taken(policy: &Policy, line: &str, body: &str) -> Result<(usize, Option<u64>), BodyFlaw> {
    let sent = send(line, &[]);
    let facts;
    let request = sent.describe(policy);
    let asked = policy.asked(&policy.find_route(&request));
    if !asked.is_empty() {
        let mut reading = BodyReading::new(&policy.wanted, asked, policy.body, &sent.headers)?
            .expect("not compressed");
        reading.feed(body.as_bytes())?;
        facts = reading.finish()?;
        request.body.set(Some(&facts));
    }
    let matched = policy.route(&request).expect("a route");
    let who = policy.identify(&matched, &request, 0).expect("a key");
    let body = SentBody {
        length: Some(body.len() as u64),
        facts: request.body.get(),
    };
    let claims = policy.claims(&matched, &who, &sent.headers, body);
    Ok((
        matched.route,
        claims.charges().first().map(|charge| charge.cost),
    ))
}

#[test]
fn body_conditions_choose_the_most_specific_route_and_ask_only_where_one_fits() {
    let routes = vec![
        route("POST /mcp", &[]),
        said("POST /mcp", &[], &[("json:method", Some("tools/call"))]),
        said(
            "POST /mcp",
            &[],
            &[
                ("json:method", Some("tools/call")),
                ("json:params.name", None),
            ],
        ),
        route("/other", &[]),
    ];
    let policy = policy(Vec::new(), Vec::new(), routes);
    let route = |line, body| taken(&policy, line, body).map(|(route, _)| route);
    assert_eq!(route("POST /mcp", r#"{"method":"tools/list"}"#), Ok(0));
    assert_eq!(route("POST /mcp", r#"{"method":"tools/call"}"#), Ok(1));
    let blanks = r#"{"method":" tools\/call\t"}"#;
    assert_eq!(route("POST /mcp", blanks), Ok(1), "servers drop blanks");
    let cut = r#"{"method":"tools\/call\n"}"#;
    assert_eq!(route("POST /mcp", cut), Err(BodyFlaw::Ambiguous));
    let named = r#"{"params":{"name":"x"},"method":"tools/call"}"#;
    assert_eq!(route("POST /mcp", named), Ok(2));
    assert_eq!(route("POST /mcp", "{"), Err(BodyFlaw::Malformed));
    assert_eq!(route("POST /other", "{"), Ok(3), "nothing is asked there");
    let asked = |line: &str| {
        let sent = send(line, &[]);
        policy.asked(&policy.find_route(&sent.describe(&policy)))
    };
    assert!(asked("POST /mcp").routes());
    assert!(asked("POST /other").is_empty());
}

#[test]
fn body_routes_that_tie_or_hide_each_other_are_errors() {
    let build = |routes| {
        let parts: PolicyParts = super::fixtures::parts(Vec::new(), Vec::new(), routes);
        Policy::build(parts).is_ok()
    };
    let on = |name, value| said("/x", &[], &[(name, value)]);
    assert!(build(vec![
        on("json:a", Some("1")),
        on("json:a", Some("2"))
    ]));
    assert!(build(vec![on("json:a", Some("1")), on("json:a", None)]));
    assert!(!build(vec![
        on("json:a", Some("1")),
        on("json:b", Some("1"))
    ]));
    assert!(!build(vec![on("json:a", None), on("json:a", None)]));
}

#[test]
fn body_cost_is_the_largest_number_times_another_and_the_bytes() {
    let mut units = rule("units", Scope::Everyone);
    units.cost = Cost::Body(Box::new(BodyCost {
        paths: vec![vec!["max_tokens".into()], vec!["most".into()]],
        times: vec![vec!["n".into()]],
        plus: Some(10),
        default: 7,
        least: 2,
        most: 1000,
    }));
    let policy = policy(Vec::new(), vec![units], vec![route("/x", &[0])]);
    let cost = |body| taken(&policy, "POST /x", body).map(|(_, cost)| cost.expect("a limit"));
    assert_eq!(cost(r#"{"max_tokens":90}"#), Ok(92));
    assert_eq!(cost(r#"{"max_tokens":90,"most":91}"#), Ok(94));
    assert_eq!(cost(r#"{"max_tokens":90,"n":3}"#), Ok(273));
    assert_eq!(cost(r#"{"max_tokens":90,"n":0}"#), Ok(93));
    assert_eq!(cost("{}"), Ok(8));
    assert_eq!(cost(r#"[{"max_tokens":90},{}]"#), Ok(100));
    assert_eq!(
        cost(r#"[{"max_tokens":90},{"most":91}]"#),
        Ok(90 + 7 + 91 + 7 + 4),
        "never less than the calls alone would cost"
    );
    assert_eq!(cost(r#"{"max_tokens":99999999999999999999}"#), Ok(1000));
    assert_eq!(cost(r#"{"max_tokens":5000,"n":128}"#), Ok(128_000));
    assert_eq!(cost(r#"{"max_tokens":1000,"n":99}"#), Ok(99_003));
    let never = policy.rules[0].live.algorithm.greatest_cost() + 1;
    for hidden in [
        r#"{"max_tokens":"90"}"#,
        r#"{"max_tokens":-90}"#,
        r#"{"max_tokens":9e9}"#,
        r#"{"max_tokens":90,"n":"3"}"#,
        r#"{"max_tokens":90,"n":1.28e2}"#,
    ] {
        assert_eq!(cost(hidden), Ok(never), "{hidden}");
    }
    assert_eq!(
        cost(r#"{"max_tokens":1,"max_tokens":2}"#),
        Err(BodyFlaw::Ambiguous)
    );
    let unread = BodyFacts::unread(&policy.wanted, Some(1 << 20));
    let sent = SentBody {
        length: unread.length(),
        facts: Some(&unread),
    };
    assert_eq!(
        policy.rules[0].price(
            &policy.rules[0].live,
            None,
            &http::HeaderMap::new(),
            sent,
            None
        ),
        never
    );
}

#[test]
fn reservation_of_weighted_tokens_is_the_most_that_they_may_come_to() {
    let usage = |weights| Usage::of_presets(&[Preset::OpenAi], &weights);
    let number = |weight| Number {
        paths: vec![vec!["used".into()]],
        kind: TokenKind::Input,
        weight,
        inside: None,
    };
    let listed = Usage::of_numbers(&[number(3), number(5)]).expect("room");
    // Bytes count with the dearest kind of input, what the body states with that of output.
    for (usage, plus, stated, added, beyond) in [
        (usage([1; 5]), Some(10), 1, 1, 1),
        (usage([1, 0, 2, 4, 6]), Some(10), 6, 2, 6),
        (usage([9, 1, 1, 4, 4]), Some(10), 4, 9, 9),
        (usage([9, 1, 1, 4, 4]), None, 4, 0, 4),
        (listed, Some(10), 5, 5, 5),
    ] {
        let mut units = rule("units", Scope::Everyone);
        units.cost = Cost::Body(Box::new(BodyCost {
            paths: vec![vec!["max_tokens".into()]],
            times: Vec::new(),
            plus,
            default: 7,
            least: 1,
            most: 1000,
        }));
        units.settle = Some(Settle {
            from: SettleFrom::Json(Arc::new(usage)),
            estimate: None,
            most: 100_000,
            broken_off_per: None,
            untold_costs_most: false,
            ask: false,
        });
        assert_eq!(units.cost_bounds(None), (1, 1000 * beyond));
        let policy = policy(Vec::new(), vec![units], vec![route("/x", &[0])]);
        let cost = |body| taken(&policy, "POST /x", body).map(|(_, cost)| cost.expect("a limit"));
        // 17 bytes.
        assert_eq!(cost(r#"{"max_tokens":90}"#), Ok(90 * stated + 2 * added));
        assert_eq!(cost("{}"), Ok(7 * stated + added));
        let never = policy.rules[0].live.algorithm.greatest_cost() + 1;
        assert_eq!(cost(r#"{"max_tokens":1001}"#), Ok(never));
        assert_eq!(cost(r#"{"max_tokens":"1"}"#), Ok(never));
    }
}

#[test]
fn body_key_of_a_fallback_identity_is_asked_for_too() {
    let identities = vec![
        identity("tenant", &["header:x-api-key"], WhenMissing::Use(1)),
        identity("model", &["json:model"], WhenMissing::Skip),
    ];
    let policy = policy(identities, vec![rule("a", by(0))], vec![route("/x", &[0])]);
    assert_eq!(
        taken(&policy, "POST /x", r#"{"model":"m"}"#),
        Ok((0, Some(1)))
    );
    assert_eq!(taken(&policy, "POST /x", "{}"), Ok((0, None)));
}

#[test]
fn body_of_a_test_of_the_file_is_admitted_as_the_gateway_admits_it() {
    let routes = vec![
        route("POST /free", &[]),
        route("POST /plain", &[0]),
        route("POST /mcp", &[]),
        said("POST /mcp", &[], &[("json:method", Some("tools/call"))]),
        route("POST /graphql", &[1]),
    ];
    let identities = vec![
        identity("model", &["json:model"], WhenMissing::UseAddress),
        identity("operation", &["graphql:operation"], WhenMissing::UseAddress),
    ];
    let rules = vec![rule("models", by(0)), rule("operations", by(1))];
    let mut parts = super::fixtures::parts(identities, rules, routes);
    parts.body.most = 64;
    let policy = Policy::build(parts).expect("a policy");
    let read = |line: &str, headers: &[(&'static str, &'static str)], body: &str| {
        let sent = send(line, headers);
        policy.read_body(&sent.describe(&policy), body.as_bytes())
    };
    let long = format!("{{\"pad\":\"{}\"}}", "x".repeat(200));
    let json = [("content-type", "application/json")];
    let facts = read("POST /plain", &json, &long).expect("its key is not read");
    assert!(facts.is_opaque());
    assert_eq!(facts.length(), Some(long.len() as u64));
    assert_eq!(
        read("POST /mcp", &json, &long).map(drop),
        Err(BodyRefusal::TooLong)
    );
    assert_eq!(BodyRefusal::TooLong.status(), 413);
    let batch = format!("[{long}]");
    assert_eq!(
        read("POST /plain", &json, &batch).map(drop),
        Err(BodyRefusal::TooLong),
        "the number of its calls is not known"
    );
    // What is not asked for is not read, whatever it is.
    let compressed = [("content-encoding", "gzip")];
    assert!(read("POST /free", &compressed, "{").is_ok());
    assert_eq!(
        read("POST /plain", &compressed, "{").map(drop),
        Err(BodyRefusal::Flaw(BodyFlaw::Compressed))
    );
    let query = r#"{"query":"query a { x }"}"#;
    assert!(read("POST /graphql", &json, query).is_ok());
    assert_eq!(
        read("POST /graphql?operationName=b", &json, query).map(drop),
        Err(BodyRefusal::Flaw(OperationFlaw::InTarget.into())),
        "servers may prefer the operation of the query"
    );
}
