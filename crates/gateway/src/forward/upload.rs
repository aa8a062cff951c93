//! Sends the rest of a request whose response has begun, as a separate task: the reader of the
//! response may read none of it before the request is sent.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Frame;
use tokio::task::AbortHandle;

use crate::forward::body::BodyError;
use crate::forward::pool::Connection;
use tollgate_net::client::Failure;

/// A connection whose request is still being sent while its response is read.
#[derive(Debug)]
pub(super) struct Upload {
    shared: Rc<RefCell<Shared>>,
    task: Task,
}

#[derive(Debug)]
struct Shared {
    connection: Box<Connection>,
    failed: Option<BodyError>,
    /// The task that waits for more of the response, and must be woken on that error.
    reader: Option<Waker>,
}

/// Aborts the task when dropped.
#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Upload {
    pub(super) fn begin(connection: Box<Connection>) -> Self {
        let shared = Rc::new(RefCell::new(Shared {
            connection,
            failed: None,
            reader: None,
        }));
        // A weak reference: the connection closes with its owner, not when the task notices.
        let known = Rc::downgrade(&shared);
        let sending = std::future::poll_fn(move |cx| {
            let Some(shared) = known.upgrade() else {
                return Poll::Ready(());
            };
            let shared = &mut *shared.borrow_mut();
            let outcome = std::task::ready!(shared.connection.poll_send(cx));
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

    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure<BodyError>>>> {
        let shared = &mut *self.shared.borrow_mut();
        if let Some(error) = shared.failed.take() {
            return Poll::Ready(Some(Err(Failure::Body(error))));
        }
        let frame = shared.connection.poll_body(cx, false);
        if frame.is_pending() {
            shared.reader = Some(cx.waker().clone());
        }
        frame
    }

    pub(super) fn left(&self) -> Option<u64> {
        self.shared.borrow().connection.left()
    }

    /// Returns the connection; nothing more of the request is sent.
    pub(super) fn end(self) -> Option<Box<Connection>> {
        drop(self.task);
        Rc::into_inner(self.shared).map(|shared| shared.into_inner().connection)
    }
}
