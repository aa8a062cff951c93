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
        #[pin]
        content: Content<B>,
        passage: Option<Box<Passage>>,
    }
}

pin_project! {
    #[project = ContentProjection]
    enum Content<B> {
        Service {
            #[pin]
            body: B,
        },
        Refusal {
            bytes: Bytes,
        },
    }
}

impl<B: Body> ResponseBody<B> {
    pub(super) fn new(body: B, passage: Option<Box<Passage>>) -> Self {
        let mut response = Self {
            content: Content::Service { body },
            passage,
        };
        if matches!(&response.content, Content::Service { body } if body.is_end_stream()) {
            end(&mut response.passage);
        }
        response
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self {
            content: Content::Refusal { bytes },
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
        match this.content.project() {
            ContentProjection::Refusal { bytes } => {
                let bytes = std::mem::take(bytes);
                let frame = (!bytes.is_empty()).then(|| Ok(Frame::data(bytes)));
                Poll::Ready(frame)
            }
            ContentProjection::Service { mut body } => {
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
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Service { body } => body.is_end_stream(),
            Content::Refusal { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Service { body } => body.size_hint(),
            Content::Refusal { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
