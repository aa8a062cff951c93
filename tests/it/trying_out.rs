//! Numbers tried out on live traffic: candidates, shares of keys, limits that are off.

use crate::harness::{Gateway, Upstream};

#[test]
fn a_candidate_is_judged_beside_the_live_limit_and_refuses_no_request() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited(
        "rate = \"3/hour\"\nburst = 3\ncandidate = { rate = \"1/hour\", burst = 1 }",
        &upstream,
    ));
    let statuses: Vec<u16> = (0..4)
        .map(|_| gateway.request("GET", "/", &[("x-user", "a")]).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let metrics = gateway.admin_get("/metrics").text();
    for (agreement, count) in [
        ("both_allow", 1),
        ("only_candidate_refuses", 2),
        ("both_refuse", 1),
        ("only_live_refuses", 0),
    ] {
        let line = format!(
            "tollgate_limit_candidate_total{{limit=\"it\",agreement=\"{agreement}\"}} {count}"
        );
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    let answer = gateway.request("GET", "/", &[("x-user", "b")]);
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some("\"it\";q=3;w=3600"),
        "callers learn of the live one only"
    );
}

#[test]
fn a_share_of_the_keys_is_enforced_and_always_the_same() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited(
        "rate = \"1/hour\"\nburst = 1\nenforce_for = \"50% of keys\"",
        &upstream,
    ));
    let mut enforced = 0;
    for user in 0..60 {
        let user = format!("user-{user}");
        let ask = || gateway.request("GET", "/", &[("x-user", &user)]);
        assert_eq!(ask().status, 200);
        let second = ask();
        assert_eq!(ask().status, second.status, "{user} stays on its side");
        assert_eq!(
            second.header("ratelimit").is_some(),
            second.status == 429,
            "who is not limited is told of no limit"
        );
        enforced += u32::from(second.status == 429);
    }
    // Sixty fair coins: beyond these bounds once in fifty million times.
    assert!((9..=51).contains(&enforced), "{enforced} of 60");
}

#[test]
fn a_limit_that_is_off_does_nothing() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited(
        "rate = \"1/hour\"\nburst = 1\nmode = \"off\"",
        &upstream,
    ));
    for _ in 0..3 {
        let answer = gateway.request("GET", "/", &[("x-user", "a")]);
        assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
    }
}

fn limited(numbers: &str, upstream: &Upstream) -> String {
    format!(
        "[identities.user]\nkey = [\"header:x-user\"]\nwhen_missing = \"refuse\"\n\
         [limits.it]\n{numbers}\nper = \"user\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
        upstream.url()
    )
}
