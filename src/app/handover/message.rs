//! The messages between the two processes of a handover.

use serde::{Deserialize, Serialize};
use tollgate_limit::{Change, Limit, Placement, Role, Timestamp};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The old process opens the connection; the descriptors of its listening sockets follow.
    Hello(Hello),
    /// The new process has completed every step that can fail.
    Ready,
    /// Its overrides of local limits. The descriptor of the buckets follows.
    State(String),
    /// The new process has the buckets of these limits.
    Serving(Vec<LimitName>),
    /// The new process may accept.
    Go,
    /// A response on one of the old process's connections corrects a charge.
    Settle(Correction),
}

impl Message {
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Ready => "ready",
            Self::State(_) => "state",
            Self::Serving(_) => "serving",
            Self::Go => "go",
            Self::Settle(_) => "settle",
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// [`VERSION`] of the old process.
    pub(super) version: u64,
    /// Its listening sockets, in the order of their descriptors.
    pub(super) listeners: Vec<Listener>,
    /// The secret with which it names callers' keys and the buckets of overrides.
    pub(super) names: [u8; 16],
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listener {
    pub(super) wanted: String,
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

/// A correction of a charge on a bucket of the new process.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Correction {
    /// The limit's index in [`Message::Serving`].
    pub(super) limit: usize,
    pub(super) key: String,
    #[serde(with = "ChangeForm")]
    pub(super) change: Change,
}

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
pub(super) const VERSION: u64 = 4;
