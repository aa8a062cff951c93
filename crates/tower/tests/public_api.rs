//! Uses every public item of the layer with its full signature: a change that breaks an application
//! breaks this file, and is a new major version.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body_util::Empty;
use tollgate_tower::{
    Agreement, Builder, Count, Error, Handle, Key, Limit, LimitCount, Rate, RateLimit,
    RateLimitLayer, RequestHead, ResponseBody, ResponseFuture, Store, WhenDown,
};
use tower::{Layer, Service};

type Body = Empty<Bytes>;

/// A service, as small as possible.
#[derive(Clone, Debug)]
struct Hello;

impl Service<Request<Body>> for Hello {
    type Response = Response<Body>;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Response<Body>, std::io::Error>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), std::io::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        std::future::ready(Ok(Response::new(Empty::new())))
    }
}

fn is_usable<T: Clone + Send + Sync + std::fmt::Debug + 'static>() {}
fn is_value<T: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static>() {}

#[test]
fn public_api_of_the_layer_is_complete() {
    is_usable::<RateLimitLayer>();
    is_usable::<Builder>();
    is_usable::<Handle>();
    is_usable::<Store>();
    is_usable::<RateLimit<Hello>>();
    is_value::<Error>();
    is_value::<Key>();
    is_value::<Limit>();
    is_value::<LimitCount>();
    is_value::<Rate>();

    let from_file: fn(&'static Path) -> Result<RateLimitLayer, Error> = RateLimitLayer::from_file;
    assert!(matches!(
        from_file(Path::new("/nowhere/limits.toml")),
        Err(Error::Config(_))
    ));
    let _: [Error; 2] = [Error::Store(String::new()), Error::NoFile];
    let _: fn(&Error) -> String = ToString::to_string;

    let keys: [Key; 8] = [
        Key::address(),
        Key::everyone(),
        Key::header("x-api-key").or_address(),
        Key::bearer().or_refuse(),
        Key::cookie("sid").or_skip(),
        Key::query("key").or_skip(),
        Key::identity("user"),
        Key::application().or_refuse(),
    ];
    let rates: [Rate; 5] = [
        Rate::per(10, Duration::from_secs(10)),
        Rate::per_second(1),
        Rate::per_minute(1),
        Rate::per_hour(1),
        Rate::per_day(1),
    ];
    let limits: [Limit; 6] = [
        Limit::token_bucket(rates[0], 10),
        Limit::interval(rates[1], 10),
        Limit::fixed_window(rates[2]),
        Limit::sliding_window(rates[3]),
        Limit::sliding_log(rates[4]),
        Limit::in_flight(10),
    ];
    let every_option: Limit = limits[0]
        .clone()
        .per(keys[1].clone())
        .cost(2)
        .max_wait(Duration::from_millis(1))
        .count(&["401", "5xx"])
        .shadow()
        .local()
        .set("debt", "1");
    let refunded = limits[2].clone().per(keys[0].clone()).refund_on(&["503"]);
    let _: [fn(&str, &str, WhenDown) -> Store; 3] = [Store::redis, Store::postgres, Store::mysql];
    let _: Store = Store::redis("redis://127.0.0.1/0", "secret", WhenDown::Refuse)
        .answer_within(Duration::from_millis(20));
    let _: fn(Builder, Store) -> Builder = Builder::store;

    let builder: Builder = RateLimitLayer::builder()
        .limit("all", every_option)
        .limit("refunded", refunded)
        .route("/**", &["all", "refunded"])
        .trusted_proxies(&["10.0.0.0/8"])
        .toml("[responses]\nheaders = []");
    let built: Result<RateLimitLayer, Error> = builder.clone().build();
    let layer: RateLimitLayer = built
        .expect("valid limits")
        .peer(|extensions: &Extensions| extensions.get::<IpAddr>().copied())
        .key_by(|request: RequestHead<'_>| Some(request.uri.path().into()))
        .client_certificate(|extensions: &Extensions| extensions.get::<&'static str>().copied());

    let handle: Handle = layer.handle();
    let reloaded: Result<(), Error> = handle.reload();
    assert_eq!(reloaded, Err(Error::NoFile));
    let replaced: Result<(), Error> = handle.replace(builder);
    assert_eq!(replaced, Ok(()));
    let warnings: Vec<String> = handle.warnings();
    assert!(warnings.is_empty(), "{warnings:?}");
    let counts: Vec<LimitCount> = handle.counts();
    let LimitCount {
        name,
        tier,
        count,
        candidate,
        ..
    } = &counts[0];
    let _: (&String, &Option<String>, &Count, &Option<Agreement>) = (name, tier, count, candidate);

    let mut service: RateLimit<Hello> = layer.layer(Hello);
    let future: ResponseFuture<Hello, Body> = service.call(Request::new(Empty::new()));
    fn is_future<F>(_: F)
    where
        F: Future<Output = Result<Response<ResponseBody<Body>>, std::io::Error>> + Send + 'static,
    {
    }
    is_future(future);
}
