//! Requests that wait: for their unit, and for the service to be ready.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;

use super::*;

#[tokio::test]
async fn layer_held_request_is_sent_when_it_is_due() {
    let limit = Limit::token_bucket(Rate::per_minute(60), 1);
    let (layer, clock) = one(limit.max_wait(std::time::Duration::from_secs(5)));
    let mut service = layer.layer(responds(200, ""));
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
    let mut held = Box::pin(service.ready().await.expect("ready").call(request("/")));
    poll_fn(|context| {
        assert!(held.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    clock.advance(Micros::from_secs(1));
    assert_eq!(held.await.expect("a response").status(), 200);
}

/// A service with one place, which it reserves in `poll_ready` and frees when it was called or is
/// dropped.
#[derive(Debug)]
struct Reserving {
    places: std::sync::Arc<AtomicUsize>,
    has: bool,
}

impl Clone for Reserving {
    fn clone(&self) -> Self {
        let places = std::sync::Arc::clone(&self.places);
        Self { places, has: false }
    }
}

impl Drop for Reserving {
    fn drop(&mut self) {
        if self.has {
            self.places.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Service<Request<Empty<Bytes>>> for Reserving {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Full<Bytes>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let free = |places: usize| places.checked_sub(1);
        let order = Ordering::Relaxed;
        if !self.has {
            self.has = self.places.fetch_update(order, order, free).is_ok();
        }
        if self.has {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn call(&mut self, _: Request<Empty<Bytes>>) -> Self::Future {
        assert!(std::mem::take(&mut self.has), "called without being ready");
        self.places.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn layer_waits_for_the_service_before_it_charges_and_gives_up_its_readiness_when_it_refuses()
{
    let (layer, clock) =
        one(Limit::token_bucket(Rate::per_minute(60), 1)
            .max_wait(std::time::Duration::from_secs(1)));
    let places = std::sync::Arc::new(AtomicUsize::new(0));
    let inner = Reserving {
        places: std::sync::Arc::clone(&places),
        has: false,
    };
    let mut service = layer.layer(inner);
    let is_ready = |service: &mut RateLimit<Reserving>| {
        let waker = std::task::Waker::noop();
        service
            .poll_ready(&mut Context::from_waker(waker))
            .is_ready()
    };
    assert!(!is_ready(&mut service));
    assert_eq!(layer.handle().counts()[0].count.allowed, 0);
    places.store(1, Ordering::Relaxed);
    assert_eq!(ask(&mut service, request("/")).await.0.status, 200);
    // Held: the service that is ready serves it, and its clone is not ready meanwhile.
    assert!(is_ready(&mut service));
    let held = service.call(request("/"));
    assert!(!is_ready(&mut service));
    clock.advance(Micros::from_secs(1));
    assert_eq!(held.await.expect("a response").status(), 200);
    assert_eq!(places.load(Ordering::Relaxed), 1);
    // The next two requests are over the limit: the first waits for its unit, the second would wait
    // too long and is refused.
    assert!(is_ready(&mut service));
    let due = service.call(request("/"));
    let mut second = service.clone();
    places.store(1, Ordering::Relaxed);
    assert!(is_ready(&mut second));
    let refused = second.call(request("/")).await.expect("a response");
    assert_eq!(refused.status(), 429);
    assert_eq!(places.load(Ordering::Relaxed), 1, "given up");
    drop(due);
}
