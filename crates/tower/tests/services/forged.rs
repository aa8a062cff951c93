//! Headers by which a client names another address change nothing, unless a trusted proxy sends them.

use tollgate_tower::{Key, Limit, Rate, RateLimitLayer};

use crate::kind::Kind;

const FORGED: [(&str, &str); 8] = [
    ("x-forwarded-for", "203.0.113.7"),
    ("x-forwarded-for", "127.0.0.1, 10.0.0.1"),
    ("x-real-ip", "203.0.113.7"),
    ("forwarded", "for=203.0.113.7"),
    ("true-client-ip", "203.0.113.7"),
    ("x-forwarded-host", "other.example"),
    ("x-original-uri", "/free"),
    ("x-tollgate-status", "200"),
];

#[tokio::test(flavor = "multi_thread")]
async fn layer_forged_headers_of_a_client_are_no_other_address() {
    for kind in Kind::ALL {
        let limit = Limit::token_bucket(Rate::per_hour(2), 2).per(Key::address());
        let builder = RateLimitLayer::builder()
            .limit("per_address", limit)
            .trusted_proxies(&["10.0.0.0/8"]);
        let address = kind.serve(builder.build().expect("a layer")).await;
        let mut client = kind.connect(address).await;
        let mut statuses = Vec::new();
        for header in FORGED {
            statuses.push(client.ask(&[header]).await.status);
        }
        statuses.push(client.ask(&FORGED).await.status);
        let expected = [&[200; 2][..], &[429; 7]].concat();
        assert_eq!(statuses, expected, "{kind:?}");
    }
}
