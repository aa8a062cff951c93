//! The gateway's own span of a sampled request.

use std::num::NonZeroU64;

use http::{HeaderMap, HeaderValue, Version};

use super::RequestContext;
use crate::refusals::{PATH_MAX, shortened};
use tollgate_telemetry::spans::Span;

pub(crate) struct Own {
    /// The sender's span; `None`: the trace begins here.
    parent: Option<NonZeroU64>,
}

impl RequestContext {
    /// Whether the request is sampled; it is then part of a trace with the gateway's own span.
    pub(crate) fn sample(&mut self) -> bool {
        let Some(spans) = &self.side.shared.spans else {
            return false;
        };
        let Some(trace) = spans.sampled(self.trace, || fastrand::u64(..)) else {
            return false;
        };
        self.span = Some(Box::new(Own {
            parent: self.trace.map(|sent| sent.span_id),
        }));
        self.trace = Some(trace);
        true
    }

    /// Makes the gateway the sender of the trace, if it has a span in it. `tracestate` belongs to
    /// the trace of the sender.
    pub(crate) fn pass_trace_on(&self, headers: &mut HeaderMap) {
        let (Some(own), Some(trace)) = (&self.span, self.trace) else {
            return;
        };
        if own.parent.is_none() {
            headers.remove("tracestate");
        }
        if let Ok(value) = HeaderValue::try_from(trace.header()) {
            headers.insert("traceparent", value);
        }
    }

    pub(crate) fn export(&self, [received, sent]: [u64; 2], took: u64) {
        let (Some(own), Some(spans), Some(head)) =
            (&self.span, &self.side.shared.spans, &self.head)
        else {
            return;
        };
        // A client decides about the lengths, and thousands of spans may wait for the collector.
        let text = |value: &Option<HeaderValue>| {
            let value = value.as_ref().map_or(&[][..], HeaderValue::as_bytes);
            shortened(&String::from_utf8_lossy(value), PATH_MAX)
        };
        let policy = &self.snapshot.policy;
        let path = head.path.as_ref().map_or("", |path| path.path());
        spans.put(Span {
            trace: self.trace,
            parent: own.parent,
            at_micros: self.side.wall.show(self.account.at).as_micros(),
            duration_micros: took,
            method: shortened(head.method.as_str(), PATH_MAX),
            path: shortened(path, PATH_MAX),
            host: text(&head.host),
            version: match head.version {
                Version::HTTP_10 => "1.0",
                Version::HTTP_2 => "2",
                _ => "1.1",
            },
            route: self
                .account
                .route
                .map_or_else(String::new, |route| policy.routes[route].name.to_string()),
            status: self.status,
            reason: self.reason,
            refused: self.turned_away,
            decision: self.id().as_str().to_owned(),
            received_bytes: received,
            sent_bytes: sent,
            client: self.client,
            caller: self
                .caller
                .as_ref()
                .map_or_else(String::new, |caller| caller.name.to_string()),
            upstream: self.upstream.map_or_else(String::new, |upstream| {
                policy.upstreams[upstream as usize].name.to_string()
            }),
            user_agent: text(&head.user_agent),
        });
    }
}
