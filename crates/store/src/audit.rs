//! What an audit of a server's settings says: what in them would lose buckets, said before it does.

/// Something an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub weight: Weight,
    /// What, and what to do.
    pub message: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Limits hold, but not through every event.
    Warning,
    /// Limits will not hold.
    Refusal,
}

impl Weight {
    /// A fixed word.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Refusal => "refusal",
        }
    }
}

/// A clock further from ours than this is worth a word: nothing depends on it, but something is wrong.
const CLOCK_DISTANCE_MICROS: u64 = 5_000_000;

/// The word on two clocks, in microseconds since the epoch, that are far apart.
pub(super) fn distant_clock(server: u64, ours: u64) -> Option<Finding> {
    let distance = server.abs_diff(ours);
    let message = format!("the server's clock is {} s from ours", distance / 1_000_000);
    (distance > CLOCK_DISTANCE_MICROS).then_some(Finding {
        weight: Weight::Warning,
        message,
    })
}
