//! The form of a refusal: gRPC, CONNECT, browsers, and bodies that the file sets.

use super::*;
use tollgate_policy::Template;

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
        lacking: None,
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

fn template(text: &str) -> Template {
    Template::from(text.to_owned())
}

#[tokio::test]
async fn refusal_body_without_placeholders_is_sent_as_it_stands() {
    let page = template("<p>Too many requests.</p>");
    let html = HeaderValue::from_static("text/html");
    let own = Some(Form::Template(&html, &page));
    let response = denied().response(&asked(&[]), own, "");
    assert_eq!(text(response).await, "<p>Too many requests.</p>");
}

#[tokio::test]
async fn a_body_of_the_files_own_is_filled_and_escaped() {
    let content_type = HeaderValue::from_static("application/json");
    let template = template("{\"error\": \"{limits}\", \"wait\": {retry_after}, \"x\": \"{odd}\"}");
    let own = Form::Template(&content_type, &template);
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
    let template_of_json = template(json);
    let own = Form::Template(&json_type, &template_of_json);
    let busy_json = text(busy.response(&asked(&[]), Some(own), "")).await;
    assert_eq!(busy_json, r#"{"s": null, "ms": null, "say\"s": "in  s"}"#);
    serde_json::from_str::<serde_json::Value>(&busy_json).expect("JSON");
    let known = text(denied().response(&asked(&[]), Some(own), "")).await;
    assert_eq!(known, r#"{"s": 2, "ms": 1235, "say\"s": "in 2 s"}"#);
    let template_of_text = template("wait {retry_after}");
    let plain = Form::Template(&plain_type, &template_of_text);
    assert_eq!(
        text(busy.response(&asked(&[]), Some(plain), "")).await,
        "wait "
    );
}
