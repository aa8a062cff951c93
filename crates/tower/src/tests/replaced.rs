//! Limits that are replaced while the layer serves, from the program or from a file.

use super::*;

#[tokio::test]
async fn layer_changed_limits_keep_the_buckets() {
    let limit = |rate, burst| Limit::token_bucket(rate, burst).per(Key::everyone());
    let builder = |rate, burst| RateLimitLayer::builder().limit("all", limit(rate, burst));
    let (layer, clock) = layer_at(builder(Rate::per_hour(1), 2));
    let mut service = layer.layer(responds(200, ""));
    for status in [200, 200, 429] {
        assert_eq!(ask(&mut service, request("/")).await.0.status, status);
    }
    layer
        .handle()
        .replace(builder(Rate::per_second(1), 10))
        .expect("valid");
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    clock.advance(Micros::from_secs(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);

    let wrong = layer.handle().replace(builder(Rate::per_second(0), 10));
    assert!(
        matches!(&wrong, Err(Error::Config(text)) if text.contains("rate")),
        "{wrong:?}"
    );
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    let counts = layer.handle().counts();
    assert_eq!((counts[0].count.allowed, counts[0].count.refused), (3, 3));
}

#[tokio::test]
async fn layer_file_is_read_again_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.toml");
    let write = |rate: &str| {
        let text = format!(
            "[limits.all]\nrate = \"{rate}\"\nburst = 1\nper = \"everyone\"\n[[routes]]\nmatch = \"/**\"\n\
             upstream = \"http://127.0.0.1:3000\"\nlimits = [\"all\"]\n"
        );
        std::fs::write(&path, text).expect("written");
    };
    write("1/hour");
    let clock = Clock::manual(START);
    let layer =
        RateLimitLayer::new(LimitsSource::File(path.clone()), clock.clone()).expect("valid");
    let handle = layer.handle();
    let warnings = handle.warnings();
    assert!(
        warnings[0].contains("`upstream` has no effect in a service"),
        "{warnings:?}"
    );
    let mut service = layer.layer(responds(200, ""));
    for status in [200, 429] {
        assert_eq!(ask(&mut service, request("/")).await.0.status, status);
    }
    write("1/fortnight");
    let error = handle.reload().expect_err("no such period").to_string();
    assert!(error.contains("limits.toml:2:"), "{error}");
    clock.advance(Micros::from_secs(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 429);
    write("1/second");
    handle.reload().expect("valid");
    clock.advance(Micros::from_secs(1));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
}
