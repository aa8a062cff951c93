//! The messages between the two processes of a handover.

use serde::{Deserialize, Serialize};
use tollgate_gateway::decide::{Outcome, Told};
use tollgate_limit::{Change, Limit, Micros, Placement, Role, Standing, Timestamp, Verdict};

/// One message, as JSON.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The old process opens the connection; the descriptors of its listening sockets follow.
    Hello(Hello),
    /// The new process has completed every step that can fail.
    Ready,
    /// The descriptors of the buckets, and of a socket for reports, follow.
    State,
    /// The new process has the buckets of these limits.
    Serving(Vec<LimitName>),
    /// The new process may accept.
    Go,
    /// A request on one of the old process's connections draws from buckets.
    Draw(Vec<AskedClaim>),
    /// The result of the draw.
    Drawn(Drawn),
    /// A response on one of the old process's connections corrects a charge.
    Settle(AskedSettlement),
    /// A program reports to the new process about a permit of the old one. Sent over a socket of its
    /// own, as is the next.
    Report(Told),
    /// What came of it.
    Reported(Outcome),
}

impl Message {
    /// Its name, for errors.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Ready => "ready",
            Self::State => "state",
            Self::Serving(_) => "serving",
            Self::Go => "go",
            Self::Draw(_) => "draw",
            Self::Drawn(_) => "drawn",
            Self::Settle(_) => "settle",
            Self::Report(_) => "report",
            Self::Reported(_) => "reported",
        }
    }
}

/// The first message.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// [`VERSION`] of the old process.
    pub(super) version: u64,
    /// Its listening sockets, in the order of their descriptors.
    pub(super) listeners: Vec<Listener>,
}

/// A listener of the old process.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listener {
    /// The listener's name in the configuration.
    pub(super) wanted: String,
    /// The number of its sockets.
    pub(super) sockets: usize,
}

/// A limit as both processes identify it: by name, independently of its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct LimitName {
    name: String,
    tier: Option<String>,
    candidate: bool,
}

impl LimitName {
    pub(super) fn of(limit: &Limit) -> Self {
        Self {
            name: limit.name.to_string(),
            tier: limit.tier.as_deref().map(str::to_owned),
            candidate: limit.role == Role::Candidate,
        }
    }

    pub(super) fn names(&self, limit: &Limit) -> bool {
        limit.placement == Placement::Local && *self == Self::of(limit)
    }
}

/// A claim of the old process on a bucket of the new one.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AskedClaim {
    /// The limit's index in [`Message::Serving`].
    pub(super) limit: usize,
    /// The key, in base64.
    pub(super) key: String,
    pub(super) cost: u64,
    pub(super) enforced: bool,
}

/// The result of a draw.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Drawn {
    pub(super) granted: bool,
    /// One for each claim.
    pub(super) standings: Vec<SentStanding>,
}

/// [`Standing`] in wire form, with times in microseconds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SentStanding {
    verdict: SentVerdict,
    remaining: u64,
    reset: u64,
    effective: u64,
    #[serde(default)]
    window_end: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SentVerdict {
    Allow { wait: u64 },
    Deny { retry_after: Option<u64> },
}

impl From<&Standing> for SentStanding {
    fn from(standing: &Standing) -> Self {
        Self {
            verdict: match standing.verdict {
                Verdict::Allow { wait } => SentVerdict::Allow { wait: wait.0 },
                Verdict::Deny { retry_after } => SentVerdict::Deny {
                    retry_after: retry_after.map(|after| after.0),
                },
            },
            remaining: standing.remaining,
            reset: standing.reset.0,
            effective: standing.effective.0,
            window_end: standing.window_end.as_micros(),
        }
    }
}

impl From<SentStanding> for Standing {
    fn from(sent: SentStanding) -> Self {
        Self {
            verdict: match sent.verdict {
                SentVerdict::Allow { wait } => Verdict::Allow { wait: Micros(wait) },
                SentVerdict::Deny { retry_after } => Verdict::Deny {
                    retry_after: retry_after.map(Micros),
                },
            },
            remaining: sent.remaining,
            reset: Micros(sent.reset),
            effective: Micros(sent.effective),
            window_end: Timestamp::from_micros(sent.window_end),
        }
    }
}

/// A correction of a charge on a bucket of the new process.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AskedSettlement {
    /// The limit's index in [`Message::Serving`].
    pub(super) limit: usize,
    /// The key, in base64.
    pub(super) key: String,
    #[serde(with = "ChangeForm")]
    pub(super) change: Change,
}

/// [`Change`] in wire form.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Change", rename_all = "snake_case")]
enum ChangeForm {
    Charge {
        more: u64,
    },
    Refund {
        units: u64,
    },
    RefundWithin {
        units: u64,
        #[serde(rename = "window_end_micros", with = "micros")]
        window_end: Timestamp,
    },
    Withdraw {
        units: u64,
        #[serde(rename = "full_at_micros", with = "micros")]
        full_at: Timestamp,
    },
    Release {
        units: u64,
    },
}

/// A moment in wire form.
mod micros {
    use serde::{Deserialize, Deserializer, Serializer};
    use tollgate_limit::Timestamp;

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.as_micros())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Timestamp, D::Error> {
        u64::deserialize(from).map(Timestamp::from_micros)
    }
}

/// Incremented if two versions could misunderstand each other.
pub(super) const VERSION: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handover_standing_is_unchanged_by_the_wire_form() {
        for verdict in [
            Verdict::Allow { wait: Micros(7) },
            Verdict::Deny {
                retry_after: Some(Micros(u64::MAX)),
            },
            Verdict::Deny { retry_after: None },
        ] {
            let standing = Standing {
                verdict,
                remaining: u64::MAX,
                reset: Micros(3),
                effective: Micros(4),
                window_end: Timestamp::from_micros(5),
            };
            let text = serde_json::to_string(&SentStanding::from(&standing)).expect("JSON");
            let sent: SentStanding = serde_json::from_str(&text).expect("a standing");
            assert_eq!(Standing::from(sent), standing);
        }
    }
}
