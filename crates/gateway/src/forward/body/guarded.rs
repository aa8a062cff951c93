//! [`Guarded`] wraps a body with the actions at its end, complete or not: settle the permit, write
//! the access log, release the slot of a concurrency limit. It holds its guard inline; dropping it
//! also counts as an end.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::usage_event::UsageEvent;
use super::{BodyError, FramePoll, ResponseBody};
use tollgate_http1::Verbatim;
use tollgate_net::server::Payload;

/// Receives the pieces of a body as it is sent, and once its end.
pub trait Guard: Unpin {
    /// HTTP/1: writes the lines of the head that are not in its header table.
    fn write_fields(&self, _out: &mut Vec<u8>) {}
    fn on_data(&mut self, _piece: &Bytes) {}
    fn on_trailers(&mut self, _trailers: &HeaderMap) {}
    /// The body has ended, completely or not, after this many bytes were handed to the connection.
    /// Called exactly once.
    fn on_end(self, bytes: u64, outcome: BodyOutcome<'_>);
}

#[derive(Clone, Copy, Debug)]
pub enum BodyOutcome<'e> {
    Whole,
    Broken(&'e BodyError),
    /// It was dropped because the client left.
    Dropped,
}

/// A body with a guard that is notified of its end, including a drop.
pub struct Guarded<G: Guard> {
    body: ResponseBody,
    guard: Option<G>,
    bytes: u64,
    verbatim: Option<Verbatim>,
    /// Takes out the usage of a stream, once the guard has read it.
    usage: Option<Box<UsageEvent>>,
}

impl<G: Guard> Guarded<G> {
    pub fn new(body: ResponseBody, guard: G) -> Self {
        let mut guarded = Self::bare(body);
        guarded.guard = Some(guard);
        guarded
    }

    pub const fn bare(body: ResponseBody) -> Self {
        Self {
            body,
            guard: None,
            bytes: 0,
            verbatim: None,
            usage: None,
        }
    }

    #[must_use]
    pub fn with(mut self, verbatim: Option<Verbatim>) -> Self {
        self.verbatim = verbatim;
        self
    }

    /// Takes out the event that states the usage of a stream.
    #[must_use]
    pub fn without_usage(mut self) -> Self {
        self.usage = Some(Box::default());
        self
    }

    /// What passes of a piece; after the last one also what was held back.
    fn passed(&mut self, piece: Bytes) -> Bytes {
        let Some(usage) = &mut self.usage else {
            return piece;
        };
        let passed = usage.feed(piece);
        if !self.body.is_end_stream() {
            return passed;
        }
        let rest = usage.finish();
        self.usage = None;
        [passed, rest].concat().into()
    }

    fn finish(&mut self, outcome: BodyOutcome<'_>) {
        if let Some(guard) = self.guard.take() {
            guard.on_end(self.bytes, outcome);
        }
    }
}

impl<G: Guard> From<Bytes> for Guarded<G> {
    fn from(bytes: Bytes) -> Self {
        Self::bare(bytes.into())
    }
}

impl<G: Guard> Payload for Guarded<G> {
    fn take_verbatim(&mut self) -> Option<Verbatim> {
        self.verbatim.take()
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        if let Some(guard) = &self.guard {
            guard.write_fields(out);
        }
    }
}

impl<G: Guard> Body for Guarded<G> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let this = self.get_mut();
        loop {
            let mut frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
            match &mut frame {
                None => {
                    let rest = this.usage.take().map(|mut usage| usage.finish());
                    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                        // The body is polled again, and is at its end then, too.
                        this.bytes += rest.len() as u64;
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                    this.finish(BodyOutcome::Whole);
                }
                Some(Err(error)) => this.finish(BodyOutcome::Broken(error)),
                Some(Ok(part)) => {
                    if let Some(piece) = part.data_mut().map(std::mem::take) {
                        if let Some(guard) = &mut this.guard {
                            guard.on_data(&piece);
                        }
                        let piece = this.passed(piece);
                        if piece.is_empty() && !this.body.is_end_stream() {
                            continue;
                        }
                        this.bytes += piece.len() as u64;
                        *part = Frame::data(piece);
                    } else if let (Some(trailers), Some(guard)) =
                        (part.trailers_ref(), &mut this.guard)
                    {
                        guard.on_trailers(trailers);
                    }
                    // A connection does not poll again after the last piece of a body of known length.
                    if this.body.is_end_stream() {
                        this.finish(BodyOutcome::Whole);
                    }
                }
            }
            return Poll::Ready(frame);
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.usage.is_some() {
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}

impl<G: Guard> Drop for Guarded<G> {
    fn drop(&mut self) {
        // A body without bytes is never polled, but counts as sent completely.
        self.finish(if self.body.is_end_stream() {
            BodyOutcome::Whole
        } else {
            BodyOutcome::Dropped
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use http_body_util::BodyExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Diary(Rc<RefCell<Vec<String>>>);

    impl Guard for Diary {
        fn on_data(&mut self, piece: &Bytes) {
            self.0.borrow_mut().push(format!("data {}", piece.len()));
        }
        fn on_end(self, bytes: u64, outcome: BodyOutcome<'_>) {
            self.0.borrow_mut().push(format!("end {bytes} {outcome:?}"));
        }
    }

    #[tokio::test]
    async fn guarded_body_sent_completely_ends_once() {
        let diary = Diary::default();
        let body = Guarded::new(ResponseBody::from("hello".to_owned()), diary.clone());
        assert_eq!(
            body.collect().await.expect("bytes at hand").to_bytes(),
            "hello"
        );
        assert_eq!(*diary.0.borrow(), ["data 5", "end 5 Whole"]);
    }

    #[test]
    fn guarded_body_dropped_ends_as_dropped() {
        let diary = Diary::default();
        drop(Guarded::new(
            ResponseBody::from("hello".to_owned()),
            diary.clone(),
        ));
        assert_eq!(*diary.0.borrow(), ["end 0 Dropped"]);
    }

    #[test]
    fn guarded_empty_body_never_polled_ends_complete() {
        let diary = Diary::default();
        drop(Guarded::new(ResponseBody::EMPTY, diary.clone()));
        assert_eq!(*diary.0.borrow(), ["end 0 Whole"]);
    }
}
