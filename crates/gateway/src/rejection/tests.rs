//! Responses of the gateway's own.

mod denials;
mod forms;
mod without_table;

use std::sync::Arc;

use http_body_util::BodyExt;

use super::*;
use crate::headers::HeaderSet;
use http::{Method, Request, Version};
use tollgate_policy::identity::IdentityReason;
use tollgate_store::StoreError;

fn denied() -> Rejection {
    Rejection::Denied(Refused {
        violated: [Arc::from("per \"minute\""), Arc::from("daily")]
            .into_iter()
            .collect(),
        retry_after: Some(Micros(1_234_567)),
        ..Refused::default()
    })
}

fn asked_of(request: &Request<()>) -> RefusalForm {
    let takes_lines = request.version() < http::Version::HTTP_2;
    RefusalForm::of(
        request,
        HeaderSet::of(request.headers()).decides_form(),
        takes_lines,
    )
}

fn asked(fields: &[(&str, &str)]) -> RefusalForm {
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

fn store_down() -> Rejection {
    Rejection::StoreDown(Unavailable {
        limit: Arc::from("l"),
        error: StoreError::Timeout,
    })
}

#[tokio::test]
async fn every_problem_is_json() {
    for rejection in [
        Rejection::Malformed(Malformed::Host),
        Rejection::Unmatchable(tollgate_policy::Malformed::AboveRoot),
        Rejection::NoRoute,
        Rejection::TooBig,
        store_down(),
        Rejection::Overloaded,
        Rejection::Upstream(ForwardError::Closed),
        Rejection::Upstream(ForwardError::ResponseTimeout {
            after_callers_deadline: false,
        }),
        Rejection::Upstream(ForwardError::ClientDeadline { unsent: false }),
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
