//! Logs a store's outages: each outage with its reason, a long one repeatedly, and its end.

use tollgate_limit::{Micros, Timestamp};

/// The minimum time between two lines, however often the store fails.
const APART: Micros = Micros::from_secs(5);
/// How often a continuing outage is logged again.
const AGAIN: Micros = Micros::from_secs(300);

/// What was logged so far. A reason contains no address and no password.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    server: Option<String>,
    last: Option<(String, Timestamp)>,
    reported: bool,
    ever: bool,
}

impl Outages {
    pub(crate) fn of(server: Option<&str>) -> Self {
        Self {
            server: server.map(str::to_owned),
            ..Self::default()
        }
    }

    pub(crate) fn down(&mut self, error: &str, now: Timestamp) {
        if !self.is_news(error, now) {
            return;
        }
        if let Some(server) = &self.server {
            tracing::warn!(%server, %error, "a master of the shared store does not respond: for buckets in its slots limits \
                do what `when_down` says");
        } else if self.ever {
            tracing::warn!(%error, "the shared store does not respond: limits do what `when_down` says");
        } else {
            tracing::warn!(%error, "the shared store cannot be reached: limits do what `when_down` says");
        }
    }

    pub(crate) fn up(&mut self) {
        if self.is_worth_telling() {
            match &self.server {
                Some(server) => tracing::info!(%server, "a master of the shared store responds"),
                None => tracing::info!("the shared store responds"),
            }
        }
    }

    fn is_news(&mut self, error: &str, now: Timestamp) -> bool {
        let due = self.last.as_ref().is_none_or(|(said, at)| {
            let is_known = self.reported && said == error;
            let quiet = if is_known { AGAIN } else { APART };
            now.since(*at) >= quiet
        });
        if due {
            self.last = Some((error.to_owned(), now));
            self.reported = true;
        }
        due
    }

    /// Whether to log an end: the outage was logged, or this is the first connection.
    fn is_worth_telling(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.ever, true);
        std::mem::take(&mut self.reported) || first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_is_logged_once_and_then_at_intervals() {
        let mut outages = Outages::default();
        let at = |millis: u64| Timestamp::from_micros(1_760_000_000_000_000 + millis * 1_000);
        assert!(
            outages.is_news("refused", at(0)),
            "the first failure, before any connection"
        );
        assert!(!outages.is_news("refused", at(50)) && !outages.is_news("refused", at(299_000)));
        assert!(outages.is_news("refused", at(300_000)), "it goes on");
        assert!(
            !outages.is_news("wrong password", at(301_000))
                && outages.is_news("wrong password", at(305_000))
        );
        assert!(outages.is_worth_telling(), "the first connection");
        assert!(!outages.is_worth_telling(), "nothing was said of an outage");
        // It fails again soon after: that is logged when the last line is old enough, whatever the reason.
        assert!(!outages.is_news("wrong password", at(306_000)));
        assert!(!outages.is_worth_telling());
        assert!(outages.is_news("wrong password", at(310_000)));
        assert!(outages.is_worth_telling(), "what was told of has an end");
        let said = (311_000..411_000).step_by(100).filter(|millis| {
            let said = outages.is_news("closed", at(*millis));
            outages.is_worth_telling();
            said
        });
        assert_eq!(said.count(), 20, "in 100 s of going and coming");
    }
}
