//! The examples serve real clients, with exact refusals.

#[path = "../../examples/axum.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod axum_service;
#[path = "../../examples/tonic.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod tonic_service;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::kind::{channel, connect, get, listen};

#[tokio::test]
async fn axum_example_serves_then_refuses_with_exact_headers_and_body() {
    let (listener, address) = listen().await;
    tokio::spawn(axum_service::serve(listener));
    let mut client = connect(address).await;
    for remaining in [2, 1, 0] {
        let (response, body) = get(&mut client, "/search/a", &[("x-api-key", "alice")]).await;
        assert_eq!((response.status().as_u16(), &*body), (200, "found\n"));
        let told = response.headers()["ratelimit"].to_str().expect("text");
        let state = format!("\"search\";r={remaining};t=");
        assert!(told.contains(&state), "{told}");
    }
    let (response, body) = get(&mut client, "/search/a", &[("x-api-key", "alice")]).await;
    assert_eq!(response.status(), 429);
    let headers = response.headers();
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["retry-after"], "120");
    assert_eq!(headers["ratelimit"], "\"search\";r=0;t=120");
    assert_eq!(
        headers["ratelimit-policy"],
        "\"per_address\";q=10;w=1, \"search\";q=3;w=360"
    );
    assert_eq!(headers["content-length"], body.len().to_string());
    let start = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",";
    assert!(body.starts_with(start), "{body}");
    assert!(body.contains("\"status\":429,"), "{body}");
    assert!(
        body.contains("\"violated-policies\":[\"search\"],\"retry_after_ms\":"),
        "{body}"
    );
    // The refused request was charged on no limit, and another key has units of its own.
    assert_eq!(
        get(&mut client, "/search/a", &[("x-api-key", "bob")])
            .await
            .0
            .status(),
        200
    );
    assert_eq!(get(&mut client, "/search/a", &[]).await.0.status(), 401);
    assert_eq!(get(&mut client, "/", &[]).await.1, "hello\n");
}

#[tokio::test]
async fn tonic_example_serves_then_refuses_with_status_8_and_a_pushback() {
    let (listener, address) = listen().await;
    tokio::spawn(tonic_service::serve(listener));
    let mut client = HealthClient::new(channel(address).await);
    let mut served = 0;
    let refused = loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(response) => {
                assert!(response.metadata().contains_key("ratelimit"));
                served += 1;
            }
            Err(status) => break status,
        }
        assert!(served < 1_000, "no call is refused");
    };
    assert!(served >= 10, "{served}: the burst");
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(
        refused.message(),
        "The quota is used up for now. A retry after the time given is admitted."
    );
    let metadata = refused.metadata();
    let pushback = metadata.get("grpc-retry-pushback-ms").expect("a pushback");
    let wait: u64 = pushback
        .to_str()
        .expect("digits")
        .parse()
        .expect("a number");
    assert!((1..=100).contains(&wait), "{wait}");
    assert_eq!(metadata.get("retry-after").expect("a header"), "1");
    assert_eq!(
        metadata.get("ratelimit").expect("a header"),
        "\"per_address\";r=0;t=1"
    );
}

#[test]
fn book_shows_the_examples() {
    let page = include_str!("../../../../docs/src/do/tower.md");
    for example in [
        include_str!("../../examples/axum.rs"),
        include_str!("../../examples/tonic.rs"),
    ] {
        let program = example.split_once("\n\n").expect("a first line").1;
        assert!(
            page.contains(&format!("```rust\n{program}```\n")),
            "{program}"
        );
    }
}
