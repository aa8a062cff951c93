//! Decides about requests that other proxies and programs received: the listeners of `[decide]`.
//!
//! A [`Decider`] serves one worker beside its [`Gateway`]. It forwards nothing. Only peers in
//! `trusted` are heard, because they say where a request came from and what became of it.
//!
//! | resource | asked by |
//! |---|---|
//! | `/check` | a proxy, about one request, which its headers state |
//! | `/v1/decide` | a program, about several requests |
//! | `/v1/settle`, `/v1/give-back` | either, when a request has ended |

mod batch;
mod delivery;
mod descriptors;
mod draw;
mod json;
mod original;
mod permits;
pub(crate) mod request;
mod settle;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use serde_json::{Map, Value, json};

use crate::forward::body::Guarded;
use crate::request::{Closing, DecideSettings, Gateway, HeldSnapshot, Snapshot};
use batch::{Batch, Item};
use delivery::{Undelivered, telling};
use json::Refused;
use tollgate_net::server::{ConnInfo, Event, Handler, Inbound};
use tollgate_net::timers;
use tollgate_net::worker::Worker;
use tollgate_response::Problem;

pub use delivery::DecisionBody;
pub use descriptors::{DescriptorAsked, DescriptorStatus, DescriptorsDecided, StatusOfLimit};
pub(crate) use original::Original;
pub use permits::Permits;
pub(crate) use permits::{NearCounter, Open, PermitId, Slot};
use settle::{Report, Return};

/// Responds to the requests of other proxies and programs, on one worker.
pub struct Decider {
    gateway: Rc<Gateway>,
    permits: Arc<Permits>,
}

type Reply = Response<DecisionBody>;

impl Decider {
    /// Creates the decider of the worker that `gateway` serves. That of the first worker closes
    /// permits that expire.
    pub fn new(gateway: Rc<Gateway>, permits: Arc<Permits>) -> Self {
        if Worker::current().is_some_and(|worker| worker.index() == 0) {
            let (gateway, permits) = (Rc::clone(&gateway), Arc::clone(&permits));
            tokio::task::spawn_local(async move {
                loop {
                    timers::pause(EXPIRE_EVERY).await;
                    permits.expire(gateway.now());
                }
            });
        }
        Self { gateway, permits }
    }

    /// `/check`: the decision about the request that a proxy describes.
    async fn check(
        &self,
        snapshot: &Snapshot,
        connection: &ConnInfo,
        request: Request<Inbound>,
    ) -> Reply {
        let (asked, _) = request.into_parts();
        let method = asked.method.clone();
        let address = &snapshot.policy.address;
        let response = match Original::of_proxy(address, &connection.listener, asked) {
            Ok(original) => {
                let head = method == Method::HEAD;
                let decided = self.gateway.decide(original, head, &self.permits).await;
                telling(
                    Undelivered::in_head(&self.permits, decided.headers()),
                    decided,
                )
            }
            Err(problem) => problem.response_to(&method),
        };
        in_status_of_peer(&snapshot.deciding, response)
    }

    async fn batch(
        &self,
        snapshot: &HeldSnapshot,
        connection: &ConnInfo,
        request: Request<Inbound>,
    ) -> Result<Reply, Refused> {
        let (asked, batch) = json::read::<Batch>(request).await?;
        let together = batch.together;
        let items = batch.items(&connection.listener)?;
        let mut undelivered = Undelivered::new(&self.permits);
        if together {
            let drawn = self.gateway.draw(snapshot, &asked, items, &self.permits);
            let decision = drawn.await?;
            undelivered.add(&decision);
            let allowed = decision["allowed"].clone();
            let document = json!({ "allowed": allowed, "together": decision });
            return Ok(telling(undelivered, json::document::<Bytes>(&document)));
        }
        let (gateway, permits, asked) = (&self.gateway, &self.permits, &asked);
        let undelivered = RefCell::new(undelivered);
        let decide = async |item| {
            let decided = match item {
                Item::Request(original) => {
                    let decided = gateway.decide(*original, false, permits).await;
                    decision(decided).await
                }
                item => {
                    let drawn = gateway.draw(snapshot, asked, vec![item], permits).await;
                    drawn.unwrap_or_else(|refused| refused.decision())
                }
            };
            undelivered.borrow_mut().add(&decided);
            decided
        };
        // Together they take no longer than the slowest; their draws begin in order.
        let decisions = join_all(items.into_iter().map(decide)).await;
        let undelivered = undelivered.into_inner();
        let allowed = decisions.iter().all(|decision| decision["allowed"] == true);
        let document = json!({ "allowed": allowed, "decisions": decisions });
        Ok(telling(undelivered, json::document::<Bytes>(&document)))
    }
}

impl Handler for Decider {
    type Body = DecisionBody;

    async fn handle(&self, connection: &Rc<ConnInfo>, request: Request<Inbound>) -> Reply {
        let snapshot = self.gateway.snapshot();
        if !self.gateway.trusts(connection) {
            return Problem::UNTRUSTED_PEER.response_to(request.method());
        }
        let outcome = match request.uri().path() {
            CHECK => Ok(self.check(&snapshot, connection, request).await),
            DECIDE => self.batch(&snapshot, connection, request).await,
            SETTLE => json::read::<Report>(request)
                .await
                .and_then(|(_, report)| report.carry_out(&self.permits))
                .map(|settled| json::document(&settled)),
            GIVE_BACK => json::read::<Return>(request)
                .await
                .and_then(|(_, permit)| permit.carry_out(&self.permits))
                .map(|()| json::done()),
            _ => Ok(Problem::NO_RESOURCE.response_to(request.method())),
        };
        outcome.unwrap_or_else(|refused| refused.response())
    }

    fn observe(&self, event: Event<'_>) {
        self.gateway.observe(event);
    }
}

fn in_status_of_peer(settings: &DecideSettings, mut response: Reply) -> Reply {
    let status = response.status();
    let passes = status.is_success() || status == StatusCode::UNAUTHORIZED;
    if let Some(other) = settings.refuse_status.filter(|_| !passes) {
        let original = HeaderValue::from(status.as_u16());
        response.headers_mut().insert(STATUS, original);
        *response.status_mut() = other;
    }
    response
}

/// A response to the client of a request as a document for a program.
async fn decision(response: Response<Guarded<Closing>>) -> Value {
    let (head, mut body) = response.into_parts();
    let mut text = Vec::new();
    // Read to its end, with which the request is counted and logged.
    while let Some(Ok(frame)) =
        std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
    {
        text.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
    }
    let mut members = Map::new();
    let mut add = |name: &str, value: Value| _ = members.insert(name.to_owned(), value);
    add("allowed", head.status.is_success().into());
    add("status", head.status.as_u16().into());
    let mut headers = Map::new();
    for name in head.headers.keys() {
        let lines = head.headers.get_all(name).iter();
        let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
        if name == PERMIT {
            add("permit", lines.concat().into());
        } else if ![CONTENT_TYPE, CONTENT_LENGTH, CACHE_CONTROL].contains(name) {
            headers.insert(name.as_str().to_owned(), lines.join(", ").into());
        }
    }
    let known_wait = head.headers.contains_key(RETRY_AFTER);
    if !text.is_empty() {
        match serde_json::from_slice::<Value>(&text) {
            Ok(document) => {
                let exact = document.get("retry_after_ms").filter(|_| known_wait);
                if let Some(wait) = exact {
                    add("retry_after_ms", wait.clone());
                }
                add("body", document);
            }
            Err(_) => add("body", String::from_utf8_lossy(&text).into_owned().into()),
        }
    }
    add("headers", headers.into());
    Value::Object(members)
}

impl Refused {
    fn decision(&self) -> Value {
        json!({ "allowed": false, "status": self.problem.status.as_u16(), "body": self.value() })
    }
}

const CHECK: &str = "/check";
const DECIDE: &str = "/v1/decide";
const SETTLE: &str = "/v1/settle";
const GIVE_BACK: &str = "/v1/give-back";

/// The resources, each with a method that it takes; `docs/openapi-decide.json` describes them.
pub const RESOURCES: [(&str, &str); 4] = [
    ("GET", CHECK),
    ("POST", DECIDE),
    ("POST", SETTLE),
    ("POST", GIVE_BACK),
];
pub(crate) const PERMIT: HeaderName = HeaderName::from_static("x-tollgate-permit");
/// Has the decision id of a refusal, as the body that a proxy may drop.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-tollgate-decision");
/// The status that a refusal has for the client.
const STATUS: HeaderName = HeaderName::from_static("x-tollgate-status");
const EXPIRE_EVERY: Duration = Duration::from_millis(250);
