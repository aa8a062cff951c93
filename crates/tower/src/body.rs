//! The body of a response: the service's own, or a refusal's.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::passage::Passage;

pin_project! {
    /// The body of a limited service's response. It holds the request's place in concurrency limits
    /// until it has ended or is dropped, and settles charges that depend on it.
    pub struct ResponseBody<B> {
        // The service's body; `None`: the request is refused.
        #[pin]
        body: Option<B>,
        refusal: Bytes,
        passage: Option<Box<Passage>>,
    }
}

impl<B: Body> ResponseBody<B> {
    pub(super) fn new(body: B, mut passage: Option<Box<Passage>>) -> Self {
        if body.is_end_stream() {
            end(&mut passage);
        }
        Self {
            body: Some(body),
            refusal: Bytes::new(),
            passage,
        }
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self {
            body: None,
            refusal: bytes,
            passage: None,
        }
    }
}

/// Settles the request of a body that has ended.
fn end(passage: &mut Option<Box<Passage>>) {
    if let Some(passage) = passage.take() {
        passage.end();
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(mut body) = this.body.as_pin_mut() else {
            let bytes = std::mem::take(this.refusal);
            let frame = (!bytes.is_empty()).then(|| Ok(Frame::data(bytes)));
            return Poll::Ready(frame);
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        match (&frame, this.passage.as_mut()) {
            (None, _) => end(this.passage),
            (Some(Ok(frame)), Some(passage)) => {
                if let Some(data) = frame.data_ref() {
                    passage.data(data);
                }
                // A server does not ask again after the last piece.
                if body.is_end_stream() {
                    end(this.passage);
                }
            }
            // Broken off: dropped, which lowers no charge.
            (Some(Err(_)), _) => *this.passage = None,
            (Some(Ok(_)), None) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(body) => body.is_end_stream(),
            None => self.refusal.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(self.refusal.len() as u64),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
