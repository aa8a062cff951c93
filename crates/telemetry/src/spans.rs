//! Spans of sampled requests, on their way to a collector of traces.
//!
//! A worker puts a span into a bounded queue; one that does not fit is dropped and counted.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::trace::TraceParent;

#[derive(Clone, Debug, Default)]
pub struct Span {
    /// Its trace, with the gateway's own span.
    pub trace: Option<TraceParent>,
    /// The span of the sender; `None`: the trace begins here.
    pub parent: Option<NonZeroU64>,
    /// When its head had arrived, microseconds since the Unix epoch.
    pub at_micros: u64,
    /// The time from its head to the end of its response, microseconds.
    pub duration_micros: u64,
    pub method: String,
    /// The requested path, without the query.
    pub path: String,
    pub host: String,
    /// `1.1`, `2`: the version of HTTP.
    pub version: &'static str,
    /// The route's name; empty: none matched.
    pub route: String,
    /// The status of the response; 499 if the client left before there was one.
    pub status: u16,
    /// The reason of a refusal or failure: a fixed word; empty: neither.
    pub reason: &'static str,
    /// Whether the gateway itself refused it.
    pub refused: bool,
    pub decision: String,
    pub received_bytes: u64,
    /// Bytes of the response's body.
    pub sent_bytes: u64,
    pub client: Option<IpAddr>,
    /// The known caller's name; empty: not in the list.
    pub caller: String,
    /// The upstream it was sent to; empty: none.
    pub upstream: String,
    pub user_agent: String,
}

/// The writing end of the queue. Clones share it.
#[derive(Clone, Debug)]
pub struct Spans {
    queue: SyncSender<Span>,
    dropped: Arc<AtomicU64>,
    /// The share of requests without a trace that begin one, in 10,000ths.
    sample: u16,
}

impl Spans {
    /// A queue for at most `room` spans, and its reading end.
    pub fn new(room: usize, sample: u16) -> (Self, Receiver<Span>) {
        let (queue, reader) = sync_channel(room);
        let spans = Self {
            queue,
            dropped: Arc::default(),
            sample,
        };
        (spans, reader)
    }

    /// The trace of a request with the gateway's own span in it, if the request is sampled: by its
    /// sender, or, where it belongs to no trace, by the share of requests. `random` are numbers
    /// that differ from request to request.
    pub fn sampled(
        &self,
        sent: Option<TraceParent>,
        mut random: impl FnMut() -> u64,
    ) -> Option<TraceParent> {
        let trace = match sent {
            Some(parent) if parent.is_sampled() => parent,
            Some(_) => return None,
            None if random() % u64::from(SAMPLE_ALL) < u64::from(self.sample) => TraceParent {
                trace_id: [random(), random() | 1],
                span_id: NonZeroU64::MIN,
                flags: super::trace::SAMPLED | super::trace::RANDOM,
            },
            None => return None,
        };
        Some(TraceParent {
            span_id: NonZeroU64::new(random()).unwrap_or(NonZeroU64::MIN),
            flags: trace.flags & (super::trace::SAMPLED | super::trace::RANDOM),
            ..trace
        })
    }

    /// Puts a span into the queue, or drops it.
    pub fn put(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.lost(1);
        }
    }

    pub fn lost(&self, spans: u64) {
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Every request, as a share.
const SAMPLE_ALL: u16 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03";
    const NOT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    /// Numbers that look random (Knuth's linear congruential generator).
    fn numbers() -> impl FnMut() -> u64 {
        let mut state: u64 = 1;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 16
        }
    }

    #[test]
    fn spans_follow_the_senders_sampling_or_a_share() {
        let (none, _reader) = Spans::new(1, 0);
        let parent = TraceParent::parse(SAMPLED);
        let trace = none
            .sampled(parent, numbers())
            .expect("sampled by the sender");
        assert_eq!(
            (trace.trace_id, trace.flags),
            (parent.expect("valid").trace_id, 3)
        );
        assert_ne!(
            trace.span_id,
            parent.expect("valid").span_id,
            "the gateway's own"
        );
        assert_eq!(none.sampled(TraceParent::parse(NOT), numbers()), None);
        assert_eq!(none.sampled(None, numbers()), None);
        let (all, _reader) = Spans::new(1, 10_000);
        assert_eq!(
            all.sampled(TraceParent::parse(NOT), numbers()),
            None,
            "its sender decides"
        );
        let begun = all.sampled(None, numbers()).expect("all of them");
        assert!(begun.is_sampled() && begun.trace_id != [0; 2]);
        assert_eq!(TraceParent::parse(begun.header().as_bytes()), Some(begun));
        let (tenth, _reader) = Spans::new(1, 1_000);
        let mut random = numbers();
        let sampled = (0..10_000)
            .filter(|_| tenth.sampled(None, &mut random).is_some())
            .count();
        assert!((500..2_000).contains(&sampled), "{sampled} of 10,000");
    }

    #[test]
    fn spans_beyond_the_queue_are_dropped_and_counted() {
        let (spans, reader) = Spans::new(2, 0);
        (0..5).for_each(|_| spans.put(Span::default()));
        assert_eq!((reader.try_iter().count(), spans.dropped()), (2, 3));
        drop(reader);
        spans.put(Span::default());
        assert_eq!(spans.dropped(), 4);
    }
}
