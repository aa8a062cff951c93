//! After a 101: bytes both ways until both sides have ended, or nothing moves for too long, or the gateway goes away.

mod frames;
mod way;

use bytes::Bytes;
use std::task::Poll;
use std::time::Duration;

use super::{Slot, Stream};
use frames::{Frames, Role};
use tollgate_limit::Micros;
use tollgate_net::server::{Hold, OnUpgrade};
use tollgate_net::timers::Deadline;
use tollgate_net::worker::Task;
use way::Way;

/// An upgraded connection that is to be carried on, by [`Tunnel::run`].
#[derive(Debug)]
pub struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) upstream: Stream,
    /// What the upstream sent right behind its 101.
    pub(super) early: Bytes,
    pub(super) idle: Micros,
    /// Whether what it carries are WebSocket frames (RFC 6455).
    pub(super) websocket: bool,
    pub(super) slot: Slot,
    /// What the client's HTTP/2 connection has under way meanwhile.
    pub(super) hold: Option<Hold>,
}

/// What went through a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes from the client.
    pub up: u64,
    /// Bytes from the upstream.
    pub down: u64,
}

impl Tunnel {
    /// Carries bytes both ways until both sides have ended, one fails, or nothing moves for the idle timeout.
    /// Runs as a task of its own: the response has been sent by then.
    ///
    /// A WebSocket whose one side has ended gives the other a few seconds to end, too. Other protocols may have one side go on
    /// for long after the other, so when the upstream has ended the client's is carried on while something comes.
    ///
    /// When `task` is told of a drain, a WebSocket's two sides are sent a close frame that says 1001, each between two
    /// messages, and have a few seconds to answer it. What is carried by other protocols nobody here can end in order:
    /// it goes on, and is cut off at the drain's end.
    pub async fn run(self, task: Option<&Task>) -> Carried {
        let _kept = (self.slot, self.hold);
        let Some(mut client) = self.client.await else {
            return Carried::default();
        };
        let mut upstream = self.upstream;
        let frames = |role| self.websocket.then(|| Frames::new(role));
        let mut up = Way::new(frames(Role::Client), Bytes::new());
        let mut down = Way::new(frames(Role::Server), self.early);
        let mut deadline = Deadline::never();
        if self.idle != Micros::ZERO {
            deadline.reset(self.idle.into());
        }
        let (mut seen, mut leaving, mut ending) = (Carried::default(), false, false);
        std::future::poll_fn(|cx| {
            if self.websocket && !leaving && task.is_some_and(|task| task.poll_drain(cx).is_ready())
            {
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
            // One who goes on holding his side open is not heard any more, and would keep his place in a limit.
            let one_ended = ways.1.is_ready() || (self.websocket && ways.0.is_ready());
            if one_ended && !ending && !leaving {
                ending = true;
                seen = Carried {
                    up: up.read(),
                    down: down.read(),
                };
                deadline.reset(LAST_WORDS);
            }
            while deadline.poll_passed(cx).is_ready() {
                let now = Carried {
                    up: up.read(),
                    down: down.read(),
                };
                if leaving || (ending && self.websocket) || now == seen {
                    return Poll::Ready(());
                }
                seen = now;
                deadline.reset(if ending { LAST_WORDS } else { self.idle.into() });
            }
            Poll::Pending
        })
        .await;
        Carried {
            up: up.read(),
            down: down.read(),
        }
    }
}

/// How long the ends of a WebSocket may take over the message they are in, and over their close frames, when the gateway
/// goes away; and one end, when the other has gone.
const LAST_WORDS: Duration = Duration::from_secs(5);
