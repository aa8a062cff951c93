//! Logs failures of an upstream's servers for operators: one line for each change of a server's
//! state, and for each kind of failure one line with its cause, at most once in [`LINE_EVERY`].

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerHealth {
    Up,
    /// It receives none for a while, because requests to it failed.
    Ejected,
    /// It receives none while there are others, because it fails its health checks.
    Unhealthy,
}

impl ServerHealth {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Ejected => "ejected",
            Self::Unhealthy => "unhealthy",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerStatus {
    pub server: String,
    /// Whether it receives requests; `None`: no worker has had a request for it yet.
    pub state: Option<ServerHealth>,
    pub held_for: Duration,
    /// Its last failure, and how long ago that was.
    pub last_error: Option<(Duration, String)>,
}

/// The failures of one server that are logged and remembered.
#[derive(Debug)]
pub(super) struct Incidents {
    upstream: Arc<str>,
    server: String,
    history: Mutex<History>,
}

#[derive(Debug)]
struct History {
    state: ServerHealth,
    since: Instant,
    last_error: Option<(Instant, String)>,
    /// Kinds of failure are fixed words, so there are few.
    kinds: Vec<Kind>,
}

#[derive(Debug)]
struct Kind {
    label: &'static str,
    logged: Instant,
    /// The number of failures since then.
    unlogged: u64,
}

impl Incidents {
    pub(super) fn new(upstream: &Arc<str>, server: String) -> Self {
        let history = History {
            state: ServerHealth::Up,
            since: Instant::now(),
            last_error: None,
            kinds: Vec::new(),
        };
        Self {
            upstream: Arc::clone(upstream),
            server,
            history: Mutex::new(history),
        }
    }

    /// Records that the server failed: `kind` is a fixed word, `cause` gives the reason.
    pub(super) fn failed(&self, kind: &'static str, cause: String) {
        let now = Instant::now();
        let mut history = self.history.lock();
        let known = history.kinds.iter_mut().find(|known| known.label == kind);
        let unlogged = match known {
            Some(known) if now.duration_since(known.logged) < LINE_EVERY => {
                known.unlogged = known.unlogged.saturating_add(1);
                history.last_error = Some((now, cause));
                return;
            }
            Some(known) => {
                known.logged = now;
                std::mem::take(&mut known.unlogged)
            }
            None => {
                history.kinds.push(Kind {
                    label: kind,
                    logged: now,
                    unlogged: 0,
                });
                0
            }
        };
        history.last_error = Some((now, cause.clone()));
        drop(history);
        let (upstream, server) = (&*self.upstream, self.server.as_str());
        let unlogged = (unlogged > 0).then_some(unlogged);
        tracing::warn!(upstream, server, kind, error = %cause, unlogged, "an upstream's server failed");
    }

    /// Records that the server is in `state` from now on, which is new, and logs it.
    pub(super) fn entered(&self, state: ServerHealth) {
        let mut history = self.history.lock();
        let before = std::mem::replace(&mut history.state, state);
        history.since = Instant::now();
        let error = history
            .last_error
            .as_ref()
            .map(|(_, cause)| cause.clone())
            .unwrap_or_default();
        drop(history);
        let (upstream, server) = (&*self.upstream, self.server.as_str());
        match (state, before) {
            (ServerHealth::Unhealthy, _) => {
                tracing::warn!(upstream, server, %error, "an upstream's server fails its health checks: it gets no requests, unless no other one is in use");
            }
            (ServerHealth::Ejected, _) => {
                tracing::warn!(upstream, server, %error, "an upstream's server is ejected: it gets no requests for a while, unless no other one is in use");
            }
            (ServerHealth::Up, ServerHealth::Unhealthy) => {
                tracing::info!(
                    upstream,
                    server,
                    "an upstream's server passes its health checks again: it gets requests"
                );
            }
            (ServerHealth::Up, _) => {
                tracing::info!(
                    upstream,
                    server,
                    "an upstream's server is no longer ejected"
                );
            }
        }
    }

    pub(super) fn status(&self) -> ServerStatus {
        let now = Instant::now();
        let history = self.history.lock();
        ServerStatus {
            server: self.server.clone(),
            state: Some(history.state),
            held_for: now.duration_since(history.since),
            last_error: history
                .last_error
                .as_ref()
                .map(|(at, cause)| (now.duration_since(*at), cause.clone())),
        }
    }
}

/// Formats an error with its chain of causes, on one line.
pub(super) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

const LINE_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn upstream_failures_of_a_kind_are_logged_once_in_a_while_and_counted_between() {
        let incidents = Incidents::new(&Arc::from("app"), "10.0.0.1:80".to_owned());
        let unlogged = || {
            incidents
                .history
                .lock()
                .kinds
                .iter()
                .map(|kind| kind.unlogged)
                .collect::<Vec<_>>()
        };
        for _ in 0..3 {
            incidents.failed("connect", "refused".to_owned());
        }
        incidents.failed("tls", "expired".to_owned());
        assert_eq!(unlogged(), [2, 0], "one line for each kind");
        tokio::time::advance(LINE_EVERY).await;
        incidents.failed("connect", "refused".to_owned());
        assert_eq!(unlogged(), [0, 0], "the next line says how many there were");
        tokio::time::advance(Duration::from_secs(5)).await;
        incidents.entered(ServerHealth::Ejected);
        tokio::time::advance(Duration::from_secs(2)).await;
        let status = incidents.status();
        assert_eq!(
            (status.state, status.held_for),
            (Some(ServerHealth::Ejected), Duration::from_secs(2))
        );
        assert_eq!(
            status.last_error,
            Some((Duration::from_secs(7), "refused".to_owned()))
        );
    }

    #[test]
    fn error_is_printed_with_its_causes() {
        let refused =
            std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        assert_eq!(
            causes(&super::super::ForwardError::Connect(refused)),
            "cannot connect: connection refused"
        );
    }
}
