//! Counts heap allocations: deciding about an ordinary request makes none, and the first request of a store's outage no table.
#![expect(
    unsafe_code,
    reason = "an allocator that counts is unsafe by its trait; it only passes calls on"
)]

#[path = "../fuzz/targets.rs"]
#[allow(dead_code)]
mod targets;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Uri};
use tollgate_limit::{
    Claim, Draw, Kind, Limit, Micros, Placement, Settlement, Standing, Timestamp, WhenDown,
    fixtures,
};
use tollgate_limiter::{Decision, Limiter};
use tollgate_policy::Peer;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;
use tollgate_store::{Deadline, Store, StoreError};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// The bytes of the largest of them.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the count is a plain thread-local number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations from description to the list of claims.
fn allocations(method: &Method, uri: &str, headers: &[(&'static str, &'static str)]) -> usize {
    let policy = targets::policy();
    let uri: Uri = uri.parse().expect("a URI");
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect();
    let peer = Peer {
        address: "10.0.0.1".parse().ok(),
        port: 1,
        tls: false,
        unnamed: false,
    };
    let before = ALLOCATIONS.get();
    let request = policy
        .describe(None, method, &uri, &headers, peer, None)
        .expect("well formed");
    let matched = policy.route(&request).expect("a route");
    let who = policy
        .identify(&matched, &request, 1_700_000_000)
        .expect("identified");
    let claims = policy.claims(&matched, &who, &headers, Some(0));
    assert!(!black_box(claims.list(&policy.limits)).is_empty());
    ALLOCATIONS.get() - before
}

#[test]
fn an_ordinary_request_is_decided_about_without_an_allocation() {
    let key = ("x-api-key", "0123456789abcdef0123456789abcdef");
    let forwarded = ("x-forwarded-for", "1.2.3.4, 10.0.0.2");
    let keyed = [("host", "api.example.com:8080"), key, forwarded];
    // The first look builds the policy, and what arc-swap keeps for each thread.
    allocations(&Method::GET, "/c/d", &keyed);
    assert_eq!(allocations(&Method::POST, "/x/y/z", &[forwarded]), 0);
    assert_eq!(allocations(&Method::GET, "/c/d", &keyed), 0);
    // A path that is not in its normal form is the price of one string.
    assert_eq!(allocations(&Method::POST, "/x//y", &[]), 1);
}

/// A store that does not answer.
struct Down;

impl Store for Down {
    async fn draw_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        Err(StoreError::Timeout)
    }

    fn settle(&self, _: &[Settlement<'_>]) {}

    async fn peek_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        Err(StoreError::Timeout)
    }
}

/// The time limit of an answer has passed when the shares are asked: they must be there already.
#[test]
fn first_request_of_an_outage_with_ten_shares_makes_no_table() {
    const TABLE: usize = 64 << 20;
    let limit = |index: usize| {
        let terms = fixtures::terms(Kind::TokenBucket, 1000, Micros::from_secs(1));
        Arc::new(Limit {
            index,
            placement: Placement::Shared,
            when_down: WhenDown::LocalShare,
            memory: TABLE,
            ..fixtures::limit(&format!("limit-{index}"), &terms)
        })
    };
    let limits: Vec<_> = (0..10).map(limit).collect();
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let clock = Clock::manual(now);
    let limiter = Limiter::new(&limits, Arc::new(Down), clock, ColdStart::Full);
    assert!(LARGEST.get() > 64 << 10, "the tables are made with it");
    let claims: Vec<_> = limits
        .iter()
        .map(|limit| Claim::new(limit, b"caller", 1))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    LARGEST.set(0);
    let decision = runtime.block_on(limiter.decide(&claims, now).finish(&Deadline::default()));
    let largest = LARGEST.get();
    assert!(matches!(decision, Decision::Allow(_)), "the shares decide");
    assert!(largest < 16 << 10, "{largest} bytes at once");
}
