//! Messages that arrive slowly, or never. The tests move the clock of the runtime.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use super::{MESSAGE_MAX, Requests, Status, framed};
use crate::messages::HealthCheckRequest;

/// A body that sends one piece after each pause, and does not end.
struct Paced {
    pieces: VecDeque<Bytes>,
    pause: Duration,
    next: Pin<Box<Sleep>>,
}

impl Paced {
    fn new(pieces: impl IntoIterator<Item = Bytes>, pause: u64) -> Self {
        let pause = Duration::from_secs(pause);
        Self {
            pieces: pieces.into_iter().collect(),
            pause,
            next: Box::pin(sleep(pause)),
        }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.pieces.is_empty() {
            return Poll::Pending;
        }
        std::task::ready!(self.next.as_mut().poll(cx));
        let next = Instant::now() + self.pause;
        self.next.as_mut().reset(next);
        let piece = self.pieces.pop_front().expect("there is one");
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

fn message() -> HealthCheckRequest {
    HealthCheckRequest {
        service: "a".repeat(20),
    }
}

/// The bytes of a message, each in a piece of its own.
fn bytes() -> Vec<Bytes> {
    let whole = framed(&message());
    (0..whole.len()).map(|at| whole.slice(at..=at)).collect()
}

async fn next(requests: &mut Requests<Paced>) -> Option<Result<HealthCheckRequest, Status>> {
    std::future::poll_fn(|cx| requests.poll_next(cx)).await
}

const LATE: Status = Status::deadline_exceeded("no message arrived within 10 seconds");

#[tokio::test(start_paused = true)]
async fn grpc_message_that_is_not_whole_within_ten_seconds_ends_the_call() {
    for pieces in [Vec::new(), bytes()] {
        let begin = Instant::now();
        let read = Requests::new(Paced::new(pieces, 4), MESSAGE_MAX).one::<HealthCheckRequest>();
        assert_eq!(read.await, Err(LATE));
        let took = begin.elapsed().as_secs();
        assert!((10..12).contains(&took), "{took}");
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_stream_has_ten_seconds_for_each_message_and_ends_at_the_first_that_is_late() {
    let body = Paced::new([(); 3].map(|()| framed(&message())), 9);
    let mut requests = Requests::new(body, MESSAGE_MAX);
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(next(&mut requests).await, Some(Ok(message())));
    }
    assert_eq!(begin.elapsed().as_secs(), 27);
    assert_eq!(next(&mut requests).await, Some(Err(LATE)));
    let took = begin.elapsed().as_secs();
    assert!((37..39).contains(&took), "{took}");
    assert_eq!(next(&mut requests).await, None);
}
