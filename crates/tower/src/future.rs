//! The future of a limited request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tower_service::Service;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;

use super::ResponseBody;
use super::admit::{Next, Work, resume};
use super::layer::LayerState;
use super::passage::Due;

pin_project! {
    /// The response of a limited service: the service's own, or a refusal.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B>
    where
        S: Service<Request<B>>,
    {
        /// The limits have not decided yet: a store was asked, or the request is held.
        Deciding {
            work: Work,
            shared: Arc<LayerState>,
            waiting: Option<(S, Request<B>)>,
        },
        /// The service has the request.
        Serving {
            #[pin]
            response: S::Future,
            due: Option<Due>,
        },
        Refused {
            response: Option<Box<Response<Bytes>>>,
        },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn serving(response: S::Future, due: Due) -> Self {
        let due = Some(due);
        Self {
            state: State::Serving { response, due },
        }
    }

    pub(super) fn refused(response: Box<Response<Bytes>>) -> Self {
        let response = Some(response);
        Self {
            state: State::Refused { response },
        }
    }

    pub(super) fn deciding(
        work: Work,
        shared: Arc<LayerState>,
        ready: S,
        request: Request<B>,
    ) -> Self {
        let waiting = Some((ready, request));
        let state = State::Deciding {
            work,
            shared,
            waiting,
        };
        Self { state }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    B: Body,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        const AFTER_END: &str = "a future is not polled after its end";
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Serving { response, due } => {
                    let mut response = ready!(response.poll(context))?;
                    let passage = due.take().expect(AFTER_END).respond(&mut response);
                    let response = response.map(|body| ResponseBody::new(body, passage));
                    return Poll::Ready(Ok(response));
                }
                StateProjection::Refused { response } => {
                    let response = response.take().expect(AFTER_END);
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
                StateProjection::Deciding {
                    work,
                    shared,
                    waiting,
                } => {
                    let (passage, admission) = ready!(work.as_mut().poll(context));
                    let (_, request) = waiting.as_ref().expect(AFTER_END);
                    match resume(shared, request, passage, admission) {
                        Next::Wait(more) => {
                            *work = more;
                            continue;
                        }
                        Next::Refuse(response) => State::Refused {
                            response: Some(response),
                        },
                        Next::Admit(due) => {
                            let (mut service, mut request) = waiting.take().expect(AFTER_END);
                            due.keep_readable(&mut request);
                            State::Serving {
                                response: service.call(request),
                                due: Some(due),
                            }
                        }
                    }
                }
            };
            state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
