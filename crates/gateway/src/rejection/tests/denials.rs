//! Refusals by limits: status, `Retry-After` and the problem document.

use super::*;

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
