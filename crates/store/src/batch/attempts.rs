//! Connection attempts: while one hangs, others are started in parallel.
//!
//! TCP retransmits a lost packet (the first packet of a connection, a greeting) after one second,
//! then two, then four. A new attempt succeeds as soon as the server can be reached.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::{Link, Obstacle};

/// Another attempt starts this long after the last, while none has ended.
const AGAIN: Duration = Duration::from_millis(100);
/// The most attempts in progress; above it the oldest is given up.
const ATTEMPTS_MAX: usize = 10;
/// The time between attempts beside a suspected connection, to spare a server that is only slow.
const BESIDE_APART: Duration = Duration::from_secs(1);

pub(super) struct Attempts<L: Link> {
    link: Rc<L>,
    under_way: JoinSet<Result<L::Connection, Obstacle>>,
    handles: VecDeque<AbortHandle>,
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
        let attempt = async move { link.connect().await };
        self.handles.push_back(self.under_way.spawn_local(attempt));
    }

    /// Connects: returns the first attempt that succeeds; if all have failed, the last error.
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
                    // It was given up for a later one.
                    Some(Err(_)) => {}
                },
                () = tokio::time::sleep(AGAIN) => self.begin(),
            }
        }
    }

    /// Starts an attempt beside a suspected connection, unless there was one a moment ago.
    pub(super) fn begin_beside(&mut self) {
        let now = Instant::now();
        if self.under_way.is_empty() && self.beside.is_none_or(|last| now >= last + BESIDE_APART) {
            self.beside = Some(now);
            self.begin();
        }
    }

    pub(super) fn ready(&mut self) -> Option<L::Connection> {
        while let Some(ended) = self.under_way.try_join_next() {
            if let Ok(Ok(connection)) = ended {
                self.give_up();
                return Some(connection);
            }
        }
        None
    }

    /// Waits for the connection of an attempt; forever if none succeeds.
    pub(super) async fn first(&mut self) -> L::Connection {
        while let Some(ended) = self.under_way.join_next().await {
            if let Ok(Ok(connection)) = ended {
                self.give_up();
                return connection;
            }
        }
        std::future::pending().await
    }

    pub(super) fn give_up(&mut self) {
        self.under_way = JoinSet::new();
        self.handles.clear();
    }
}
