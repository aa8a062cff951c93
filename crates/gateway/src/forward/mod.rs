//! Forwards an admitted request to its upstream, and returns the response.
//!
//! Bodies stream both ways and are never buffered whole. A request is sent a second time only if no
//! server has seen any of it, or if the upstream's retries allow it; they never allow it for a
//! request that a server may have processed and must not process twice.

mod balance;
mod blame;
pub mod body;
mod callers_deadline;
mod connect;
pub(crate) mod echo;
mod error;
mod exchange;
mod health_record;
mod incidents;
mod kept_body;
mod http2_pool;
mod members;
mod outgoing;
pub mod pool;
mod minimum_rate;
mod response;
mod response_timeout;
mod probe;
mod proxy_header;
mod request;
mod request_body;
mod resolver;
mod retry;
mod server;
pub mod tls;
mod tunnel;
mod upload;
mod upstream_health;
mod upstreams;

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::VIA;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use super::framing::RequestTarget;
use super::proxy_defaults::ProxyDefaults;
pub use blame::{Blame, ServerSign};
use body::{Received, ResponseBody};
pub(crate) use callers_deadline::CallersDeadline;
pub use error::ForwardError;
pub use incidents::{ServerHealth, ServerStatus};
use members::bit;
pub(crate) use minimum_rate::MinimumRate;
use pool::Slot;
use request::Outgoing;
pub use request_body::RequestBody;
pub use response::{UpstreamHttp1, UpstreamHttp2};
use retry::Again;
use tollgate_http1::Verbatim;
use tollgate_limit::Micros;
use tollgate_limiter::Permit;
use tollgate_net::server::{ConnInfo, Hold, Inbound, OnUpgrade};
use tollgate_policy::routes::Route;
use tollgate_policy::upstream::Upstream;
use tollgate_policy::{FilledEdits, Policy};
pub use tunnel::{Carried, Tunnel};
pub use upstream_health::UpstreamHealth;
use upstreams::{UpstreamState, Upstreams};

/// Forwards requests over the connections of one worker. Not shared between threads.
#[derive(Default)]
pub struct Forwarder {
    upstreams: Rc<Upstreams>,
    swept: Cell<bool>,
    /// When an unusable upstream was last logged.
    unusable_logged: Cell<Option<Instant>>,
}

pub struct ForwardContext<'p> {
    pub connection: &'p ConnInfo,
    pub target: RequestTarget,
    pub policy: &'p Policy,
    pub defaults: &'p ProxyDefaults,
    pub route: &'p Route,
    pub request_edits: FilledEdits<'p>,
    /// The hash of the caller's identity, for `balance = "identity_hash"`.
    pub caller: u64,
    pub body_max: Option<u64>,
    pub received: Received,
    /// Whether the response headers go to the client unchanged, except for added ones.
    pub verbatim: bool,
}

/// A response, and the tunnel to run if it was a 101.
#[derive(Debug)]
pub struct Forwarded {
    pub response: Response<ResponseBody>,
    /// Unparsed headers of its head, if that was allowed; they come before the others.
    pub verbatim: Option<Verbatim>,
    /// Spawn [`Tunnel::run`] on the worker once the response is being sent.
    pub tunnel: Option<Box<Tunnel>>,
    pub blame: Blame,
    /// The part of the time until it that passed while the gateway waited for the client's body.
    pub(crate) waited: Micros,
    /// The deadline of the caller that may end the rest of its body.
    pub(crate) callers_deadline: Option<CallersDeadline>,
}

impl Forwarder {
    pub fn of(health: UpstreamHealth) -> Self {
        Self {
            upstreams: Rc::new(Upstreams::new(health)),
            ..Self::default()
        }
    }

    /// Starts the health checks of the servers of `upstreams` before their first requests.
    pub fn watch(&self, upstreams: &[Arc<Upstream>]) {
        for upstream in upstreams.iter().filter(|one| one.health.is_some()) {
            if let Err(error) = self.upstreams.state(upstream) {
                tracing::warn!(upstream = %upstream.name, %error, "its health checks cannot start");
            }
        }
    }

    /// Sends `request` to `upstream`. The future returns the response as soon as its head has
    /// arrived. Dropping the future, or the response's body, cancels the request upstream. Work
    /// that needs no waiting is done before the future is created, so that the future does not hold
    /// the original request. The permit proves that the limiter admitted the request.
    ///
    /// # Errors
    /// The reason why it cannot be sent; the future returns the reason why there is no response.
    pub fn forward<'f>(
        &'f self,
        _permit: &Permit,
        forwarding: ForwardContext<'f>,
        upstream: &Arc<Upstream>,
        request: Request<Inbound>,
    ) -> Result<impl Future<Output = Result<Forwarded, ForwardError>> + use<'f>, ForwardError> {
        let state = self
            .upstreams
            .state(upstream)
            .inspect_err(|error| self.log_unusable(upstream, error))?;
        // Idle connections are swept once a second while this forwarder lives.
        if !self.swept.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(&self.upstreams)));
        }
        let caller = forwarding.caller;
        let defaults = forwarding.defaults;
        let mut outgoing = outgoing::prepare(forwarding, upstream, request)?;
        Ok(async move {
            let mut forwarded = self.attempt(&state, caller, &mut outgoing).await?;
            // The version of the upstream's protocol is meaningless to the client.
            let version = std::mem::replace(forwarded.response.version_mut(), Version::HTTP_11);
            if let Some(via) = defaults.via.as_ref().map(|via| via.of_response(version)) {
                match &mut forwarded.verbatim {
                    Some(verbatim) => verbatim.via = Some(via),
                    None => _ = forwarded.response.headers_mut().append(VIA, via),
                }
            }
            Ok(forwarded)
        })
    }

    /// Tries servers until one responds, as often as the upstream's retries and their budget allow.
    async fn attempt(
        &self,
        state: &UpstreamState,
        caller: u64,
        outgoing: &mut Outgoing,
    ) -> Result<Forwarded, ForwardError> {
        let mut tried = 0;
        state.deposit();
        let roster = outgoing.in_time(pin!(state.members.roster())).await??;
        if retry::needs_copy(state, roster.servers.len() > 1, outgoing) {
            outgoing.keep_copy();
        }
        let (mut sibling, mut siblings) = (None, 0);
        loop {
            let picked = sibling
                .take()
                .or_else(|| state.pick(&roster, caller, tried));
            let index = picked.ok_or(ForwardError::NoServer)?;
            let server = &roster.servers[index];
            let result = exchange::exchange(state, server, outgoing).await;
            server.observe(&result);
            let outcome = match &result {
                Ok(forwarded) => {
                    retry::AttemptOutcome::Status(forwarded.response.status().as_u16())
                }
                Err(error) => retry::AttemptOutcome::Error(error),
            };
            if siblings < SIBLINGS_MOST && retry::tries_siblings(&outcome, outgoing) {
                tried |= bit(index);
                sibling = roster.sibling(index, tried);
                if sibling.is_some() {
                    siblings += 1;
                    outgoing.counted = false;
                    drop(result);
                    outgoing.restore();
                    continue;
                }
            }
            let again = retry::decide(&outcome, state, outgoing);
            if !std::mem::take(&mut outgoing.counted) {
                outgoing.attempts = outgoing.attempts.saturating_sub(1);
            }
            if again == Again::No {
                return result;
            }
            tried |= bit(index);
            // Free its place before requesting another.
            drop(result);
            outgoing.restore();
        }
    }

    /// Logs, at most once a second, that no server of `upstream` can be used.
    #[cold]
    fn log_unusable(&self, upstream: &Upstream, error: &ForwardError) {
        let now = Instant::now();
        let logged = &self.unusable_logged;
        if logged
            .get()
            .is_none_or(|at| now.duration_since(at) >= UNUSABLE_EVERY)
        {
            logged.set(Some(now));
            tracing::warn!(upstream = %upstream.name, %error, "an upstream cannot be used");
        }
    }
}

async fn sweep(upstreams: Weak<Upstreams>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        second.tick().await;
        let Some(upstreams) = upstreams.upgrade() else {
            return;
        };
        // The connections register this task's waker: a connection that closes while idle wakes it
        // needlessly, at most once.
        std::future::poll_fn(|cx| {
            upstreams.for_each(|server| {
                server.pool.sweep(cx);
                server.http2_pool.sweep();
            });
            Poll::Ready(())
        })
        .await;
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// The data with which an exchange turns a 101 into a tunnel.
#[derive(Debug)]
struct Upgrade {
    client: OnUpgrade,
    protocol: HeaderValue,
    idle: Micros,
    /// Set if requested by extended CONNECT; keeps the client's connection alive meanwhile. Success
    /// is then a 200 and no other status.
    bridged: Option<Hold>,
}

/// How many other addresses of a name are tried if connecting to one fails.
const SIBLINGS_MOST: u32 = 3;
const UNUSABLE_EVERY: Duration = Duration::from_secs(1);
const SWITCHING: StatusCode = StatusCode::SWITCHING_PROTOCOLS;

/// A socket to a server, before any encryption.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

tollgate_net::delegate_io!(Socket: Tcp, Unix);

#[derive(Debug)]
pub enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

tollgate_net::delegate_io!(Stream: Plain, Tls);

#[cfg(test)]
mod tests;
