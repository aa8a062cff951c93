//! Attempts to connect: while one hangs, others are begun beside it.
//!
//! What is lost on the way to a server that cannot be reached (the first packet of a connection, a greeting) is sent again
//! by TCP after a second, then two, then four. An attempt begun anew gets through as soon as there is a way.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::{Link, Obstacle};

/// Another attempt begins so long after the last, while none has ended.
const AGAIN: Duration = Duration::from_millis(100);
/// Attempts under way; the oldest is given up for one more.
const ATTEMPTS_MAX: usize = 10;
/// Attempts beside a connection that is suspected are this far apart: a server that is merely slow is spared.
const BESIDE_APART: Duration = Duration::from_secs(1);

/// Attempts to connect by a link.
pub(super) struct Attempts<L: Link> {
    link: Rc<L>,
    under_way: JoinSet<Result<L::Connection, Obstacle>>,
    handles: VecDeque<AbortHandle>,
    /// When the last one beside a suspected connection began.
    beside: Option<Instant>,
}

impl<L: Link> Attempts<L> {
    pub(super) fn new(link: Rc<L>) -> Self {
        Self {
            link,
            under_way: JoinSet::new(),
            handles: VecDeque::new(),
            beside: None,
        }
    }

    fn begin(&mut self) {
        self.handles.retain(|handle| !handle.is_finished());
        if self.handles.len() >= ATTEMPTS_MAX
            && let Some(oldest) = self.handles.pop_front()
        {
            oldest.abort();
        }
        let link = self.link.clone();
        self.handles.push_back(
            self.under_way
                .spawn_local(async move { link.connect().await }),
        );
    }

    /// Connects: the first attempt to succeed; where all have failed, why the last one did.
    pub(super) async fn next(&mut self) -> Result<L::Connection, Obstacle> {
        self.begin();
        let mut last = Obstacle::from(String::from("no connection could be made"));
        loop {
            tokio::select! {
                ended = self.under_way.join_next() => match ended {
                    None => return Err(last),
                    Some(Ok(Ok(connection))) => {
                        self.give_up();
                        return Ok(connection);
                    }
                    Some(Ok(Err(obstacle))) => last = obstacle,
                    // Given up for a later one.
                    Some(Err(_)) => {}
                },
                () = tokio::time::sleep(AGAIN) => self.begin(),
            }
        }
    }

    /// Begins an attempt beside a connection that is suspected, unless one is under way, or began a moment ago.
    pub(super) fn begin_beside(&mut self) {
        let now = Instant::now();
        if self.under_way.is_empty() && self.beside.is_none_or(|last| now >= last + BESIDE_APART) {
            self.beside = Some(now);
            self.begin();
        }
    }

    /// The connection that an attempt has brought by now.
    pub(super) fn ready(&mut self) -> Option<L::Connection> {
        while let Some(ended) = self.under_way.try_join_next() {
            if let Ok(Ok(connection)) = ended {
                self.give_up();
                return Some(connection);
            }
        }
        None
    }

    /// The connection that an attempt brings; waits for ever where none does.
    pub(super) async fn first(&mut self) -> L::Connection {
        while let Some(ended) = self.under_way.join_next().await {
            if let Ok(Ok(connection)) = ended {
                self.give_up();
                return connection;
            }
        }
        std::future::pending().await
    }

    /// Gives up what is under way.
    pub(super) fn give_up(&mut self) {
        self.under_way = JoinSet::new();
        self.handles.clear();
    }
}
