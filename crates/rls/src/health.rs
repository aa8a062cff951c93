//! gRPC's health service: whether the gateway serves, and a message for each change.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::watch;

use crate::messages::{HealthCheckResponse, ServingStatus};
use crate::service::NAME;

/// Whether the gateway serves. Clones share it.
#[derive(Clone)]
pub struct Serving {
    drains: watch::Sender<bool>,
    is_ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("drains", &*self.drains.borrow())
            .finish_non_exhaustive()
    }
}

impl Serving {
    /// A gateway that serves while it `is_ready`, until it drains.
    pub fn new(is_ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            drains: watch::Sender::new(false),
            is_ready: Arc::new(is_ready),
        }
    }

    /// Says that the gateway drains: clients should ask another one.
    pub fn drain(&self) {
        self.drains.send_replace(true);
    }

    /// The status of a service; `None`: there is no such service.
    pub(crate) fn of(&self, service: &str) -> Option<ServingStatus> {
        let serves = || !*self.drains.borrow() && (self.is_ready)();
        is_known(service).then(|| status(serves()))
    }

    pub(crate) fn watch(&self, service: &str) -> Watching {
        Watching {
            known: is_known(service),
            serving: self.clone(),
            next: Next::Now,
        }
    }

    /// Waits until the gateway drains, or is ready or not, other than it `was`.
    async fn changed(&self, was: bool) {
        let mut drains = self.drains.subscribe();
        while !*drains.borrow_and_update() && (self.is_ready)() == was {
            let _ = tokio::time::timeout(LOOK_EVERY, drains.changed()).await;
        }
    }
}

/// How often a stream looks whether the gateway is ready.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    serving: Serving,
    next: Next,
}

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
        let drains = *self.serving.drains.borrow();
        let is_ready = (self.serving.is_ready)();
        self.next = if drains {
            Next::Never
        } else {
            let serving = self.serving.clone();
            Next::AfterChange(Box::pin(async move { serving.changed(is_ready).await }))
        };
        let status = if self.known {
            status(!drains && is_ready)
        } else {
            ServingStatus::ServiceUnknown
        };
        Poll::Ready(Some(HealthCheckResponse {
            status: status.into(),
        }))
    }
}
