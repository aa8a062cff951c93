//! gRPC's health service: whether the gateway serves, and a message for each change.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::watch;

use crate::messages::{HealthCheckResponse, ServingStatus};
use crate::service::NAME;

/// Whether the gateway serves. Clones share it.
#[derive(Clone, Debug)]
pub struct Serving(watch::Sender<bool>);

impl Default for Serving {
    fn default() -> Self {
        Self(watch::Sender::new(true))
    }
}

impl Serving {
    /// Says that the gateway drains: clients should ask another one.
    pub fn drain(&self) {
        self.0.send_replace(false);
    }

    /// The status of a service; `None`: there is no such service.
    pub(crate) fn of(&self, service: &str) -> Option<ServingStatus> {
        is_known(service).then(|| status(*self.0.borrow()))
    }

    /// A stream of the status of a service.
    pub(crate) fn watch(&self, service: &str) -> Watching {
        Watching {
            known: is_known(service),
            serving: self.0.subscribe(),
            next: Next::Now,
        }
    }
}

fn is_known(service: &str) -> bool {
    service.is_empty() || service == NAME
}

fn status(serving: bool) -> ServingStatus {
    if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

/// A stream of a service's status. It ends when the gateway drains, because a drain waits for the
/// ends of all streams.
pub(crate) struct Watching {
    known: bool,
    serving: watch::Receiver<bool>,
    next: Next,
}

/// When the next message is due.
enum Next {
    Now,
    AfterChange(Pin<Box<dyn Future<Output = ()>>>),
    Never,
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl Watching {
    /// The next status: the present one first, then each change; `None`: the gateway drains.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<HealthCheckResponse>> {
        match &mut self.next {
            Next::Now => {}
            Next::AfterChange(change) => ready!(change.as_mut().poll(cx)),
            Next::Never => return Poll::Ready(None),
        }
        let serving = *self.serving.borrow_and_update();
        self.next = if serving {
            let mut serving = self.serving.clone();
            Next::AfterChange(Box::pin(async move {
                // An error says that the gateway has ended, which is a change as well.
                let _ = serving.changed().await;
            }))
        } else {
            Next::Never
        };
        let status = if self.known {
            status(serving)
        } else {
            ServingStatus::ServiceUnknown
        };
        Poll::Ready(Some(HealthCheckResponse {
            status: status.into(),
        }))
    }
}
