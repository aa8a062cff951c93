//! Runs a connection after a 101: copies bytes both ways until both sides have ended, the idle
//! timeout passes, or the gateway shuts down.

mod frames;
mod direction;

use bytes::Bytes;
use std::task::Poll;
use std::time::Duration;

use super::{Slot, Stream, Upgrade};
use crate::proxy_defaults::protocol_name;
use direction::Direction;
use frames::{Frames, Role};
use tollgate_limit::Micros;
use tollgate_net::timers::Deadline;
use tollgate_net::worker::Task;

/// An upgraded connection, to be run by [`Tunnel::run`].
#[derive(Debug)]
pub struct Tunnel {
    pub(super) upgrade: Upgrade,
    pub(super) upstream: Stream,
    /// Bytes that the upstream sent directly after its 101.
    pub(super) early: Bytes,
    pub(super) slot: Slot,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub up: u64,
    pub down: u64,
}

impl Tunnel {
    /// Copies bytes both ways until both sides have ended, one fails, or nothing moves for the idle
    /// timeout. Runs as a separate task; the response has been sent by then.
    ///
    /// If one side of a WebSocket ends, the other has a few seconds to end too. In other protocols
    /// one side may continue long after the other, so after the upstream has ended the client's
    /// bytes are copied while any arrive.
    ///
    /// When `task` reports a drain, both sides of a WebSocket receive a close frame with status
    /// 1001, each between two messages, and have a few seconds to respond. The gateway cannot end
    /// other protocols in order: they continue, and are cut off at the end of the drain.
    pub async fn run(self, task: Option<&Task>) -> Carried {
        let Upgrade {
            client,
            protocol,
            idle,
            bridged,
        } = self.upgrade;
        let _kept = (self.slot, bridged);
        let websocket = protocol_name(&protocol).eq_ignore_ascii_case(b"websocket");
        let Some(client) = client.await else {
            return Carried::default();
        };
        let (mut client, ahead, _place) = client.into_parts();
        let mut upstream = self.upstream;
        let frames = |role| websocket.then(|| Frames::new(role));
        let mut up = Direction::new(frames(Role::Client), ahead);
        let mut down = Direction::new(frames(Role::Server), self.early);
        let mut deadline = Deadline::never();
        if idle != Micros::ZERO {
            deadline.reset(idle.into());
        }
        let carried = |up: &Direction, down: &Direction| Carried {
            up: up.read,
            down: down.read,
        };
        let (mut seen, mut leaving, mut ending) = (Carried::default(), false, false);
        std::future::poll_fn(|cx| {
            if websocket && !leaving && task.is_some_and(|task| task.poll_drain(cx).is_ready()) {
                leaving = true;
                deadline.reset(LAST_WORDS);
            }
            let ways = (
                up.poll(cx, &mut client, &mut upstream, leaving),
                down.poll(cx, &mut upstream, &mut client, leaving),
            );
            if let (Poll::Ready(Err(_)), _)
            | (_, Poll::Ready(Err(_)))
            | (Poll::Ready(_), Poll::Ready(_)) = ways
            {
                return Poll::Ready(());
            }
            // A client that keeps its side open is not read any more, and would keep its slot in a
            // concurrency limit.
            let one_ended = ways.1.is_ready() || (websocket && ways.0.is_ready());
            if one_ended && !ending && !leaving {
                ending = true;
                seen = carried(&up, &down);
                deadline.reset(LAST_WORDS);
            }
            while deadline.poll_passed(cx).is_ready() {
                let now = carried(&up, &down);
                if leaving || (ending && websocket) || now == seen {
                    return Poll::Ready(());
                }
                seen = now;
                deadline.reset(if ending { LAST_WORDS } else { idle.into() });
            }
            Poll::Pending
        })
        .await;
        carried(&up, &down)
    }
}

/// When the gateway shuts down: how long the ends of a WebSocket may take to finish the current
/// message and exchange close frames. Also how long one end may take after the other is gone.
const LAST_WORDS: Duration = Duration::from_secs(5);
