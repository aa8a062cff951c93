//! The explanation of a request, as `tollgate explain` prints it.

use super::fixtures::{NOW, by, identity, limit, policy, route, rule, send, with_callers};
use crate::explain::{RouteFate, SkipReason};
use crate::identity::{How, WhenMissing, WhenUnknown};
use crate::{IdentityReason, Scope};
use tollgate_limit::Mode;

#[test]
fn explanation_has_every_step() {
    let tenant = with_callers(
        identity("tenant", &["header:x-api-key"], WhenMissing::Use(1)),
        WhenUnknown::Refuse,
    );
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
        [
            RouteFate::Taken,
            RouteFate::LessSpecific,
            RouteFate::Method,
            RouteFate::Host,
            RouteFate::Path,
        ]
    );
    assert_eq!(told.taken, Some((0, vec![("index".into(), "x".into())])));
    assert_eq!(told.tier.as_deref(), Some("pro"));
    assert_eq!(told.identities[0].outcome, Ok(How::Known));
    let limits: Vec<_> = told
        .limits
        .iter()
        .map(|l| (l.limit, l.candidate, l.enforced, l.skipped, l.key.as_str()))
        .collect();
    assert_eq!(
        limits,
        [
            (1, false, true, None, "caller acme"),
            (2, true, false, None, "caller acme"),
            (3, false, false, Some(SkipReason::Off), ""),
        ]
    );
    let told = explain(&[]);
    let steps: Vec<_> = told.identities[0]
        .steps
        .iter()
        .map(|step| step.sources.clone())
        .collect();
    assert_eq!(
        steps,
        [
            vec![("header:x-api-key".to_owned(), Ok(None))],
            vec![
                ("cookie:sid".to_owned(), Ok(None)),
                ("address".to_owned(), Ok(Some("192.0.2.1".to_owned())))
            ],
        ]
    );
    assert_eq!(told.identities[0].outcome, Ok(How::Skipped));
    assert_eq!(told.limits[0].skipped, Some(SkipReason::Identity));
    let told = explain(&[("x-api-key", "made up")]);
    assert_eq!(
        told.refusal.map(|refusal| refusal.reason),
        Some(IdentityReason::Unknown)
    );
}
