//! The whole way from a request to its claims, on policies built by hand.

use std::collections::BTreeMap;

use super::callers::{Caller, Callers, parse_digest};
use super::explain::{RouteFate, SkipReason};
use super::identity::{How, WhenMissing, WhenUnknown};
use super::jwt::{Algorithm as Signature, JwtPolicy, JwtSettings};
use super::pattern::Pattern;
use super::route::{RouteLimit, Target};
use super::source::Source;
use super::*;
use crate::limit::{Algorithm, Align, Kind, Mode, OnFailover, Placement, Role, Terms, WhenDown};

/// SHA-256 of `test`.
const TEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const NOW: u64 = 1_700_000_000;

fn limit(name: &str, mode: Mode) -> Arc<Limit> {
    let terms = Terms {
        kind: Kind::TokenBucket,
        amount: 10,
        period: Micros::from_secs(60),
        burst: None,
        align: Align::default(),
        debt: 0,
        max_wait: Micros::ZERO,
        warm_up: Micros::ZERO,
        shared: false,
    };
    Arc::new(Limit {
        name: name.into(),
        index: 0,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(&terms).expect("ten a minute"),
        mode,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::Allow,
        on_failover: OnFailover::Keep,
        lease: false,
        memory: 1 << 20,
        refundable: false,
    })
}

fn rule(name: &str, scope: Scope) -> Rule {
    Rule {
        name: name.into(),
        live: limit(name, Mode::Enforce),
        tiers: Vec::new(),
        candidate: None,
        scope,
        cost: Cost::Fixed(1),
        settle: None,
        count: Count::All,
        refund_on: Vec::new(),
    }
}

fn by(identity: usize) -> Scope {
    Scope::Identities(vec![ScopePart::Identity(identity)])
}

fn by_address() -> Scope {
    Scope::Identities(vec![ScopePart::Address])
}

fn identity(name: &str, sources: &[&str], when_missing: WhenMissing) -> Identity {
    Identity {
        name: name.into(),
        sources: sources.iter().map(|text| Source::parse(text).expect("a source")).collect(),
        when_missing,
        when_unknown: WhenUnknown::Accept,
        callers: None,
        jwt: None,
    }
}

fn with_callers(mut identity: Identity, when_unknown: WhenUnknown) -> Identity {
    identity.when_unknown = when_unknown;
    identity.callers = Some(arc_swap::ArcSwap::from_pointee(acme()));
    identity
}

fn acme() -> Callers {
    let acme = Caller { name: "acme".into(), tier: Some("pro".into()) };
    Callers::new([(parse_digest(TEST).expect("a digest"), acme)]).expect("one caller")
}

fn route(pattern: &str, limits: &[usize]) -> Route {
    Route {
        name: pattern.into(),
        pattern: Pattern::parse(pattern).expect("a pattern"),
        target: Target::Echo,
        limits: limits.iter().map(|&rule| RouteLimit { rule, cost: None }).collect(),
        strip_prefix: None,
        add_prefix: None,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        refusal: None,
        body_max: None,
    }
}

fn parts(identities: Vec<Identity>, rules: Vec<Rule>, routes: Vec<Route>) -> PolicyParts {
    let nets = |text: &str| text.parse::<ipnet::IpNet>().into_iter().collect();
    PolicyParts {
        address: AddressPolicy {
            trusted_proxies: nets("10.0.0.0/8"),
            exempt: nets("203.0.113.0/24"),
            ..AddressPolicy::default()
        },
        identities,
        rules,
        upstreams: Vec::new(),
        routes,
        responses: Responses { headers: Vec::new(), reset: Reset::Seconds, body: None },
        egress: false,
        keeps_slashes: false,
    }
}

fn policy(identities: Vec<Identity>, rules: Vec<Rule>, routes: Vec<Route>) -> Policy {
    Policy::build(parts(identities, rules, routes)).expect("a policy")
}

struct Sent {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: Peer,
}

/// A request from 192.0.2.1: `GET /x` and headers.
fn send(line: &str, headers: &[(&'static str, &str)]) -> Sent {
    let (method, uri) = line.split_once(' ').expect("METHOD URI");
    let headers = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
    Sent {
        method: method.parse().expect("a method"),
        uri: uri.parse().expect("a URI"),
        headers: headers.collect(),
        peer: Peer { address: "192.0.2.1".parse().ok(), port: 1, tls: false },
    }
}

impl Sent {
    fn from(mut self, address: &str) -> Self {
        self.peer.address = address.parse().ok();
        self
    }

    fn describe<'r>(&'r self, policy: &Policy) -> Descriptor<'r> {
        policy.describe(&self.method, &self.uri, &self.headers, self.peer, None).expect("well formed")
    }

    /// What it is charged on, as `limit key cost`, shadowed ones in brackets; or why it is refused.
    fn claims(&self, policy: &Policy) -> Vec<String> {
        let request = self.describe(policy);
        let Some(matched) = policy.route(&request) else { return vec!["no route".into()] };
        let who = match policy.identify(&matched, &request, NOW) {
            Ok(who) => who,
            Err(refusal) => return vec![refusal.to_string()],
        };
        let claims = policy.claims(&matched, &who, &self.headers, Some(0));
        let words = claims.list(policy).into_iter().map(|claim| {
            let words = format!("{} {} {}", claim.limit.name, keys::words(claim.key), claim.cost);
            if claim.enforced { words } else { format!("[{words}]") }
        });
        words.collect()
    }
}

#[test]
fn each_limit_draws_from_the_bucket_of_its_scope() {
    let rules = vec![
        rule("total", Scope::Everyone),
        rule("each", by_address()),
        rule("tenant", by(0)),
        rule("both", Scope::Identities(vec![ScopePart::Identity(0), ScopePart::Address])),
    ];
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(vec![tenant], rules, vec![route("/**", &[0, 1, 2, 3])]);
    assert_eq!(
        send("GET /", &[("x-api-key", "k1")]).claims(&policy),
        ["total everyone 1", "each address 192.0.2.1 1", r#"tenant "k1" 1"#, r#"both "k1" + address 192.0.2.1 1"#,]
    );
    assert_eq!(send("GET /", &[]).claims(&policy), ["identity `tenant`: the key is missing"]);
}

#[test]
fn a_preflight_takes_the_route_of_the_request_it_asks_about() {
    let routes = vec![route("/**", &[]), route("POST /a", &[]), route("PUT /b", &[]), route("OPTIONS /b", &[])];
    let policy = policy(Vec::new(), Vec::new(), routes);
    let taken = |line: &str, headers: &[(&'static str, &str)]| {
        let sent = send(line, headers);
        policy.route(&sent.describe(&policy)).map(|matched| matched.route)
    };
    let asking = |method| [("origin", "https://a.example"), ("access-control-request-method", method)];
    assert_eq!(taken("OPTIONS /a", &asking("POST")), Some(1));
    assert_eq!(taken("OPTIONS /a", &asking("PATCH")), Some(0));
    assert_eq!(taken("OPTIONS /a", &asking("")), Some(0));
    assert_eq!(taken("OPTIONS /a", &asking("POST")[1..]), Some(0));
    assert_eq!(taken("GET /a", &asking("POST")), Some(0));
    assert_eq!(taken("OPTIONS /b", &asking("PUT")), Some(3));
}

#[test]
fn only_what_a_browser_would_ask_is_a_preflight() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(vec![tenant], vec![rule("tenant", by(0))], vec![route("/**", &[0])]);
    let asking = [("origin", "https://a.example"), ("access-control-request-method", "POST")];
    let is_preflight = |more: &[(&'static str, &str)]| {
        let sent = send("OPTIONS /a", &[&asking, more].concat());
        policy.preflight(&sent.describe(&policy)).is_some()
    };
    assert!(is_preflight(&[]));
    assert!(is_preflight(&[("content-length", "0"), ("access-control-request-headers", "x-api-key")]));
    for more in [
        ("origin", "https://b.example"),
        ("access-control-request-method", "GET"),
        ("authorization", "Bearer x"),
        ("cookie", "sid=1"),
        ("x-api-key", "k"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("x-http-method-override", "DELETE"),
    ] {
        assert!(!is_preflight(&[more]), "{more:?}");
    }
}

#[test]
fn what_looks_like_a_key_or_an_edited_field_goes() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(vec![tenant], vec![rule("tenant", by(0))], vec![route("/**", &[0])]);
    let mut headers = HeaderMap::new();
    for name in ["x_api_key", "x-api_key", "x-api-key", "x_internal", "x_tier", "x_other"] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
    }
    policy.drop_lookalikes(&mut headers);
    let (tier, remove) = (HeaderName::from_static("x-tier"), [HeaderName::from_static("x-internal")]);
    FilledEdits { remove: &remove, set: vec![(&tier, HeaderValue::from_static("pro"))] }.apply(&mut headers);
    let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["x-api-key", "x-tier", "x_other"]);
}

#[test]
fn a_missing_key_does_what_the_identity_says() {
    let routes = || vec![route("/**", &[0, 1])];
    let rules = || vec![rule("tenant", by(0)), rule("total", Scope::Everyone)];
    let with = |when_missing| {
        let cookie = identity("session", &["cookie:sid"], WhenMissing::UseAddress);
        let tenant = identity("tenant", &["header:x-api-key"], when_missing);
        policy(vec![tenant, cookie], rules(), routes())
    };
    let bare = send("GET /", &[]);
    assert_eq!(bare.claims(&with(WhenMissing::Skip)), ["total everyone 1"]);
    assert_eq!(bare.claims(&with(WhenMissing::UseAddress)), ["tenant address 192.0.2.1 1", "total everyone 1"]);
    assert_eq!(bare.claims(&with(WhenMissing::Use(1))), ["tenant address 192.0.2.1 1", "total everyone 1"]);
    // A key of the identity that stands in never shares a bucket with one of the identity asked for.
    let session = send("GET /", &[("cookie", "sid=k1")]).claims(&with(WhenMissing::Use(1)));
    assert_eq!(session, [r#"tenant session "k1" 1"#, "total everyone 1"]);
}

#[test]
fn known_callers_have_names_and_tiers_and_unknown_ones_what_the_identity_says() {
    let with = |when_unknown| {
        let tenant = with_callers(identity("tenant", &["header:x-api-key"], WhenMissing::UseAddress), when_unknown);
        let mut search = rule("search", by(0));
        search.tiers =
            vec![("pro".into(), limit("search", Mode::Enforce)), ("free".into(), limit("search", Mode::Enforce))];
        policy(vec![tenant], vec![search], vec![route("/**", &[0])])
    };
    let known = send("GET /", &[("x-api-key", "test")]);
    let made_up = send("GET /", &[("x-api-key", "acme")]);
    for when_unknown in [WhenUnknown::Refuse, WhenUnknown::UseAddress, WhenUnknown::Accept] {
        assert_eq!(known.claims(&with(when_unknown)), ["search caller acme 1"]);
    }
    assert_eq!(made_up.claims(&with(WhenUnknown::Refuse)), ["identity `tenant`: the key is not known"]);
    assert_eq!(made_up.claims(&with(WhenUnknown::UseAddress)), ["search address 192.0.2.1 1"]);
    assert_eq!(made_up.claims(&with(WhenUnknown::Accept)), [r#"search "acme" 1"#]);

    let policy = with(WhenUnknown::Accept);
    let variant = |sent: &Sent| {
        let request = sent.describe(&policy);
        let matched = policy.route(&request).expect("a route");
        let who = policy.identify(&matched, &request, NOW).expect("identified");
        policy.claims(&matched, &who, &sent.headers, None).charges()[0].limit
    };
    let pro = policy.rules[0].tiers.iter().find(|(name, _)| &**name == "pro").map(|(_, limit)| limit.index);
    assert_eq!(Some(variant(&known)), pro);
    assert_eq!(variant(&made_up), policy.rules[0].live.index);
    assert!(policy.limits.iter().enumerate().all(|(index, limit)| limit.index == index));

    policy.identities[0].replace_callers(Callers::default());
    assert_eq!(known.claims(&policy), [r#"search "test" 1"#]);
}

#[test]
fn composites_path_segments_and_verified_claims_make_keys() {
    let mut user = identity("user", &["jwt:sub"], WhenMissing::UseAddress);
    let secret = b"0123456789abcdef0123456789abcdef";
    let settings = JwtSettings { algorithms: vec![Signature::HS256], ..JwtSettings::default() };
    user.jwt = Some(JwtPolicy::new(settings, secret).expect("a secret"));
    let both = identity("both", &["path:id", "query:key", "address"], WhenMissing::Refuse);
    let rules = vec![rule("user", by(0)), rule("both", by(1))];
    let policy = policy(vec![user, both], rules, vec![route("/u/{id}", &[0, 1])]);
    let key = jsonwebtoken::EncodingKey::from_secret(secret);
    let token = |exp: u64| {
        let claims = BTreeMap::from([("sub", serde_json::json!("u1")), ("exp", serde_json::json!(exp))]);
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a token")
    };
    let claims =
        |authorization: &str| send("GET /u/7%20a?key=x%2cy", &[("authorization", authorization)]).claims(&policy);
    let [user, both] = claims(&format!("Bearer {}", token(NOW + 9))).try_into().expect("two claims");
    assert_eq!(user, r#"user "u1" 1"#);
    assert_eq!(both, r#"both "7 a" + "x,y" + "192.0.2.1" 1"#);
    assert_eq!(claims("Basic eDp5")[0], "user address 192.0.2.1 1");
    // An invalid token is refused; it is not a missing one that the address could stand in for.
    assert_eq!(claims("Bearer junk"), ["identity `user`: the token is refused: not a signed token"]);
    let expired = format!("Bearer {}", token(NOW));
    assert_eq!(claims(&expired), ["identity `user`: the token is refused: expired, or without an expiry"]);
}

#[test]
fn a_key_given_twice_is_malformed_not_missing() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Skip);
    let policy = policy(vec![tenant], vec![rule("tenant", by(0))], vec![route("/**", &[0])]);
    let twice = send("GET /", &[("x-api-key", "a"), ("x-api-key", "b")]);
    let request = twice.describe(&policy);
    let matched = policy.route(&request).expect("a route");
    let refusal = policy.identify(&matched, &request, NOW).err().map(|refusal| refusal.reason);
    assert_eq!(refusal, Some(IdentityReason::Ambiguous));
    assert!(refusal.is_some_and(IdentityReason::is_malformed));
}

#[test]
fn exempt_callers_draw_from_nothing_but_must_still_say_who_they_are() {
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(vec![tenant], vec![rule("tenant", by(0))], vec![route("/**", &[0])]);
    let empty: [&str; 0] = [];
    assert_eq!(send("GET /", &[("x-api-key", "k")]).from("203.0.113.9").claims(&policy), empty);
    let forwarded = [("x-api-key", "k"), ("x-forwarded-for", "203.0.113.9")];
    assert_eq!(send("GET /", &forwarded).from("10.0.0.1").claims(&policy), empty);
    assert_eq!(send("GET /", &forwarded).claims(&policy), [r#"tenant "k" 1"#]);
    assert_eq!(send("GET /", &[]).from("203.0.113.9").claims(&policy), ["identity `tenant`: the key is missing"]);
}

#[test]
fn modes_candidates_and_shares_decide_what_is_enforced() {
    let mut rules =
        vec![rule("on", by_address()), rule("shadow", by_address()), rule("off", by(0)), rule("some", by_address())];
    rules[0].candidate = Some(limit("on", Mode::Shadow));
    rules[1].live = limit("shadow", Mode::Shadow);
    // Its identity would refuse: but a limit that is off is not looked at.
    rules[2].live = limit("off", Mode::Off);
    rules[2].candidate = Some(limit("off", Mode::Enforce));
    Arc::make_mut(&mut rules[3].live).enforce_for = 5_000;
    let tenant = identity("tenant", &["header:x-api-key"], WhenMissing::Refuse);
    let policy = policy(vec![tenant], rules, vec![route("/**", &[0, 1, 2, 3])]);
    let claims = send("GET /", &[]).claims(&policy);
    assert_eq!(claims[..3], ["on address 192.0.2.1 1", "[on address 192.0.2.1 1]", "[shadow address 192.0.2.1 1]"]);
    let enforced =
        (0..200_u8).filter(|n| !send("GET /", &[]).from(&format!("192.0.2.{n}")).claims(&policy)[3].starts_with('['));
    assert!((70..130).contains(&enforced.count()));
}

#[test]
fn a_cost_comes_from_where_the_limit_or_route_says() {
    let from_header = Cost::Header { name: HeaderName::from_static("x-cost"), default: 3, least: 2, most: 50 };
    let cost = |values: &[&str]| {
        let headers: Vec<_> = values.iter().map(|value| ("x-cost", *value)).collect();
        from_header.units(&send("GET /", &headers).headers, None)
    };
    for (values, expected) in [
        (&[][..], 3),
        (&["7"], 7),
        (&["0"], 2),
        (&["51"], 50),
        (&["99999999999999999999999"], 50),
        (&["-1"], 3),
        (&["1e3"], 3),
        (&[""], 3),
        (&["5", "9"], 9),
    ] {
        assert_eq!(cost(values), expected, "{values:?}");
    }
    let by_length = Cost::ContentLength { per: 1000, least: 1, most: 9 };
    let units = |body| by_length.units(&HeaderMap::new(), body);
    assert_eq!([units(Some(0)), units(Some(1001)), units(Some(1 << 40)), units(None)], [1, 2, 9, 9]);

    let mut settled = rule("settled", Scope::Everyone);
    settled.settle = Some(Settle { from: SettleFrom::Bytes { per: 1 }, estimate: 500, most: 1000 });
    let mut expensive = route("/b", &[0, 1]);
    expensive.limits[0].cost = Some(Cost::Fixed(5));
    let policy = policy(Vec::new(), vec![rule("plain", Scope::Everyone), settled], vec![route("/a", &[0]), expensive]);
    assert_eq!(send("GET /a", &[]).claims(&policy), ["plain everyone 1"]);
    assert_eq!(send("GET /b", &[]).claims(&policy), ["plain everyone 5", "settled everyone 500"]);
}

#[test]
fn the_order_in_which_limits_are_listed_changes_no_key() {
    let rules = || vec![rule("a", by(1)), rule("b", by(0))];
    let identities =
        || vec![identity("x", &["header:x"], WhenMissing::Skip), identity("y", &["header:y"], WhenMissing::Refuse)];
    let one = policy(identities(), rules(), vec![route("/**", &[0, 1])]);
    let other = policy(identities(), rules(), vec![route("/**", &[1, 0])]);
    let sent = send("GET /", &[("x", "1"), ("y", "2")]);
    let mut reversed = sent.claims(&other);
    reversed.reverse();
    assert_eq!(sent.claims(&one), reversed);
}

#[test]
fn templates_are_filled_from_the_request() {
    let tenant = with_callers(identity("tenant", &["header:x-api-key"], WhenMissing::Skip), WhenUnknown::Accept);
    let mut edited = route("example.com/{id}", &[0]);
    let template = |text| Template::parse(text, |name| (name == "tenant").then_some(0)).expect("a template");
    edited.request_headers.set = vec![
        (HeaderName::from_static("x-who"), template("{caller}/{tier}/{identity:tenant}")),
        (HeaderName::from_static("x-where"), template("{host} {path:id} {address} {route}")),
    ];
    edited.request_headers.remove = vec![HeaderName::from_static("x-api-key")];
    let policy = policy(vec![tenant], vec![rule("a", by(0))], vec![edited]);
    let filled = |key: &str| {
        let mut sent = send("GET http://EXAMPLE.com/a%20b", &[("x-api-key", key)]);
        let headers = sent.headers.clone();
        let request = policy.describe(&sent.method, &sent.uri, &headers, sent.peer, None).expect("well formed");
        let matched = policy.route(&request).expect("a route");
        let who = policy.identify(&matched, &request, NOW).expect("identified");
        policy.edits(&policy.routes[0].request_headers, &matched, &who, &request).apply(&mut sent.headers);
        assert!(!sent.headers.contains_key("x-api-key"));
        (sent.headers["x-who"].clone(), sent.headers["x-where"].clone())
    };
    assert_eq!(filled("test").0, "acme/pro/acme");
    assert_eq!(filled("k2").0, "//k2");
    assert_eq!(filled("k2").1, "example.com a b 192.0.2.1 example.com/{id}");
}

#[test]
fn everything_wrong_with_the_parts_is_said_at_once() {
    let identities = vec![
        identity("loop", &["address"], WhenMissing::Use(1)),
        identity("back", &["path:id"], WhenMissing::Use(0)),
        with_callers(identity("pair", &["bearer", "address"], WhenMissing::Skip), WhenUnknown::Accept),
        identity("nobody", &[], WhenMissing::Skip),
        identity("user", &["jwt:sub"], WhenMissing::Skip),
    ];
    let mut edited = route("/d", &[99]);
    edited.response_headers.set =
        vec![(HeaderName::from_static("x"), Template::parse("{path:no}", |_| None).expect("a template"))];
    let many: Vec<Rule> =
        (0..18).map(|n| rule(&format!("r{n}"), if n == 0 { by(0) } else { Scope::Everyone })).collect();
    let routes = vec![
        route("/a/{x}", &[0]),
        route("/a/{y}", &[1, 1]),
        route("/c", &(1..18).collect::<Vec<_>>()),
        edited,
        route("/e/**", &[]),
        route("/e", &[]),
        route("/e/{x}/**", &[]),
    ];
    let errors = Policy::build(parts(identities, many, routes)).err().unwrap_or_default();
    let expected = [
        BuildError::IdentityCycle { identity: 0 },
        BuildError::IdentityCycle { identity: 1 },
        BuildError::CallersOfComposite { identity: 2 },
        BuildError::Sources { identity: 3 },
        BuildError::UnverifiedToken { identity: 4 },
        BuildError::UnknownCapture { route: 0, identity: 1, name: "id".into() },
        BuildError::LimitTwice { route: 1, rule: 1 },
        BuildError::TooManyClaims { route: 2, claims: 17 },
        BuildError::Dangling { route: 3, what: "limit 99".into() },
        BuildError::TemplateCapture { route: 3, name: "no".into() },
        BuildError::Tie { first: 0, second: 1 },
        BuildError::Unreachable { route: 4, by: vec![5, 6] },
    ];
    assert_eq!(errors, expected);
}

#[test]
fn an_explanation_tells_the_whole_story() {
    let tenant = with_callers(identity("tenant", &["header:x-api-key"], WhenMissing::Use(1)), WhenUnknown::Refuse);
    let session = identity("session", &["cookie:sid", "address"], WhenMissing::Skip);
    let mut search = rule("search", by(0));
    search.tiers = vec![("pro".into(), limit("search", Mode::Enforce))];
    search.candidate = Some(limit("search", Mode::Shadow));
    let mut off = rule("off", Scope::Everyone);
    off.live = limit("off", Mode::Off);
    let routes = vec![
        route("/v1/{index}", &[0, 1]),
        route("/**", &[]),
        route("POST /v1/x", &[]),
        route("other/**", &[]),
        route("/v2", &[]),
    ];
    let policy = policy(vec![tenant, session], vec![search, off], routes);
    let explain = |headers: &[(&'static str, &str)]| {
        let sent = send("GET /v1//%78", headers);
        policy.explain(&sent.describe(&policy), NOW, None)
    };
    let told = explain(&[("x-api-key", "test")]);
    assert_eq!(told.path, "/v1/x");
    assert_eq!(
        told.routes,
        [RouteFate::Taken, RouteFate::LessSpecific, RouteFate::Method, RouteFate::Host, RouteFate::Path,]
    );
    assert_eq!(told.taken, Some((0, vec![("index".into(), "x".into())])));
    assert_eq!(told.tier.as_deref(), Some("pro"));
    assert_eq!(told.identities[0].outcome, Ok(How::Known));
    let limits: Vec<_> =
        told.limits.iter().map(|l| (l.limit, l.candidate, l.enforced, l.skipped, l.key.as_str())).collect();
    assert_eq!(
        limits,
        [
            (1, false, true, None, "caller acme"),
            (2, true, false, None, "caller acme"),
            (3, false, false, Some(SkipReason::Off), ""),
        ]
    );
    let told = explain(&[]);
    let steps: Vec<_> = told.identities[0].steps.iter().map(|step| step.sources.clone()).collect();
    assert_eq!(
        steps,
        [
            vec![("header:x-api-key".to_owned(), Ok(None))],
            vec![("cookie:sid".to_owned(), Ok(None)), ("address".to_owned(), Ok(Some("192.0.2.1".to_owned())))],
        ]
    );
    assert_eq!(told.identities[0].outcome, Ok(How::Skipped));
    assert_eq!(told.limits[0].skipped, Some(SkipReason::Identity));
    let told = explain(&[("x-api-key", "made up")]);
    assert_eq!(told.refusal.map(|refusal| refusal.reason), Some(IdentityReason::Unknown));
}

#[test]
fn an_underscore_is_found_wherever_it_stands() {
    for length in 0..20 {
        assert!(!has_underscore(&vec![b'-'; length]), "{length}");
        for place in 0..length {
            let mut name = vec![b'a'; length];
            name[place] = b'_';
            assert!(has_underscore(&name), "{place} of {length}");
        }
    }
}
