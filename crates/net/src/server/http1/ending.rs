//! Closes a connection, with its last response where one is due.

use std::time::Duration;

use super::{Connection, Stop};
use crate::server::bounds::ConnectionSlot;
use crate::server::io::Transport;
use crate::server::respond::UnreadReason;
use crate::server::{Event, Handler, Unread};
use crate::timers::within;
use tollgate_http1::request::BadHead;

impl<H: Handler> Connection<H> {
    fn beginning(&self, stop: Stop) -> Vec<u8> {
        if !matches!(stop, Stop::Bad(_) | Stop::TooSlow) {
            return Vec::new();
        }
        let mut core = self.core.borrow_mut();
        let input = core.input.bytes();
        input[..input.len().min(BEGINNING)].to_vec()
    }

    pub(super) async fn end(&mut self, stop: Stop) {
        let began = self.beginning(stop);
        let heard = !self.core.borrow().input.is_empty();
        let ended = self.core.borrow().ended;
        let Some((mut transport, place)) = self.core.borrow_mut().take() else {
            return;
        };
        let stats = &self.served.shared.stats;
        match stop {
            Stop::Rest | Stop::Done => {}
            Stop::Linger => return linger(transport, place).await,
            Stop::Broken => return transport.reset(),
            Stop::TooSlow => {
                let reason = UnreadReason::SlowHead;
                let unread = reason.unread(&self.served.connection, &began);
                let status = unread.status.filter(|_| heard);
                let unread = Unread { status, ..unread };
                self.served.handler.observe(Event::BadHead(unread));
                // An idle client would take it for a response.
                return if heard {
                    transport.dismiss(&reason.problem().last_response())
                } else {
                    transport.close().await
                };
            }
            Stop::Unread => {
                stats.slow_reads.add();
                return;
            }
            Stop::Idle => stats.idle_closed.add(),
            Stop::Bad(bad) => {
                let reason = match bad {
                    BadHead::Malformed if is_handshake(&began) => UnreadReason::Tls,
                    bad => bad.into(),
                };
                let unread = reason.unread(&self.served.connection, &began);
                self.served.handler.observe(Event::BadHead(unread));
                transport.write_now(&reason.problem().last_response());
                if !ended {
                    return linger(transport, place).await;
                }
            }
        }
        transport.close().await;
        drop(place);
    }
}

/// Whether bytes that are no request begin a TLS handshake (RFC 8446 5.1).
fn is_handshake(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16, 0x03, ..])
}

/// Shuts down the write side, then reads and discards the client's bytes, until it ends or enough
/// have arrived. Closing with unread bytes would reset the connection, and the reset could overtake
/// our last response.
pub(in crate::server) async fn linger(mut transport: Transport, place: ConnectionSlot) {
    let _ = within(LINGER, transport.linger(LINGER_BYTES)).await;
    drop(place);
}

/// The number of bytes of a refused head that are logged.
const BEGINNING: usize = 2048;
/// How long, and for how many bytes, the connection reads from a client that keeps sending.
pub(super) const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 << 20;
