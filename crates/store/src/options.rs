use crate::clock::Clock;
use tollgate_limit::Micros;

/// The options of a [`RemoteStore`](crate::RemoteStore), whatever its kind.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    pub answer_within: Micros,
    /// The secret with which names of buckets are hashed; the same for all gateways of one store.
    pub key_secret: Vec<u8>,
    pub clock: Clock,
    /// Tests only: decide at this clock's time instead of the server's.
    pub pinned: Option<Clock>,
    /// Whether requests that the server would certainly refuse are refused without asking it.
    pub local_refusals: bool,
    /// Whether the store has limits of a day or longer, for which the audit checks more.
    pub long_quotas: bool,
    /// SQL databases: whether the gateway creates its tables and functions if they do not exist.
    pub create: bool,
    /// PostgreSQL: whether a charge is on disk before its response (matters for a logged table).
    /// Otherwise a crash of the server may lose the last moments.
    pub synchronous_commit: bool,
}

impl RemoteOptions {
    pub fn new(answer_within: Micros, key_secret: impl Into<Vec<u8>>, clock: Clock) -> Self {
        Self {
            answer_within,
            key_secret: key_secret.into(),
            clock,
            pinned: None,
            local_refusals: true,
            long_quotas: false,
            create: true,
            synchronous_commit: true,
        }
    }
}
