//! What a decision of the layer costs beside the calls of the library that decide the same without it:
//! `cargo bench -p tollgate-tower --bench layer`. Prints nanoseconds per call, the best of thirty
//! rounds; the rounds of all alternate, so that they are comparable on a busy machine.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::Empty;
use tollgate_limit::{Claim, Limit};
use tollgate_limiter::{Decision, Limiter};
use tollgate_policy::{Claimed, Claims, Identified, Peer, Policy};
use tollgate_response::quota_headers::{Fact, QuotaFields, Report};
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;
use tollgate_tower::{self as layer, Key, Rate, RateLimitLayer};
use tower::{Layer, Service};

const CALLS: u32 = 20_000;
const ROUNDS: usize = 30;

/// A service that responds at once.
#[derive(Clone)]
struct Hello;

impl Service<Request<Empty<Bytes>>> for Hello {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Empty<Bytes>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Empty<Bytes>>) -> Self::Future {
        ready(Ok(Response::new(Empty::new())))
    }
}

fn request() -> Request<Empty<Bytes>> {
    Request::builder()
        .uri("/v1/search")
        .header("host", "api.example.com")
        .header("x-api-key", "0123456789abcdef")
        .body(Empty::new())
        .expect("a request")
}

fn layer(rate: Rate, toml: &str) -> RateLimitLayer {
    let limit = layer::Limit::token_bucket(rate, 1_000_000);
    RateLimitLayer::builder()
        .limit("per_key", limit.per(Key::header("x-api-key").or_refuse()))
        .toml(toml)
        .build()
        .expect("a layer")
}

/// The response of one call; nothing in it waits.
fn call<S: Service<Request<Empty<Bytes>>>>(service: &mut S, request: Request<Empty<Bytes>>) {
    let mut context = Context::from_waker(Waker::noop());
    let future = pin!(service.call(request));
    let polled = future.poll(&mut context);
    assert!(black_box(polled).is_ready(), "nothing waits");
}

/// Finds the route, the caller and the claims, draws, and writes the quota headers into `response`, if there
/// is one: what a service would write by hand.
fn decide(
    policy: &Policy,
    limiter: &Limiter,
    clock: &Clock,
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
    quota: Option<(&QuotaFields, &mut HeaderMap)>,
) -> Decision {
    let peer = Peer {
        address: None,
        port: 0,
        tls: false,
        unnamed: false,
    };
    let now = clock.now();
    let described = policy
        .describe(None, method, uri, headers, peer, None)
        .expect("a plain path");
    let matched = policy.route(&described).expect("a route");
    let (mut who, mut claims) = (Identified::default(), Claims::default());
    let seconds = now.as_micros() / 1_000_000;
    let claimed = policy.claim(
        &mut who,
        &mut claims,
        &matched,
        &described,
        Some(0),
        seconds,
    );
    assert_eq!(claimed, Claimed::Complete);
    let deciding = limiter.decide(&claims.list(&policy.limits), now);
    let decision = deciding.at_once().expect("a local limit");
    if let (Decision::Allow(permit), Some((quota, response))) = (&decision, quota) {
        let charge = &claims.charges()[0];
        let fact = Fact {
            limit: charge.limit,
            standing: &permit.outcomes()[0].standing,
            cost: charge.cost,
            violated: false,
            key: claims.key(charge),
        };
        let report = Report {
            facts: &[fact],
            refused: false,
            retry_after: None,
            now,
        };
        quota.annotate(response, &report);
    }
    decision
}

fn main() {
    let plenty = Rate::per_second(1_000_000_000);
    let text = "[limits.per_key]\nrate = \"1000000000/second\"\nburst = 1000000\nper = \"header:x-api-key\"\n\
                when_missing = \"refuse\"\n[[routes]]\nmatch = \"/**\"\nlimits = [\"per_key\"]\n";
    let clock = Clock::system();
    let config = tollgate_config::Loader::new(&|_| None, clock.now())
        .for_service()
        .text(text, "bench");
    let policy = config.expect("valid limits").policy;
    let limits: &[Arc<Limit>] = &policy.limits;
    let limiter = Limiter::new(
        limits,
        Arc::new(Backend::None),
        clock.clone(),
        ColdStart::Full,
    );
    let claims = [Claim::new(&limits[0], b"0123456789abcdef", 1)];
    let by_hand = request();
    let parts = (by_hand.method(), by_hand.uri(), by_hand.headers());
    let mut bare = Hello;
    let mut silent = layer(plenty, "[responses]\nheaders = []").layer(Hello);
    let mut admitted = layer(plenty, "").layer(Hello);
    let mut refused = layer(Rate::per_day(1), "[responses]\nheaders = []").layer(Hello);
    for _ in 0..1_000_001 {
        call(&mut refused, request());
    }
    let quota = QuotaFields::new(&policy.responses, limits, &policy.rules);
    let mut rows: [(&str, f64, &mut dyn FnMut(Request<Empty<Bytes>>)); 7] = [
        ("the limiter alone, its claims known", f64::MAX, &mut |_| {
            black_box(limiter.decide(black_box(&claims), clock.now()).at_once());
        }),
        (
            "route, caller, claims and limiter, by hand",
            f64::MAX,
            &mut |_| {
                drop(black_box(decide(
                    &policy,
                    &limiter,
                    &clock,
                    black_box(parts),
                    None,
                )));
            },
        ),
        (
            "the same with RateLimit headers, by hand",
            f64::MAX,
            &mut |_| {
                let mut response = HeaderMap::new();
                let headers = Some((&quota, &mut response));
                let parts = black_box(parts);
                drop(black_box(decide(&policy, &limiter, &clock, parts, headers)));
                drop(black_box(response));
            },
        ),
        ("the service alone", f64::MAX, &mut |request| {
            call(&mut bare, request)
        }),
        (
            "layer and service, no quota headers",
            f64::MAX,
            &mut |request| call(&mut silent, request),
        ),
        (
            "layer and service, RateLimit headers",
            f64::MAX,
            &mut |request| call(&mut admitted, request),
        ),
        (
            "layer, refused with a problem document",
            f64::MAX,
            &mut |request| call(&mut refused, request),
        ),
    ];
    for _ in 0..ROUNDS {
        for (_, best, run) in &mut rows {
            *best = best.min(measured(*run));
        }
    }
    for (name, best, _) in &rows {
        println!("{best:8.0} ns  {name}");
    }
    let [bare, hand, with_headers, service, silent, full, _] = rows.map(|(_, best, _)| best);
    println!(
        "layer without headers: {:.2} times a decision by hand, {:.2} times the limiter alone; \
         with headers: {:.2} times a decision by hand with them",
        (silent - service) / hand,
        (silent - service) / bare,
        (full - service) / with_headers
    );
}

/// Nanoseconds per call; requests are made beforehand and dropped by the call.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn measured(run: &mut dyn FnMut(Request<Empty<Bytes>>)) -> f64 {
    let requests: Vec<_> = (0..CALLS).map(|_| request()).collect();
    let start = Instant::now();
    requests.into_iter().for_each(&mut *run);
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}
