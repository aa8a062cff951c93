//! The whole way from a request to its claims, on policies built by hand.

mod bodies;
mod conflicts;
mod edits;
mod explained;
pub(crate) mod fixtures;
mod forms;
mod preflights;
mod prices;
mod scopes;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use super::identity::callers::Callers;
use super::identity::jwt::{Algorithm as Signature, JwtPolicy, JwtSettings};
use super::identity::source::Ambiguous;
use super::identity::{WhenMissing, WhenUnknown};
use super::{Cost, IdentityReason, Scope, ScopePart, Settle, SettleFrom};
use fixtures::{
    NOW, Sent, by, by_address, identity, limit, policy, route, rule, send, with_callers,
};
use tollgate_limit::Mode;

#[test]
fn each_limit_draws_from_the_bucket_of_its_scope() {
    let rules = vec![
        rule("total", Scope::Everyone),
        rule("each", by_address()),
        rule("tenant", by(0)),
        rule(
            "both",
            Scope::Identities(vec![ScopePart::Identity(0), ScopePart::Address]),
        ),
    ];
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(vec![tenant], rules, vec![route("/**", &[0, 1, 2, 3])]);
    assert_eq!(
        send("GET /", &[("x-api-key", "k1")]).claims(&policy),
        [
            "total everyone 1",
            "each address 192.0.2.1 1",
            r#"tenant "k1" 1"#,
            r#"both "k1" + address 192.0.2.1 1"#,
        ]
    );
    assert_eq!(
        send("GET /", &[]).claims(&policy),
        ["identity `tenant`: the key is missing"]
    );
}

#[test]
fn identity_missing_key_follows_when_missing() {
    let routes = || vec![route("/**", &[0, 1])];
    let rules = || vec![rule("tenant", by(0)), rule("total", Scope::Everyone)];
    let with = |when_missing| {
        let cookie = identity("session", &["cookie:sid"], WhenMissing::UseAddress);
        let tenant = identity("tenant", &["header:x-api-key"], when_missing);
        policy(vec![tenant, cookie], rules(), routes())
    };
    let bare = send("GET /", &[]);
    assert_eq!(bare.claims(&with(WhenMissing::Skip)), ["total everyone 1"]);
    assert_eq!(
        bare.claims(&with(WhenMissing::UseAddress)),
        ["tenant address 192.0.2.1 1", "total everyone 1"]
    );
    assert_eq!(
        bare.claims(&with(WhenMissing::Use(1))),
        ["tenant address 192.0.2.1 1", "total everyone 1"]
    );
    // A key of the fallback identity never shares a bucket with a key of the first one.
    let session = send("GET /", &[("cookie", "sid=k1")]).claims(&with(WhenMissing::Use(1)));
    assert_eq!(session, [r#"tenant session "k1" 1"#, "total everyone 1"]);
}

#[test]
fn identity_known_callers_have_names_and_tiers_and_unknown_ones_follow_when_unknown() {
    let with = |when_unknown| {
        let tenant = with_callers(
            identity("tenant", &["header:x-api-key"], WhenMissing::UseAddress),
            when_unknown,
        );
        let mut search = rule("search", by(0));
        search.tiers = vec![
            ("pro".into(), limit("search", Mode::Enforce)),
            ("free".into(), limit("search", Mode::Enforce)),
        ];
        policy(vec![tenant], vec![search], vec![route("/**", &[0])])
    };
    let known = send("GET /", &[("x-api-key", "test")]);
    let made_up = send("GET /", &[("x-api-key", "acme")]);
    for when_unknown in [
        WhenUnknown::Refuse,
        WhenUnknown::UseAddress,
        WhenUnknown::Accept,
    ] {
        assert_eq!(known.claims(&with(when_unknown)), ["search caller acme 1"]);
    }
    assert_eq!(
        made_up.claims(&with(WhenUnknown::Refuse)),
        ["identity `tenant`: the key is not known"]
    );
    assert_eq!(
        made_up.claims(&with(WhenUnknown::UseAddress)),
        ["search address 192.0.2.1 1"]
    );
    assert_eq!(
        made_up.claims(&with(WhenUnknown::Accept)),
        [r#"search "acme" 1"#]
    );

    let policy = with(WhenUnknown::Accept);
    let variant = |sent: &Sent| {
        let request = sent.describe(&policy);
        let matched = policy.route(&request).expect("a route");
        let who = policy
            .identify(&matched, &request, NOW)
            .expect("identified");
        policy.claims(&matched, &who, &sent.headers, None).charges()[0].limit
    };
    let pro = policy.rules[0]
        .tiers
        .iter()
        .find(|(name, _)| &**name == "pro")
        .map(|(_, limit)| limit.index);
    assert_eq!(Some(variant(&known)), pro);
    assert_eq!(variant(&made_up), policy.rules[0].live.index);
    assert!(
        policy
            .limits
            .iter()
            .enumerate()
            .all(|(index, limit)| limit.index == index)
    );

    policy.identities[0].replace_callers(Callers::default());
    assert_eq!(known.claims(&policy), [r#"search "test" 1"#]);
}

#[test]
fn composites_path_segments_and_verified_claims_make_keys() {
    let mut user = identity("user", &["jwt:sub"], WhenMissing::UseAddress);
    let secret = b"0123456789abcdef0123456789abcdef";
    let settings = JwtSettings {
        algorithms: vec![Signature::HS256],
        ..JwtSettings::default()
    };
    user.jwt = Some(JwtPolicy::new(settings, secret).expect("a secret"));
    let both = identity(
        "both",
        &["path:id", "query:key", "address"],
        WhenMissing::Refuse,
    );
    let rules = vec![rule("user", by(0)), rule("both", by(1))];
    let policy = policy(vec![user, both], rules, vec![route("/u/{id}", &[0, 1])]);
    let key = jsonwebtoken::EncodingKey::from_secret(secret);
    let token = |exp: u64| {
        let claims = BTreeMap::from([
            ("sub", serde_json::json!("u1")),
            ("exp", serde_json::json!(exp)),
        ]);
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a token")
    };
    let claims = |authorization: &str| {
        send(
            "GET /u/7%20a?key=x%2cy",
            &[("authorization", authorization)],
        )
        .claims(&policy)
    };
    let [user, both] = claims(&format!("Bearer {}", token(NOW + 9)))
        .try_into()
        .expect("two claims");
    assert_eq!(user, r#"user "u1" 1"#);
    assert_eq!(both, r#"both "7 a" + "x,y" + "192.0.2.1" 1"#);
    assert_eq!(claims("Basic eDp5")[0], "user address 192.0.2.1 1");
    // An invalid token is refused; it is not a missing one that the address could stand in for.
    assert_eq!(
        claims("Bearer junk"),
        ["identity `user`: the token is refused: not a signed token"]
    );
    let expired = format!("Bearer {}", token(NOW));
    assert_eq!(
        claims(&expired),
        ["identity `user`: the token is refused: expired"]
    );
}

#[test]
fn a_key_given_twice_is_malformed_not_missing() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Skip);
    let policy = policy(
        vec![tenant],
        vec![rule("tenant", by(0))],
        vec![route("/**", &[0])],
    );
    let twice = send("GET /", &[("x-api-key", "a"), ("x-api-key", "b")]);
    let request = twice.describe(&policy);
    let matched = policy.route(&request).expect("a route");
    let refusal = policy
        .identify(&matched, &request, NOW)
        .err()
        .map(|refusal| refusal.reason);
    assert_eq!(refusal, Some(IdentityReason::Ambiguous(Ambiguous::Twice)));
    assert!(refusal.is_some_and(IdentityReason::is_malformed));
}

#[test]
fn exempt_callers_are_not_charged_but_must_be_identified() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(
        vec![tenant],
        vec![rule("tenant", by(0))],
        vec![route("/**", &[0])],
    );
    let empty: [&str; 0] = [];
    assert_eq!(
        send("GET /", &[("x-api-key", "k")])
            .from("203.0.113.9")
            .claims(&policy),
        empty
    );
    let forwarded = [("x-api-key", "k"), ("x-forwarded-for", "203.0.113.9")];
    assert_eq!(
        send("GET /", &forwarded).from("10.0.0.1").claims(&policy),
        empty
    );
    assert_eq!(
        send("GET /", &forwarded).claims(&policy),
        [r#"tenant "k" 1"#]
    );
    assert_eq!(
        send("GET /", &[]).from("203.0.113.9").claims(&policy),
        ["identity `tenant`: the key is missing"]
    );
}

#[test]
fn claims_mode_candidate_and_share_decide_enforcement() {
    let mut rules = vec![
        rule("on", by_address()),
        rule("shadow", by_address()),
        rule("off", by(0)),
        rule("some", by_address()),
    ];
    rules[0].candidate = Some(limit("on", Mode::Shadow));
    rules[1].live = limit("shadow", Mode::Shadow);
    // Its identity would refuse: but a limit that is off is not looked at.
    rules[2].live = limit("off", Mode::Off);
    rules[2].candidate = Some(limit("off", Mode::Enforce));
    Arc::make_mut(&mut rules[3].live).enforce_for = 5_000;
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(vec![tenant], rules, vec![route("/**", &[0, 1, 2, 3])]);
    let claims = send("GET /", &[]).claims(&policy);
    assert_eq!(
        claims[..3],
        [
            "on address 192.0.2.1 1",
            "[on address 192.0.2.1 1]",
            "[shadow address 192.0.2.1 1]"
        ]
    );
    let enforced = (0..200_u8).filter(|n| {
        !send("GET /", &[])
            .from(&format!("192.0.2.{n}"))
            .claims(&policy)[3]
            .starts_with('[')
    });
    assert!((70..130).contains(&enforced.count()));
}

#[test]
fn a_cost_comes_from_where_the_limit_or_route_says() {
    let from_header = Cost::Header {
        name: HeaderName::from_static("x-cost"),
        default: 3,
        least: 2,
        most: 50,
    };
    let cost = |values: &[&str]| {
        let headers: Vec<_> = values.iter().map(|value| ("x-cost", *value)).collect();
        from_header.units(&send("GET /", &headers).headers, None.into())
    };
    for (values, expected) in [
        (&[][..], 3),
        (&["7"], 7),
        (&["0"], 2),
        (&["51"], 50),
        (&["99999999999999999999999"], 50),
        (&["-1"], 50),
        (&["1e3"], 50),
        (&[""], 50),
        (&["+7"], 50),
        (&["7.0"], 50),
        (&["7", "seven"], 50),
        (&["5", "9"], 9),
    ] {
        assert_eq!(cost(values), expected, "{values:?}");
    }
    let by_length = Cost::ContentLength {
        per: 1000,
        least: 1,
        most: 9,
    };
    let units = |body| by_length.units(&HeaderMap::new(), body);
    assert_eq!(
        [
            units(Some(0).into()),
            units(Some(1001).into()),
            units(Some(1 << 40).into()),
            units(None.into())
        ],
        [1, 2, 9, 9]
    );

    let mut settled = rule("settled", Scope::Everyone);
    settled.settle = Some(Settle {
        from: SettleFrom::Bytes { per: 1 },
        estimate: Some(500),
        most: 1000,
        broken_off_per: None,
        untold_costs_most: false,
        ask: false,
    });
    let mut expensive = route("/b", &[0, 1]);
    expensive.limits[0].cost = Some(Cost::Fixed(5));
    let policy = policy(
        Vec::new(),
        vec![rule("plain", Scope::Everyone), settled],
        vec![route("/a", &[0]), expensive],
    );
    assert_eq!(send("GET /a", &[]).claims(&policy), ["plain everyone 1"]);
    assert_eq!(
        send("GET /b", &[]).claims(&policy),
        ["plain everyone 5", "settled everyone 500"]
    );
}

#[test]
fn the_order_in_which_limits_are_listed_changes_no_key() {
    let rules = || vec![rule("a", by(1)), rule("b", by(0))];
    let identities = || {
        vec![
            identity("x", &["header:x"], WhenMissing::Skip),
            identity("y", &["header:y"], WhenMissing::Refuse),
        ]
    };
    let one = policy(identities(), rules(), vec![route("/**", &[0, 1])]);
    let other = policy(identities(), rules(), vec![route("/**", &[1, 0])]);
    let sent = send("GET /", &[("x", "1"), ("y", "2")]);
    let mut reversed = sent.claims(&other);
    reversed.reverse();
    assert_eq!(sent.claims(&one), reversed);
}
