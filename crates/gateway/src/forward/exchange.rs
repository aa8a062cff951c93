//! Sends one request to a server and receives its response, over the version of HTTP that the server speaks.

mod http1;
mod http2;
mod opening;

use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use self::http1::http1;
use self::http2::http2;
use super::request::Outgoing;
use super::server::ServerState;
use super::upstreams::UpstreamState;
use super::{ForwardError, Forwarded};

/// After a connect error the request is still in `outgoing`, and may be sent to another server.
pub(super) async fn exchange(
    upstream: &UpstreamState,
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
) -> Result<Forwarded, ForwardError> {
    let slot = outgoing.in_time(pin!(server.pool.slot())).await??;
    if server.speaks_http2 && !server.http2_pool.prefers_http1.get() {
        return Box::pin(http2(upstream, server, outgoing, slot)).await;
    }
    let idle = std::future::poll_fn(|cx| Poll::Ready(slot.pool.take(cx))).await;
    let (connection, slot) = match idle {
        Some(connection) => (connection, slot),
        // The server may have changed to HTTP/2 by now.
        None if server.speaks_http2 => {
            return Box::pin(http2(upstream, server, outgoing, slot)).await;
        }
        None => opening::http1(server, outgoing, slot).await?,
    };
    http1(upstream, server, outgoing, slot, connection).await
}
