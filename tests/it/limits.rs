//! Limits over HTTP: what is admitted, what a refusal says, and that it keeps its word.

use std::time::Duration;

use crate::harness::{Gateway, Reply, Upstream};

#[test]
fn limit_refused_request_is_admitted_at_its_retry_time() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&one_limit("rate = \"2/minute\"\nburst = 2", &upstream));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/").status, 200);
    let refused = gateway.get("/");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("30"));
    assert_eq!(
        upstream.seen().len(),
        2,
        "a refused request never reaches the upstream"
    );
    let wait = refused.json()["retry_after_ms"]
        .as_u64()
        .expect("milliseconds");
    assert_eq!(wait, 30_000);
    gateway.advance(Duration::from_millis(wait) - Duration::from_micros(1));
    assert_eq!(gateway.get("/").status, 429, "a microsecond too early");
    gateway.advance(Duration::from_micros(1));
    assert_eq!(gateway.get("/").status, 200, "the header keeps its word");
}

#[test]
fn limit_refusal_names_the_limit_and_is_not_cached() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&one_limit("rate = \"1/minute\"\nburst = 1", &upstream));
    let first = gateway.get("/");
    assert!(
        first
            .header("ratelimit")
            .is_some_and(|field| field.contains("r=0")),
        "{first:?}"
    );
    assert!(
        first
            .header("ratelimit-policy")
            .is_some_and(|field| field.contains("\"per_caller\"")),
        "{first:?}"
    );
    assert_eq!(first.header("retry-after"), None);
    let refused = gateway.get("/");
    assert_eq!(
        refused.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    let problem = refused.json();
    assert!(
        problem["type"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("quota-exceeded")),
        "{problem}"
    );
    assert_eq!(problem["violated-policies"][0], "per_caller");
    assert_eq!(problem["status"], 429);
}

#[test]
fn all_limits_of_a_request_are_charged_or_none() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.tight]\nrate = \"1/minute\"\nburst = 1\nper = \"address\"\n\
         [limits.wide]\nrate = \"3/minute\"\nburst = 3\nper = \"address\"\n\
         [[routes]]\nmatch = \"/both\"\nupstream = \"{url}\"\nlimits = [\"wide\", \"tight\"]\n\
         [[routes]]\nmatch = \"/wide\"\nupstream = \"{url}\"\nlimits = [\"wide\"]\n",
        url = upstream.url()
    ));
    assert_eq!(gateway.get("/both").status, 200);
    for _ in 0..5 {
        assert_eq!(gateway.get("/both").status, 429, "tight refuses");
    }
    // Had the refusals cost anything of wide, these would not pass.
    assert_eq!(gateway.get("/wide").status, 200);
    assert_eq!(gateway.get("/wide").status, 200);
    assert_eq!(gateway.get("/wide").status, 429);
}

#[test]
fn callers_have_buckets_of_their_own_and_tiers_other_numbers() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\n\
         [identities.tenant.callers]\n\
         \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = {{ name = \"acme\", tier = \"pro\" }}\n\
         \"sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752\" = {{ name = \"small\" }}\n\
         [tiers.pro]\nper_tenant = {{ rate = \"3/minute\", burst = 3 }}\n\
         [limits.per_tenant]\nrate = \"1/minute\"\nburst = 1\nper = \"tenant\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"per_tenant\"]\n",
        upstream.url()
    ));
    let ask = |key: &str| gateway.request("GET", "/", &[("x-api-key", key)]).status;
    assert_eq!(
        [ask("test"), ask("test"), ask("test"), ask("test")],
        [200, 200, 200, 429],
        "acme is pro"
    );
    assert_eq!(
        [ask("test2"), ask("test2")],
        [200, 429],
        "small has a bucket of its own"
    );
    assert_eq!(ask("made-up"), 401, "a made-up key is no fresh bucket");
    assert_eq!(gateway.get("/").status, 401);
}

#[test]
fn shadow_counts_and_never_refuses() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&one_limit(
        "rate = \"1/minute\"\nburst = 1\nmode = \"shadow\"",
        &upstream,
    ));
    for _ in 0..4 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let metrics = gateway.admin_get("/metrics").text();
    let line = "tollgate_limit_decisions_total{limit=\"per_caller\",outcome=\"shadow_deny\"} 3";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn limit_in_flight_place_is_free_at_the_end_of_the_response() {
    let upstream = Upstream::start(|seen| match seen.line().contains("/slow") {
        true => Reply::Silence,
        false => Reply::ok("done"),
    });
    let gateway = Gateway::start(&format!(
        "[limits.jobs]\nin_flight = 1\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"jobs\"]\n",
        upstream.url()
    ));
    assert_eq!(gateway.get("/quick").status, 200);
    let mut held = gateway.connect();
    held.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    crate::harness::eventually("the slow request is there", || upstream.seen().len() == 2);
    let refused = gateway.get("/quick");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, None),
        "there is no such time"
    );
    drop(held);
    crate::harness::eventually("the place is free again", || {
        gateway.get("/quick").status == 200
    });
}

#[test]
fn limit_adaptive_refuses_with_503_while_the_upstream_fails() {
    let upstream = Upstream::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/slow") => Reply::Silence,
        Some("/sick") => Reply::new(503, &[], "no"),
        _ => Reply::ok("done"),
    });
    let gateway = Gateway::start(&format!(
        "[limits.jobs]\nin_flight = \"adaptive\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"jobs\"]\n",
        upstream.url()
    ));
    for _ in 0..60 {
        assert_eq!(gateway.get("/sick").status, 503, "the upstream's own");
        gateway.advance(Duration::from_millis(150));
    }
    let asked = upstream.seen().len();
    let mut held = gateway.connect();
    held.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    crate::harness::eventually("the slow request is there", || {
        upstream.seen().len() == asked + 1
    });
    assert_eq!(
        gateway.get("/quick").status,
        503,
        "one at a time is all it takes now"
    );
    assert_eq!(
        upstream.seen().len(),
        asked + 1,
        "what is shed never reaches the upstream"
    );
    drop(held);
    crate::harness::eventually("the place is free again", || {
        gateway.get("/quick").status == 200
    });
}

#[test]
fn every_algorithm_of_the_file_keeps_its_word() {
    for algorithm in [
        "algorithm = \"token_bucket\"",
        "algorithm = \"token_bucket\"\nburst = 1\ndebt = 1",
        "algorithm = \"interval\"",
        "algorithm = \"fixed_window\"",
        "algorithm = \"fixed_window\"\nwindow = { align = \"clock\" }",
        "algorithm = \"sliding_window\"",
        "algorithm = \"sliding_log\"",
    ] {
        let upstream = Upstream::hello();
        let gateway = Gateway::start(&one_limit(
            &format!("rate = \"2/minute\"\n{algorithm}"),
            &upstream,
        ));
        let mut admitted = 0;
        let refused = loop {
            let answer = gateway.get("/");
            match answer.status {
                200 => admitted += 1,
                _ => break answer,
            }
            assert!(admitted <= 4, "{algorithm}: no end");
        };
        assert!(admitted >= 1, "{algorithm}");
        assert_eq!(refused.status, 429, "{algorithm}");
        let wait = refused.json()["retry_after_ms"]
            .as_u64()
            .expect("milliseconds");
        assert!((1..=120_000).contains(&wait), "{algorithm}: {wait}");
        gateway.advance(Duration::from_millis(wait));
        assert_eq!(gateway.get("/").status, 200, "{algorithm} after {wait} ms");
        assert_eq!(upstream.seen().len(), admitted + 1, "{algorithm}");
    }
}

fn one_limit(numbers: &str, upstream: &Upstream) -> String {
    format!(
        "[limits.per_caller]\n{numbers}\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"per_caller\"]\n",
        upstream.url()
    )
}
