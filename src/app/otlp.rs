//! Sends spans of sampled requests to a collector: OTLP over HTTP, in its JSON form (OpenTelemetry
//! Protocol 1.x).
//!
//! A thread takes the spans from their queue. While the collector does not take them the queue
//! fills, and further spans are dropped and counted.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::outbound::Service;
use crate::own_thread::OwnThread;
use tollgate_config::settings::Traces;
use tollgate_telemetry::spans::{Span, Spans};
use tollgate_telemetry::trace::TraceParent;

/// Starts the exporter, which sends the rest once when it is dropped; also returns the queue.
pub(super) fn start(settings: &Traces) -> io::Result<(OwnThread, Spans)> {
    let service = Service::new(&settings.url, settings.timeout.into()).map_err(io::Error::other)?;
    let mut headers = Vec::new();
    if let Some(token) = &settings.token {
        let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
        let value = value.map_err(|_| io::Error::other("traces.token: no header takes it"))?;
        headers.push((AUTHORIZATION, value));
    }
    let (spans, reader) = Spans::new(QUEUE_MAX, settings.sample.unwrap_or(0));
    let (name, queue) = (settings.service.clone(), spans.clone());
    let exporter = OwnThread::start("traces", move |stopped| {
        let sender = Sender {
            service,
            headers,
            name,
            spans: queue,
            stopped,
        };
        async move { sender.run(&reader).await }
    })?;
    Ok((exporter, spans))
}

struct Sender {
    service: Service,
    headers: Vec<(HeaderName, HeaderValue)>,
    name: String,
    spans: Spans,
    stopped: watch::Receiver<bool>,
}

impl Sender {
    async fn run(&self, reader: &Receiver<Span>) {
        while !self.is_stopped() {
            let batch = self.gather(reader);
            if !batch.is_empty() {
                self.send(&batch, ATTEMPTS).await;
            }
        }
        let rest: Vec<Span> = reader.try_iter().take(BATCH_MAX).collect();
        if !rest.is_empty() {
            let last = tokio::time::timeout(LAST_WORDS, self.send(&rest, 1));
            if last.await.is_err() {
                self.spans.lost(rest.len() as u64);
            }
        }
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    async fn send(&self, batch: &[Span], attempts: u32) {
        let document = Bytes::from(document(&self.name, batch).to_string());
        let mut wait = BACKOFF;
        for attempt in 1..=attempts {
            let failed = match self.service.post(document.clone(), &self.headers).await {
                Ok(()) => return,
                Err(failed) => failed,
            };
            if !failed.again || attempt == attempts || self.is_stopped() {
                tracing::warn!(
                    spans = batch.len(),
                    "spans are dropped: the collector: {}",
                    failed.why
                );
                break;
            }
            tokio::time::sleep(failed.wait.unwrap_or(wait).min(BACKOFF_MAX)).await;
            wait *= 2;
        }
        self.spans.lost(batch.len() as u64);
    }
    /// The spans of the next moment, at most a batch. The thread has nothing else to do meanwhile.
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a thread waits is real time"
    )]
    fn gather(&self, reader: &Receiver<Span>) -> Vec<Span> {
        let mut batch = Vec::new();
        let mut until = Instant::now() + LOOK_EVERY;
        while batch.len() < BATCH_MAX && !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            match reader.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(span) => {
                    if batch.is_empty() {
                        until = Instant::now() + GATHER;
                    }
                    batch.push(span);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => break,
            }
        }
        batch
    }
}

fn document(service: &str, batch: &[Span]) -> Value {
    let resource = [
        text("service.name", service),
        text("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let spans: Vec<Value> = batch.iter().filter_map(span).collect();
    json!({
        "resourceSpans": [{
            "resource": { "attributes": resource.into_iter().flatten().collect::<Vec<_>>() },
            "scopeSpans": [{
                "scope": { "name": "tollgate", "version": env!("CARGO_PKG_VERSION") },
                "spans": spans,
            }],
        }],
    })
}

fn span(span: &Span) -> Option<Value> {
    let trace = span.trace?;
    let digits = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
    let parent = span.parent.map(|span_id| TraceParent { span_id, ..trace });
    let name = match span.route.as_str() {
        "" => span.method.clone(),
        route => format!("{} {route}", span.method),
    };
    let nanos = |micros: u64| (u128::from(micros) * 1_000).to_string();
    let client = span.client.map(|client| client.to_string());
    let attributes = [
        text("http.request.method", &span.method),
        text("url.path", &span.path),
        text("server.address", &span.host),
        text("network.protocol.version", span.version),
        text("http.route", &span.route),
        text("user_agent.original", &span.user_agent),
        text("client.address", client.as_deref().unwrap_or_default()),
        number("http.response.status_code", u64::from(span.status)),
        number("http.request.body.size", span.received_bytes),
        number("http.response.body.size", span.sent_bytes),
        text("tollgate.decision_id", &span.decision),
        text("tollgate.reason", span.reason),
        span.refused
            .then(|| json!({ "key": "tollgate.refused", "value": { "boolValue": true } })),
        text("tollgate.caller", &span.caller),
        text("tollgate.upstream", &span.upstream),
    ];
    // A server's span has failed if the server has (OpenTelemetry's conventions for HTTP).
    let status = if span.status >= 500 {
        json!({ "code": 2, "message": span.reason })
    } else {
        json!({})
    };
    Some(json!({
        "traceId": digits(&trace.trace()),
        "spanId": digits(&trace.span()),
        "parentSpanId": parent.map_or_else(String::new, |parent| digits(&parent.span())),
        "flags": trace.flags,
        "name": name,
        "kind": 2,
        "startTimeUnixNano": nanos(span.at_micros),
        "endTimeUnixNano": nanos(span.at_micros + span.duration_micros),
        "attributes": attributes.into_iter().flatten().collect::<Vec<_>>(),
        "status": status,
    }))
}

/// An attribute; `None`: it is empty.
fn text(key: &str, value: &str) -> Option<Value> {
    (!value.is_empty()).then(|| json!({ "key": key, "value": { "stringValue": value } }))
}

/// The same for a number, which JSON has as text.
fn number(key: &str, value: u64) -> Option<Value> {
    Some(json!({ "key": key, "value": { "intValue": value.to_string() } }))
}

/// The most spans that wait: some megabytes.
const QUEUE_MAX: usize = 4_096;
const BATCH_MAX: usize = 512;
const GATHER: Duration = Duration::from_secs(1);
/// How often the end of the process is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a document is sent, and the wait before the second time, which doubles.
const ATTEMPTS: u32 = 4;
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// How long the end of the process waits for the last spans.
const LAST_WORDS: Duration = Duration::from_secs(1);
