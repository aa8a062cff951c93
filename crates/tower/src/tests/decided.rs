//! Which requests are admitted, and the responses of those that are refused.

use super::*;

#[tokio::test]
async fn layer_burst_used_up_is_a_429_that_keeps_its_word() {
    let (layer, clock) = one(Limit::token_bucket(Rate::per_minute(60), 2));
    let mut service = layer.layer(responds(200, "served"));
    for remaining in [1, 0] {
        let (head, body) = ask(&mut service, request("/")).await;
        assert_eq!((head.status, &*body), (StatusCode::OK, "served"));
        let state = format!("\"all\";r={remaining};t=");
        let told = head.headers["ratelimit"].to_str().expect("text");
        assert!(told.starts_with(&state), "{told}");
        assert_eq!(head.headers["ratelimit-policy"], "\"all\";q=2;w=2");
    }
    let (head, body) = ask(&mut service, request("/")).await;
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
    for (name, value) in [
        ("retry-after", "1"),
        ("ratelimit", "\"all\";r=0;t=1"),
        ("ratelimit-policy", "\"all\";q=2;w=2"),
        ("cache-control", "no-store"),
        ("content-type", "application/problem+json"),
    ] {
        assert_eq!(head.headers[name], value, "{name}");
    }
    let id = body
        .split("\"decision_id\":\"")
        .nth(1)
        .expect("an id")
        .trim_end_matches("\"}\n");
    assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let expected = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
        \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\"status\":429,\
        \"detail\":\"The quota is used up for now. A retry after the time given is admitted.\",\
        \"violated-policies\":[\"all\"],\"retry_after_ms\":1000,\"decision_id\":\"ID\"}\n";
    assert_eq!(body.replace(id, "ID"), expected);

    clock.advance(Micros(999_999));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    clock.advance(Micros(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
}

#[tokio::test]
async fn layer_grpc_call_is_refused_with_status_8_and_a_pushback() {
    let (layer, _) = one(Limit::token_bucket(Rate::per_minute(60), 1));
    let mut service = layer.layer(responds(200, ""));
    let call = || {
        let mut call = request("/package.Service/Method");
        let kind = http::HeaderValue::from_static("application/grpc+proto");
        call.headers_mut().insert("content-type", kind);
        call
    };
    assert_eq!(ask(&mut service, call()).await.0.status, 200);
    let (head, body) = ask(&mut service, call()).await;
    assert_eq!((head.status, &*body), (StatusCode::OK, ""));
    assert_eq!(head.headers["grpc-status"], "8");
    assert_eq!(head.headers["grpc-retry-pushback-ms"], "1000");
    assert_eq!(head.headers["content-type"], "application/grpc+proto");
}

#[tokio::test]
async fn layer_key_of_the_application_owns_the_bucket() {
    #[derive(Clone)]
    struct User(&'static str);
    let limit = Limit::token_bucket(Rate::per_minute(60), 1).per(Key::application().or_refuse());
    let (layer, _) = layer_at(RateLimitLayer::builder().limit("per_user", limit));
    let layer = layer.key_by(|request| Some(request.extensions.get::<User>()?.0.into()));
    let mut service = layer.layer(responds(200, ""));
    let of = |user| {
        let mut request = request("/");
        request.extensions_mut().insert(User(user));
        request
    };
    assert_eq!(ask(&mut service, of("alice")).await.0.status, 200);
    assert_eq!(ask(&mut service, of("alice")).await.0.status, 429);
    assert_eq!(ask(&mut service, of("bob")).await.0.status, 200);
    // Whom the application does not know is no caller, nor is one without a name.
    assert_eq!(ask(&mut service, request("/")).await.0.status, 401);
    assert_eq!(ask(&mut service, of("")).await.0.status, 401);
    // A client cannot write the key.
    let mut forged = request("/");
    let name = http::HeaderValue::from_static("carol");
    forged.headers_mut().insert("application", name);
    assert_eq!(ask(&mut service, forged).await.0.status, 401);
}

#[tokio::test]
async fn layer_request_without_key_is_refused_with_a_challenge() {
    let limit =
        Limit::token_bucket(Rate::per_minute(60), 1).per(Key::header("x-api-key").or_refuse());
    let (layer, _) = layer_at(RateLimitLayer::builder().limit("per_key", limit));
    let mut service = layer.layer(responds(200, ""));
    let (head, _) = ask(&mut service, request("/")).await;
    assert_eq!(head.status, StatusCode::UNAUTHORIZED);
    let challenge = head.headers["www-authenticate"].to_str().expect("text");
    assert!(challenge.contains("name=\"x-api-key\""), "{challenge}");
    for (key, status) in [("a", 200), ("b", 200), ("a", 429)] {
        let mut request = request("/");
        let key = http::HeaderValue::from_static(key);
        request.headers_mut().insert("x-api-key", key);
        assert_eq!(ask(&mut service, request).await.0.status, status);
    }
}

#[tokio::test]
async fn layer_request_without_a_route_passes_and_one_that_cannot_be_read_is_refused() {
    let limit = Limit::token_bucket(Rate::per_hour(1), 1).per(Key::everyone());
    let builder = RateLimitLayer::builder().limit("search", limit);
    let (layer, _) = layer_at(builder.route("GET /search/**", &["search"]));
    let mut service = layer.layer(responds(200, ""));
    for (path, status) in [
        ("/other", 200),
        ("/other", 200),
        ("/search/a", 200),
        ("/search/a", 429),
        // The same path in another spelling.
        ("/%73earch/a", 429),
        ("/search/%00", 400),
    ] {
        let (head, _) = ask(&mut service, request(path)).await;
        assert_eq!(head.status, status, "{path}");
    }
}

#[tokio::test]
async fn layer_per_address_reads_the_peer_and_trusted_proxies_only() {
    let limit = Limit::token_bucket(Rate::per_hour(1), 1).per(Key::address());
    let builder = RateLimitLayer::builder().limit("per_address", limit);
    let (layer, _) = layer_at(builder.trusted_proxies(&["10.0.0.0/8"]));
    let mut service = layer.layer(responds(200, ""));
    for (peer, named, status) in [
        ("192.0.2.1", "", 200),
        ("192.0.2.1", "203.0.113.1", 429),
        ("192.0.2.2", "", 200),
        ("10.0.0.1", "203.0.113.1", 200),
        ("10.0.0.2", "203.0.113.1", 429),
    ] {
        let mut request = request("/");
        let peer: std::net::IpAddr = peer.parse().expect("an address");
        request.extensions_mut().insert(peer);
        if !named.is_empty() {
            let named = http::HeaderValue::from_static(named);
            request.headers_mut().insert("x-forwarded-for", named);
        }
        assert_eq!(ask(&mut service, request).await.0.status, status, "{peer}");
    }
}
