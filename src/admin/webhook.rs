//! `[admin] webhook`: sends events to a service, as JSON documents.
//!
//! It is sent the same events as readers of `/api/v1/events`, and takes the place of none. They wait in a bounded queue; while the service
//! does not take them they are sent again, and those beyond the queue are dropped and counted. The
//! signature is that of Standard Webhooks (standardwebhooks.com).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use sha2::Sha256;
use tokio::sync::Notify;

use super::events::{Events, Message};
use crate::outbound::{Failed, Service};
use crate::own_thread::OwnThread;
use tollgate_config::settings::{Webhook as Settings, WebhookEvent, Word as _};
use tollgate_store::clock::Clock;
use tollgate_telemetry::metrics::Samples;

/// The webhook of a gateway. Clones share it.
#[derive(Clone)]
pub struct Webhook(Arc<Shared>);

struct Shared {
    service: Service,
    settings: Settings,
    clock: Clock,
    gateway: String,
    queue: Mutex<VecDeque<Document>>,
    queued: Notify,
    delivered: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Document {
    id: String,
    body: Bytes,
}

impl Webhook {
    pub fn new(settings: &Settings, clock: Clock) -> Result<Self, String> {
        let service = Service::new(&settings.url, settings.timeout.into())?;
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Ok(Self(Arc::new(Shared {
            service,
            settings: settings.clone(),
            clock,
            gateway: name,
            queue: Mutex::default(),
            queued: Notify::new(),
            delivered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })))
    }

    pub fn samples(&self, to: &mut Samples) {
        let mut counter = |name, help, count: &AtomicU64| {
            to.counter(name, help, &[], count.load(Ordering::Relaxed));
        };
        let help = "Events that the webhook's service took";
        counter("webhook_events_delivered", help, &self.0.delivered);
        let help = "Requests to the webhook's service that failed; most are sent again";
        counter("webhook_failures", help, &self.0.failed);
        let help =
            "Events that the webhook dropped: too many waited, or the service did not take them";
        counter("webhook_events_dropped", help, &self.0.dropped);
    }

    /// Sends the events of the queue, on a thread of its own: a name that is slow to look up takes no
    /// time from the admin listener.
    pub(super) fn start(&self) -> std::io::Result<OwnThread> {
        let webhook = self.clone();
        OwnThread::start("webhook", move |mut stopped| async move {
            tokio::select! {
                () = webhook.deliver() => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        })
    }

    pub fn follow(&self, events: &Events) {
        let webhook = self.clone();
        events.forward(move |message| {
            if let Some(id) = message.id() {
                webhook.push(message, id);
            }
        });
    }

    fn push(&self, message: &Message, id: &str) {
        let Shared {
            settings, queue, ..
        } = &*self.0;
        let event = message.kind.label();
        let is_wanted = |wanted: &WebhookEvent| wanted.word() == event;
        if !settings.events.is_empty() && !settings.events.iter().any(is_wanted) {
            return;
        }
        let gateway = serde_json::to_string(&self.0.gateway).expect("text is JSON");
        let data = message.data();
        let mut body = format!(
            "{{\"format\":1,\"event\":\"{event}\",\"id\":\"{id}\",\"gateway\":{gateway},\"data\":"
        )
        .into_bytes();
        body.extend_from_slice(&data);
        body.push(b'}');
        let mut queue = queue.lock();
        if queue.len() >= QUEUE_MAX {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back(Document {
            id: id.to_owned(),
            body: body.into(),
        });
        self.0.queued.notify_one();
    }

    async fn deliver(&self) {
        loop {
            let next = self.0.queue.lock().pop_front();
            match next {
                Some(document) => self.send(&document).await,
                None => self.0.queued.notified().await,
            }
        }
    }

    /// Sends one event until it is taken, or too often.
    async fn send(&self, document: &Document) {
        let shared = &*self.0;
        let mut backoff = BACKOFF;
        for attempt in 1..=shared.settings.attempts {
            let failed = match shared
                .service
                .post(document.body.clone(), &self.signed(document))
                .await
            {
                Ok(()) => {
                    shared.delivered.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(failed) => failed,
            };
            shared.failed.fetch_add(1, Ordering::Relaxed);
            let Failed { why, again, wait } = failed;
            if !again || attempt == shared.settings.attempts {
                tracing::warn!(
                    id = document.id,
                    attempt,
                    "an event is dropped: the webhook: {why}"
                );
                break;
            }
            let wait = wait.unwrap_or(backoff.mul_f64(0.75 + fastrand::f64() * 0.5));
            tokio::time::sleep(wait.min(BACKOFF_MAX)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
        shared.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The headers by which a receiver knows a document: its id, the time, and the signature of both
    /// with the body.
    fn signed(&self, document: &Document) -> Vec<(HeaderName, HeaderValue)> {
        let seconds = (self.0.clock.now().as_micros() / 1_000_000).to_string();
        let secret = self.0.settings.secret.as_ref();
        let signature =
            secret.map(|secret| signature(secret.expose(), &document.id, &seconds, &document.body));
        let headers = [
            ("webhook-id", Some(document.id.clone())),
            ("webhook-timestamp", Some(seconds)),
            ("webhook-signature", signature),
        ];
        let header = |(name, text): (&'static str, Option<String>)| {
            let value = HeaderValue::from_str(&text?).ok()?;
            Some((HeaderName::from_static(name), value))
        };
        headers.into_iter().filter_map(header).collect()
    }
}

/// `v1,` and the HMAC-SHA256 in base64. A secret that begins with `whsec_` is in base64.
fn signature(secret: &str, id: &str, seconds: &str, body: &[u8]) -> String {
    let decoded = secret
        .strip_prefix("whsec_")
        .and_then(|rest| STANDARD.decode(rest).ok());
    let key = decoded.as_deref().unwrap_or(secret.as_bytes());
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is taken");
    for part in [id.as_bytes(), b".", seconds.as_bytes(), b".", body] {
        mac.update(part);
    }
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// The most events that wait.
const QUEUE_MAX: usize = 1_000;

/// The wait before an event is sent a second time; it doubles each time.
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::Kind;
    use crate::admin::events::READERS_MAX;
    use tollgate_config::settings::Secret;
    use tollgate_policy::upstream::{Server, ServerAddress};

    fn webhook(events: Vec<WebhookEvent>) -> Webhook {
        let settings = Settings {
            url: Server {
                address: ServerAddress::Tcp("localhost".to_owned(), 1),
                tls: None,
                authority: http::uri::Authority::from_static("localhost:1"),
                base_path: String::new(),
                weight: 1,
            },
            events,
            secret: Some(Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")),
            timeout: tollgate_limit::Micros::from_secs(1),
            attempts: 1,
        };
        Webhook::new(&settings, Clock::system()).expect("no TLS is needed")
    }

    #[test]
    fn webhook_signature_follows_standard_webhooks() {
        // The example of the reference libraries of Standard Webhooks.
        let signed = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            b"{\"test\": 2432232314}",
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn webhook_queue_is_bounded_and_counts_what_it_drops() {
        let events = Events::new(Clock::system());
        let webhook = webhook(vec![WebhookEvent::Reset]);
        webhook.follow(&events);
        // All at once: more than wait for a reader.
        for number in 0..QUEUE_MAX + 5 {
            events.emit(Kind::Reset, &serde_json::json!({ "number": number }));
            events.emit(Kind::Reload, &serde_json::json!({}));
        }
        assert_eq!(webhook.0.queue.lock().len(), QUEUE_MAX);
        assert_eq!(webhook.0.dropped.load(Ordering::Relaxed), 5);
        let first = webhook.0.queue.lock().pop_front().expect("one");
        let body: serde_json::Value = serde_json::from_slice(&first.body).expect("JSON");
        assert_eq!(body["event"], "reset");
        assert_eq!(body["data"]["number"], 0);
        assert_eq!(body["id"], first.id);
        // It takes the place of no reader.
        let readers: Vec<_> = (0..READERS_MAX)
            .map(|_| events.subscribe(None, Arc::new(Notify::new())))
            .collect();
        assert!(readers.iter().all(Result::is_ok));
    }
}
