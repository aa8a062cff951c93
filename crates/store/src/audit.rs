//! The findings of an audit of a server's settings: settings that could lose buckets.

/// A fact that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub weight: Weight,
    /// The problem, and how to fix it.
    pub message: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Limits hold, but some events can break them.
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

/// A larger clock difference than this is reported: nothing depends on it, but one of the clocks is
/// wrong.
const CLOCK_DISTANCE_MICROS: u64 = 5_000_000;

/// The finding about two clocks that are far apart, in microseconds since the epoch.
pub(super) fn distant_clock(server: u64, ours: u64) -> Option<Finding> {
    let distance = server.abs_diff(ours);
    let message = format!("the server's clock is {} s from ours", distance / 1_000_000);
    (distance > CLOCK_DISTANCE_MICROS).then_some(Finding {
        weight: Weight::Warning,
        message,
    })
}
