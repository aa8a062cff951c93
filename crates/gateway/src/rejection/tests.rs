use http_body_util::BodyExt;

use super::*;
use crate::headers::HeaderSet;
use http::{Method, Request, Version};
use tollgate_policy::identity::IdentityReason;
use tollgate_response::write_headers;

fn denied() -> Rejection {
    Rejection::Denied(Refused {
        violated: [Arc::from("per \"minute\""), Arc::from("daily")]
            .into_iter()
            .collect(),
        retry_after: Some(Micros(1_234_567)),
        ..Refused::default()
    })
}

fn asked_of(request: &Request<()>) -> Asked {
    let takes_lines = request.version() < http::Version::HTTP_2;
    Asked::of(
        request,
        HeaderSet::of(request.headers()).decides_form(),
        takes_lines,
    )
}

fn asked(fields: &[(&str, &str)]) -> Asked {
    let mut builder = Request::builder();
    for (name, value) in fields {
        builder = builder.header(*name, *value);
    }
    asked_of(&builder.body(()).expect("a request"))
}

async fn text(response: Response<ResponseBody>) -> String {
    let bytes = response
        .into_body()
        .collect()
        .await
        .expect("bytes at hand")
        .to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test]
async fn a_denial_says_when_to_come_back_and_why() {
    let response = denied().response(&asked(&[]), None, "4f2a");
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "2");
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let json: serde_json::Value = serde_json::from_str(&text(response).await).expect("JSON");
    assert_eq!(
        json["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(json["status"], 429);
    assert_eq!(
        json["violated-policies"],
        serde_json::json!(["per \"minute\"", "daily"])
    );
    assert_eq!(json["retry_after_ms"], 1235);
    assert_eq!(json["decision_id"], "4f2a");
}

#[tokio::test]
async fn refusal_of_a_used_up_budget_is_402_and_resource_exhausted_in_grpc() {
    let wait = Some(Micros::from_secs(86_400 * 20));
    for (never_fits, retry_after, words) in [
        (false, wait, "A retry after the time given is admitted."),
        (false, None, "the largest number of concurrent requests"),
        (true, None, "more than the budget can ever grant"),
    ] {
        let spent = Rejection::Denied(Refused {
            never_fits,
            retry_after,
            budget: true,
            ..Refused::default()
        });
        assert_eq!(spent.label(), "budget_exhausted");
        let response = spent.response(&asked(&[]), None, "4f2a");
        assert_eq!(response.status(), 402);
        let wait = response.headers().get("retry-after").cloned();
        assert_eq!(wait.is_some(), retry_after.is_some());
        assert!(wait.is_none_or(|wait| wait == "1728000"));
        let json: serde_json::Value = serde_json::from_str(&text(response).await).expect("JSON");
        assert_eq!(json["type"], "urn:problem-type:tollgate:budget-exhausted");
        assert_eq!(json["status"], 402);
        let detail = json["detail"].as_str().expect("a sentence");
        assert!(detail.contains(words), "{detail}");
        let grpc = asked(&[("content-type", "application/grpc")]);
        let response = spent.response(&grpc, None, "");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "8");
        assert_eq!(response.headers()["grpc-message"], detail);
    }
}

#[test]
fn refusal_of_a_blocked_caller_stays_429_beside_a_used_up_budget() {
    let refused = Refused {
        blocked: true,
        budget: true,
        ..Refused::default()
    };
    assert_eq!(
        (refused.label(), refused.problem().status.as_u16()),
        ("blocked", 429)
    );
}

#[test]
fn retry_after_is_never_zero_and_absent_where_no_time_is_known() {
    let soon = Rejection::Denied(Refused {
        retry_after: Some(Micros(1)),
        ..Refused::default()
    });
    assert_eq!(
        soon.response(&asked(&[]), None, "").headers()["retry-after"],
        "1"
    );
    let never = Rejection::Denied(Refused {
        never_fits: true,
        retry_after: Some(Micros(1)),
        ..Refused::default()
    });
    assert!(
        !never
            .response(&asked(&[]), None, "")
            .headers()
            .contains_key("retry-after")
    );
    let busy = Rejection::Denied(Refused::default());
    assert!(
        !busy
            .response(&asked(&[]), None, "")
            .headers()
            .contains_key("retry-after")
    );
}

#[tokio::test]
async fn rejection_of_a_grpc_call_has_a_grpc_status() {
    let grpc = asked(&[("content-type", "application/grpc+proto")]);
    let response = denied().response(&grpc, None, "");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc+proto");
    assert_eq!(response.headers()["grpc-status"], "8");
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1235");
    assert_eq!(text(response).await, "");
    let never = Rejection::Denied(Refused {
        never_fits: true,
        ..Refused::default()
    });
    assert_eq!(
        never.response(&grpc, None, "").headers()["grpc-retry-pushback-ms"],
        "-1"
    );
    let down = Rejection::Upstream(ForwardError::ConnectTimeout);
    assert_eq!(
        down.response(&grpc, None, "").headers()["grpc-status"],
        "14"
    );
}

#[test]
fn a_refused_connect_is_never_a_success() {
    let request = |method: Method| {
        Request::builder()
            .method(method)
            .header("content-type", "application/grpc")
            .body(())
    };
    let answered = |method: Method| {
        denied()
            .response(&asked_of(&request(method).expect("a request")), None, "")
            .status()
    };
    assert_eq!(
        answered(Method::CONNECT),
        429,
        "a 2xx would open the tunnel"
    );
    assert_eq!(answered(Method::POST), 200);
}

#[test]
fn a_browser_may_read_a_refusal() {
    let response = denied().response(&asked(&[("origin", "https://a.example")]), None, "");
    assert_eq!(
        response.headers()["access-control-allow-origin"],
        "https://a.example"
    );
    let exposed = response.headers()["access-control-expose-headers"]
        .to_str()
        .expect("text");
    assert!(exposed.contains("Retry-After") && exposed.contains("RateLimit-Policy"));
    assert_eq!(response.headers()["vary"], "Origin");
    assert_eq!(
        response.headers()["access-control-allow-credentials"],
        "true"
    );
    let refusal = IdentityRefusal {
        identity: "user".into(),
        reason: IdentityReason::Missing,
    };
    let unknown = Rejection::Unidentified {
        refusal,
        challenge: None,
    };
    let response = unknown.response(&asked(&[("origin", "https://a.example")]), None, "");
    assert_eq!(
        response.headers()["access-control-allow-origin"],
        "https://a.example"
    );
    assert!(
        !response
            .headers()
            .contains_key("access-control-allow-credentials"),
        "no word on who is logged in"
    );
    assert!(
        !denied()
            .response(&asked(&[]), None, "")
            .headers()
            .contains_key("access-control-allow-origin")
    );
}

#[tokio::test]
async fn a_body_of_the_files_own_is_filled_and_escaped() {
    let content_type = HeaderValue::from_static("application/json");
    let own = Form::Template(
        &content_type,
        "{\"error\": \"{limits}\", \"wait\": {retry_after}, \"x\": \"{odd}\"}",
    );
    let response = denied().response(&asked(&[]), Some(own), "");
    assert_eq!(response.headers()["content-type"], "application/json");
    let json: serde_json::Value = serde_json::from_str(&text(response).await).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({"error": "per \"minute\", daily", "wait": 2, "x": "{odd}"})
    );
    // What no limit refuses keeps its problem document.
    let missing = Rejection::NoRoute.response(&asked(&[]), Some(own), "");
    assert_eq!(
        missing.headers()["content-type"],
        "application/problem+json"
    );
}

#[tokio::test]
async fn refusal_body_json_unknown_time_is_null_or_an_empty_string() {
    let busy = Rejection::Denied(Refused::default());
    let [json_type, plain_type] = ["application/json", "text/plain"].map(HeaderValue::from_static);
    let json = r#"{"s": {retry_after}, "ms": {retry_after_ms}, "say\"s": "in {retry_after} s"}"#;
    let own = Form::Template(&json_type, json);
    let busy_json = text(busy.response(&asked(&[]), Some(own), "")).await;
    assert_eq!(busy_json, r#"{"s": null, "ms": null, "say\"s": "in  s"}"#);
    serde_json::from_str::<serde_json::Value>(&busy_json).expect("JSON");
    let known = text(denied().response(&asked(&[]), Some(own), "")).await;
    assert_eq!(known, r#"{"s": 2, "ms": 1235, "say\"s": "in 2 s"}"#);
    let plain = Form::Template(&plain_type, "wait {retry_after}");
    assert_eq!(
        text(busy.response(&asked(&[]), Some(plain), "")).await,
        "wait "
    );
}

#[tokio::test]
async fn head_gets_no_body_and_malformed_requests_lose_their_connection() {
    let mut request = Request::new(());
    *request.method_mut() = Method::HEAD;
    let response = Rejection::NoRoute.response(&asked_of(&request), None, "");
    assert_eq!(response.status(), 404);
    assert_eq!(text(response).await, "");
    let malformed = Rejection::from(Malformed::TransferEncoding).response(&asked(&[]), None, "");
    assert_eq!(malformed.headers()["connection"], "close");
    let mut request = Request::new(());
    *request.version_mut() = Version::HTTP_2;
    let over_http2 = Rejection::from(Malformed::Host).response(&asked_of(&request), None, "");
    assert!(!over_http2.headers().contains_key("connection"));
}

#[tokio::test]
async fn every_problem_is_json() {
    for rejection in [
        Rejection::Malformed(Malformed::Host),
        Rejection::Unmatchable(tollgate_policy::Malformed::AboveRoot),
        Rejection::NoRoute,
        Rejection::TooBig,
        Rejection::StoreDown {
            limit: Arc::from("l"),
        },
        Rejection::Overloaded,
        Rejection::Upstream(ForwardError::Closed),
        Rejection::Upstream(ForwardError::ResponseTimeout),
        Rejection::Upstream(ForwardError::ClientDeadline),
        Rejection::Internal,
    ] {
        let response = rejection.response(&asked(&[]), None, "1");
        let status = response.status().as_u16();
        let json: serde_json::Value = serde_json::from_str(&text(response).await).expect("JSON");
        assert_eq!(json["status"], status);
        assert!(
            json["title"].is_string() && json["type"].is_string() && json["detail"].is_string()
        );
    }
}

#[tokio::test]
async fn without_a_table_a_refusal_is_byte_for_byte_the_same() {
    let of = |name: &str, retry_after, never_fits, budget| {
        let violated = [Arc::from(name)].into_iter().collect();
        Rejection::Denied(Refused {
            violated,
            retry_after,
            never_fits,
            budget,
            ..Refused::default()
        })
    };
    let one = |name: &str, retry_after, never_fits| of(name, retry_after, never_fits, false);
    let plain = HeaderValue::from_static("text/plain");
    let own = Form::Template(&plain, "in {retry_after} s: {limits}");
    let mut bare = 0;
    for (rejection, limit) in [
        (of("month", Some(Micros(7)), false, true), Some("month")),
        (of("month", Some(Micros(7)), true, true), Some("month")),
        (
            one("minute", Some(Micros(1_234_567)), false),
            Some("minute"),
        ),
        (
            one("per \"minute\"\u{e4}\n", Some(Micros(u64::MAX)), false),
            Some("per \"minute\"\u{e4}\n"),
        ),
        (one("minute", Some(Micros(0)), false), Some("minute")),
        (one("minute", None, false), Some("minute")),
        (one("minute", Some(Micros(7)), true), Some("minute")),
        (denied(), None),
        (Rejection::Overloaded, None),
        (Rejection::Overloaded, Some("shed")),
        (Rejection::NoRoute, None),
        (
            Rejection::StoreDown {
                limit: Arc::from("l"),
            },
            None,
        ),
    ] {
        let asked = asked(&[]);
        let budget = matches!(&rejection, Rejection::Denied(refused) if refused.budget);
        let prepared = limit.map(|limit| Denial::by(limit, budget));
        for own in [None, Some(own)] {
            let id = "00c0ffee00c0ffee";
            let general = rejection.response(&asked, own, id);
            let without = rejection.response_without_table(&asked, own, prepared.as_ref(), id);
            let Some((response, content_type)) = without else {
                assert!(
                    matches!(rejection, Rejection::NoRoute | Rejection::StoreDown { .. }),
                    "{rejection:?}"
                );
                continue;
            };
            bare += 1;
            assert_eq!(response.status(), general.status());
            assert!(response.headers().is_empty());
            let mut out = Vec::new();
            write_headers(&mut out, &content_type, rejection.retry_after());
            let mut expected = Vec::new();
            tollgate_http1::head::write_fields(&mut expected, general.headers());
            assert_eq!(
                out.escape_ascii().to_string(),
                expected.escape_ascii().to_string()
            );
            assert_eq!(text(response).await, text(general).await);
        }
    }
    assert_eq!(bare, 20);
    // What has more to say than that keeps its table.
    let mut head = Request::new(());
    *head.method_mut() = Method::HEAD;
    let mut second = Request::new(());
    *second.version_mut() = Version::HTTP_2;
    for asked in [
        asked(&[("origin", "https://a.example")]),
        asked(&[("content-type", "application/grpc")]),
        asked_of(&head),
        asked_of(&second),
    ] {
        assert!(
            denied()
                .response_without_table(&asked, None, None, "")
                .is_none(),
            "{asked:?}"
        );
    }
}
