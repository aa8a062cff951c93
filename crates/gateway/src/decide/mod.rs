//! Decides about requests that other proxies and programs received: the listeners of `[decide]`.
//!
//! A [`Decider`] serves one worker beside its [`Gateway`]. It forwards nothing. Only peers in
//! `trusted` are heard, because they say where a request came from and what became of it.

use std::rc::Rc;

use http::{Request, Response, StatusCode};
use tollgate_limit::Micros;
use tollgate_policy::address::NetSet;

use crate::body::{Guarded, ResponseBody};
use crate::gateway::{Closing, Gateway};
use tollgate_net::server::{ConnInfo, Event, Handler, Inbound};
use tollgate_response::Problem;

/// The settings of the listeners for decisions. A reload replaces them.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The networks of the peers that may ask.
    pub trusted: NetSet,
    /// The status that replaces that of a refusal, where the peer's protocol needs it.
    pub refuse_status: Option<StatusCode>,
    /// The largest number of open permits.
    pub permits: usize,
    /// How long a permit stays open.
    pub permit_expiry: Micros,
}

/// Responds to the requests of other proxies and programs, on one worker.
pub struct Decider {
    gateway: Rc<Gateway>,
}

impl Decider {
    /// Creates the decider of the worker that `gateway` serves.
    pub fn new(gateway: Rc<Gateway>) -> Self {
        Self { gateway }
    }
}

impl Handler for Decider {
    type Body = Guarded<ResponseBody, Closing>;

    async fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> Response<Self::Body> {
        let snapshot = self.gateway.snapshot();
        // The address of the connection, whatever its headers say. A process that can connect to a
        // Unix socket is trusted.
        let trusted = |peer: std::net::SocketAddr| snapshot.deciding.trusted.contains(peer.ip());
        if !connection.peer.is_none_or(trusted) {
            return Problem::UNTRUSTED_PEER.response_to(request.method());
        }
        Problem::NO_RESOURCE.response_to(request.method())
    }

    fn observe(&self, event: Event<'_>) {
        self.gateway.observe(event);
    }
}
