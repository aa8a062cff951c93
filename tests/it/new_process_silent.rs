//! The process that has the buckets does not respond: what each protocol says of a request that needs them.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Value, json};
use smallvec::smallvec;
use tollgate_gateway::gateway::{DescriptorAsked, DescriptorsDecided, Gateway as OfWorker};
use tollgate_limit::{Claim, Draw, Limit, Settlement};
use tollgate_limiter::{Successor, Undrawn};
use tollgate_policy::domains::Entry;

use crate::decisions::{check, nginx};
use crate::harness::Gateway;
use crate::permits::post;

/// A process that has all buckets and is stopped.
struct Stopped;

impl Successor for Stopped {
    fn has(&self, _: &Limit) -> bool {
        true
    }

    fn draw<'a>(
        &'a self,
        _: &'a [Claim<'a>],
    ) -> Pin<Box<dyn Future<Output = Result<Draw, Undrawn>> + Send + 'a>> {
        Box::pin(ready(Err(Undrawn::Silent)))
    }

    fn settle(&self, _: &Settlement<'_>) {}
}

/// A gateway that has handed its buckets over to such a process.
fn without_buckets() -> Gateway {
    let gateway = Gateway::start(
        "[decide]\nlisten = [\"127.0.0.1:0\", \"grpc://127.0.0.1:0\"]\n\
         [[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{ key = \"all\" }]\nlimits = [\"each\"]\n\
         [limits.each]\nrate = \"9/day\"\nper = \"descriptor\"\n\
         [limits.all]\nrate = \"9/day\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"all\"]\n",
    );
    let limiter = gateway.shared().current.load().limiter.clone();
    limiter.freeze();
    limiter.hand_to(Arc::new(Stopped));
    gateway
}

/// The decision about one descriptor, as the service for Envoy gets it.
fn decided(gateway: &Gateway) -> DescriptorsDecided {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .expect("a runtime");
    let asked = DescriptorAsked {
        entries: smallvec![Entry {
            key: "all",
            value: "1"
        }],
        hits: 1,
        numbers: None,
        gives_back: false,
    };
    runtime.block_on(async {
        OfWorker::new(gateway.shared())
            .decide_descriptors(&http::Request::new(()), "edge", &[asked])
            .await
            .expect("few buckets")
    })
}

/// Whether this is the problem of a new process, and not that of a store.
#[track_caller]
fn names_the_new_process(problem: &Value) {
    assert_eq!(problem["status"], 503, "{problem}");
    assert_eq!(
        problem["detail"],
        "The bucket of a limit is in the new process of this gateway, which does not respond."
    );
}

#[test]
fn new_process_that_is_silent_is_told_to_clients_and_to_all_that_ask_for_decisions() {
    let gateway = without_buckets();
    let told = gateway.get("/");
    assert_eq!(told.status, 503);
    names_the_new_process(&told.json());

    let told = check(&gateway, &nginx("GET", "/", "192.0.2.7"));
    assert_eq!(told.status, 503);
    names_the_new_process(&told.json());

    let request = json!({ "method": "GET", "path": "/", "client": "192.0.2.7" });
    let told = post(&gateway, "/v1/decide", &json!({ "requests": [request] })).json();
    let decision = &told["decisions"][0];
    assert_eq!(
        (&decision["allowed"], &decision["status"]),
        (&json!(false), &json!(503)),
        "{told}"
    );

    let told = decided(&gateway);
    assert!(told.refused);
    assert!(told.statuses.iter().all(|one| one.limit.is_none()));
    names_the_new_process(&serde_json::from_slice(&told.body).expect("a problem"));
}
