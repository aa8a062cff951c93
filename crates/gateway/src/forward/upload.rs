//! The rest of a request whose answer has begun: it goes on by a task of its own, since whoever takes the response may take
//! nothing of it before the request is sent.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Frame;
use tokio::task::AbortHandle;

use crate::body::BodyError;
use crate::pool::Connection;
use tollgate_net::client::Failure;

/// A connection whose request is still on its way while its response is read.
#[derive(Debug)]
pub(super) struct Upload {
    shared: Rc<RefCell<Shared>>,
    task: Task,
}

#[derive(Debug)]
struct Shared {
    connection: Box<Connection>,
    /// The request's body broke off.
    failed: Option<BodyError>,
    /// The task that waits for more of the response, and has to learn of that.
    reader: Option<Waker>,
}

/// Ends the task with whoever began it.
#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Upload {
    /// Has what is left of the request on `connection` go out.
    pub(super) fn begin(connection: Box<Connection>) -> Self {
        let shared = Rc::new(RefCell::new(Shared {
            connection,
            failed: None,
            reader: None,
        }));
        // Not held by the task: the connection closes with its holder, not when the task has heard of it.
        let known = Rc::downgrade(&shared);
        let sending = std::future::poll_fn(move |cx| {
            let Some(shared) = known.upgrade() else {
                return Poll::Ready(());
            };
            let shared = &mut *shared.borrow_mut();
            let outcome = std::task::ready!(shared.connection.poll_upload(cx));
            if let Err(error) = outcome {
                shared.failed = Some(error);
                if let Some(reader) = shared.reader.take() {
                    reader.wake();
                }
            }
            Poll::Ready(())
        });
        let task = Task(tokio::task::spawn_local(sending).abort_handle());
        Self { shared, task }
    }

    /// The next piece of the response's body.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure<BodyError>>>> {
        let shared = &mut *self.shared.borrow_mut();
        if let Some(error) = shared.failed.take() {
            return Poll::Ready(Some(Err(Failure::Body(error))));
        }
        let frame = shared.connection.poll_body_alone(cx);
        if frame.is_pending() {
            shared.reader = Some(cx.waker().clone());
        }
        frame
    }

    /// Bytes of the response's body that are to come, if that is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.shared.borrow().connection.left()
    }

    /// The connection; nothing more of the request goes out.
    pub(super) fn end(self) -> Option<Box<Connection>> {
        drop(self.task);
        Rc::into_inner(self.shared).map(|shared| shared.into_inner().connection)
    }
}
